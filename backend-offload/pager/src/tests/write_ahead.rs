//! Blocks written to disk before they have to spill.

use super::sweep::{BLOCKS, DISK, HOST, Sweep};
use super::*;

/// Blocks are written each time. With `ahead`, each operation writes at most one.
fn swept(policy: Policy, host: u64, disk: u64, ahead: bool) -> Sweep {
    Sweep::new(policy, host, disk).run(|sweep, block| {
        let rooms = sweep.rooms();
        if let Some(next) = sweep.pager.prefetch(Link::ToDisk, &|| rooms).filter(|_| ahead) {
            let outcome = sweep.pager.report(next).expect("it rests on the host");
            let Outcome::WrittenAhead { block, .. } = outcome else { panic!("{outcome:?}") };
            assert!(sweep.pager.get(block).is_some_and(Block::is_on_disk));
        }
        sweep.pager.wrote(block).expect("on the device");
    })
}

#[test]
fn blocks_that_spill_were_written_ahead() {
    let [in_time, ahead] = [false, true].map(|ahead| swept(Policy::Planned, 120, 1000, ahead));
    let [in_time_waited, ahead_waited] = [&in_time, &ahead].map(|sweep| sweep.waited_for.written);
    assert!(in_time_waited > 4 * 10 * BLOCKS as u64, "{in_time_waited}");
    assert_eq!(ahead_waited, 0, "one block can be written beside every operation");
    let [in_time, ahead] = [in_time, ahead].map(|sweep| sweep.pager.counters());
    assert_eq!(in_time.disk.written_ahead, 0);
    assert!(
        ahead.disk.bytes_to_disk <= in_time.disk.bytes_to_disk * 11 / 10,
        "{ahead:?}, not as {in_time:?}"
    );
    assert_eq!(
        (ahead.disk.spilled, ahead.disk.loaded),
        (in_time.disk.spilled, in_time.disk.loaded),
        "the same blocks go the same ways"
    );
}

#[test]
fn blocks_are_written_ahead_only_while_blocks_spill_and_their_next_use_is_known() {
    // In the first case less than one block lacks room.
    for (policy, host) in [(Policy::Planned, 395), (Policy::Recency, 120), (Policy::LeastRecentlyUsed, 120)] {
        let counters = swept(policy, host, 1000, true).pager.counters();
        assert_eq!(counters.disk.written_ahead, 0, "{policy:?} above a host of {host} bytes");
        assert_eq!(counters.disk.spilled > 0, host == 120);
    }
}

#[test]
fn a_nearly_full_disk_is_kept_for_blocks_that_must_spill() {
    let sweep = swept(Policy::Planned, 240, 160, true);
    assert_eq!(sweep.pager.counters().disk.written_ahead, 0);
    assert!(sweep.pager.counters().disk.spilled > 0);
}

#[test]
fn a_block_is_written_below_only_where_it_rests_on_the_host_alone() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::Planned, 2);
    assert!(pager.report(Step::WriteAhead { block: blocks[0] }).is_err(), "it is on the device");
    let more = pager.insert(10, Arena(0));
    operate(&mut pager, &[more]);
    let away =
        *blocks.iter().find(|id| !pager.get(**id).expect("it lives").is_on_device()).expect("one left");
    pager.report(Step::WriteAhead { block: away }).expect("it rests there");
    assert!(pager.report(Step::WriteAhead { block: away }).is_err(), "the disk has it");
    assert_eq!((pager.ledger().held(HOST), pager.ledger().held(DISK)), (10, 10));
    pager.report(Step::Spill { block: away }).expect("for free");
    assert_eq!((pager.counters().disk.bytes_to_disk, pager.ledger().held(HOST)), (10, 0));
}
