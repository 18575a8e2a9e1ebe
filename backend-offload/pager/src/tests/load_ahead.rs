//! Blocks loaded from disk before an operation needs them.

use super::sweep::{BLOCKS, DISK, HOST, Sweep};
use super::*;

fn begin_ahead(sweep: &mut Sweep) -> Option<BlockId> {
    loop {
        let rooms = sweep.rooms();
        match sweep.pager.prefetch(Link::FromDisk, &|| rooms)? {
            Step::LoadAhead { block } if sweep.pager.loading().is_some() => return Some(block),
            Step::LoadAhead { block } => {
                assert!(rooms.host.allows(10), "others spilled for it");
                sweep.pager.started(Step::LoadAhead { block }).expect("it is on the disk");
            }
            step => {
                assert!(matches!(step, Step::Spill { .. }), "{step:?}");
                let before = sweep.pager.counters().disk.bytes_to_disk;
                take(&mut sweep.pager, step).expect("as it was told");
                assert_eq!(sweep.pager.counters().disk.bytes_to_disk, before, "it spills for free");
            }
        }
    }
}

/// Blocks are written once, and half fit the host. With `ahead`, each operation loads at most one.
fn swept(policy: Policy, ahead: bool) -> Sweep {
    let mut sweep = Sweep::new(policy, 200, 1000);
    for block in sweep.blocks.clone() {
        sweep.operate(block);
        sweep.pager.wrote(block).expect("on the device");
    }
    sweep.run(|sweep, _| {
        if ahead && let Some(block) = begin_ahead(sweep) {
            sweep.pager.report(Step::LoadAhead { block }).expect("under way");
        }
    })
}

#[test]
fn blocks_are_loaded_before_their_use() {
    let [in_time, ahead] = [false, true].map(|ahead| swept(Policy::Planned, ahead));
    let [in_time_waited, ahead_waited] = [&in_time, &ahead].map(|sweep| sweep.waited_for.loaded);
    assert!(in_time_waited > 3 * 10 * BLOCKS as u64, "{in_time_waited}");
    assert_eq!(ahead_waited, 0, "one block can be loaded beside every operation");
    let [in_time, ahead] = [in_time, ahead].map(|sweep| sweep.pager.counters());
    assert_eq!(in_time.disk.loaded_ahead, 0);
    assert!(
        ahead.disk.bytes_from_disk <= in_time.disk.bytes_from_disk * 6 / 5,
        "{ahead:?}, not as {in_time:?}"
    );
    assert!(ahead.disk.bytes_to_disk <= 10 * BLOCKS as u64, "each block is written once at most");
}

#[test]
fn a_block_is_loaded_ahead_only_if_its_next_use_is_known() {
    for policy in [Policy::Recency, Policy::LeastRecentlyUsed] {
        let counters = swept(policy, true).pager.counters();
        assert!(counters.disk.loaded > 0 && counters.disk.loaded_ahead == 0, "{policy:?}: {counters:?}");
    }
}

fn under_way() -> (Sweep, BlockId) {
    let mut sweep = swept(Policy::Planned, true);
    let block = (0..BLOCKS).find_map(|n| {
        sweep.operate(sweep.blocks[n]);
        begin_ahead(&mut sweep)
    });
    (sweep, block.expect("something is loaded in a sweep"))
}

#[test]
fn an_operation_finishes_what_is_under_way_and_makes_no_other_room_for_it() {
    let (mut sweep, block) = under_way();
    assert_eq!(
        sweep.pager.get(block).expect("it lives").place(),
        Place::Away(DISK),
        "until all of it has come"
    );
    let before = sweep.pager.counters();
    sweep.pager.begin(&[block]).expect("a legal operand");
    let full = Rooms { host: Limit::bytes(0), disk: Limit::bytes(0), page: 1 };
    let mut steps = Vec::new();
    loop {
        match sweep.pager.next_step(&|| full).expect("its memory is its own") {
            Step::Ready => break,
            step => take(&mut sweep.pager, step).expect("as it was asked"),
        }
        steps.push(sweep.pager.loading());
    }
    assert_eq!(steps.last(), Some(&None));
    assert_eq!(sweep.pager.counters().disk.loaded, before.disk.loaded + 1);
    assert_eq!(sweep.pager.counters().disk.loaded_ahead, before.disk.loaded_ahead, "it waited for the rest");
    assert_eq!(sweep.pager.counters().disk.spilled, before.disk.spilled);
}

#[test]
fn a_block_is_under_way_until_it_is_given_up_changed_or_dropped() {
    let (mut sweep, block) = under_way();
    let other =
        sweep.pager.soon_from_disk(BLOCKS).into_iter().find(|id| *id != block).expect("many are there");
    assert!(sweep.pager.started(Step::LoadAhead { block: other }).is_err(), "one at a time");
    let (token, _) = sweep.pager.loading().expect("it is under way");
    assert_eq!(sweep.pager.ended(token, false), Ok(Outcome::Unmoved { block }));
    assert_eq!(sweep.pager.loading(), None);
    let on_device = sweep.blocks.iter().find(|id| sweep.pager.get(**id).is_some_and(Block::is_on_device));
    let on_device = *on_device.expect("two are");
    assert!(sweep.pager.started(Step::LoadAhead { block: on_device }).is_err(), "it is not on the disk");
    sweep.pager.started(Step::LoadAhead { block }).expect("it is on the disk");
    sweep.pager.wrote_on_host(block).expect("the program may");
    assert_eq!(sweep.pager.loading(), None, "what comes from the disk is out of date");
    assert_eq!(sweep.pager.get(block).map(Block::place), Some(Place::Away(HOST)));
    sweep.pager.started(Step::LoadAhead { block: other }).expect("it is on the disk");
    sweep.pager.remove(other).expect("it lives");
    assert_eq!(sweep.pager.loading(), None);
}
