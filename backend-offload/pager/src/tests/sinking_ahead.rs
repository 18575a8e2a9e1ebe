//! Blocks that are written to the disk before they have to sink.

use super::*;

const HOST: TierIndex = TierIndex::HOST;
const DISK: TierIndex = TierIndex::DISK;

/// Blocks of 10 bytes that are written forwards and backwards, on a device of two of them and a host of 120 bytes.
const BLOCKS: usize = 40;
const ROUNDS: usize = 6;

struct Sweep {
    pager: Pager,
    blocks: Vec<BlockId>,
    host: u64,
    disk: u64,
    /// Bytes whose writing an operation had to wait for.
    waited_for: u64,
}

impl Sweep {
    fn new(policy: Policy, host: u64, disk: u64) -> Self {
        let mut pager = Pager::new(Limit::bytes(20), policy, Oversized::Refuse);
        let blocks = (0..BLOCKS).map(|_| pager.insert(10, Arena(0))).collect();
        Self { pager, blocks, host, disk, waited_for: 0 }
    }

    fn rooms(&self) -> Rooms {
        let left = |room: u64, tier| Limit::bytes(room - self.pager.ledger().held(tier));
        Rooms { host: left(self.host, HOST), disk: left(self.disk, DISK) }
    }

    /// Sweeps so often, writing `ahead` at most one block beside each operation.
    fn run(mut self, ahead: bool) -> Self {
        for round in 0..ROUNDS {
            for n in (0..BLOCKS).chain((0..BLOCKS).rev()) {
                let block = self.blocks[n];
                self.pager.begin(&[block]).expect("legal operands");
                loop {
                    let rooms = self.rooms();
                    let step = self.pager.next_step(&|| rooms).expect("there is room");
                    if step == Step::Ready {
                        break;
                    }
                    let before = self.pager.counters().bytes_to_disk;
                    take(&mut self.pager, step).expect("as it was asked");
                    self.waited_for += self.pager.counters().bytes_to_disk - before;
                }
                let rooms = self.rooms();
                if let Some(next) = self.pager.next_below(&|| rooms).filter(|_| ahead) {
                    self.pager.written_below(next).expect("it rests on the host");
                    assert!(self.pager.get(next).is_some_and(|block| block.below));
                }
                self.pager.wrote(block).expect("on the device");
            }
            self.pager.mark_step();
            if round == 1 {
                self.waited_for = 0;
            }
        }
        self
    }
}

#[test]
fn what_sinks_was_written_before_it_had_to() {
    let [in_time, ahead] = [false, true].map(|ahead| Sweep::new(Policy::Planned, 120, 1000).run(ahead));
    assert!(in_time.waited_for > 4 * 10 * BLOCKS as u64, "{}", in_time.waited_for);
    assert_eq!(ahead.waited_for, 0, "one block can be written beside every operation");
    let [in_time, ahead] = [in_time, ahead].map(|sweep| sweep.pager.counters());
    assert_eq!(in_time.written_ahead, 0);
    assert!(ahead.bytes_to_disk <= in_time.bytes_to_disk * 11 / 10, "{ahead:?}, not as {in_time:?}");
    assert_eq!(
        (ahead.sunk, ahead.raised),
        (in_time.sunk, in_time.raised),
        "the same blocks go the same ways"
    );
}

#[test]
fn nothing_is_written_ahead_unless_blocks_sink_and_their_next_use_is_known() {
    // In the first case all blocks have room, but for less than a block of it.
    for (policy, host) in [(Policy::Planned, 395), (Policy::Recency, 120), (Policy::LeastRecentlyUsed, 120)] {
        let counters = Sweep::new(policy, host, 1000).run(true).pager.counters();
        assert_eq!(counters.written_ahead, 0, "{policy:?} above a host of {host} bytes");
        assert_eq!(counters.sunk > 0, host == 120);
    }
}

#[test]
fn a_disk_that_is_nearly_full_is_left_to_who_has_to_sink() {
    let sweep = Sweep::new(Policy::Planned, 240, 160).run(true);
    assert_eq!(sweep.pager.counters().written_ahead, 0);
    assert!(sweep.pager.counters().sunk > 0);
}

#[test]
fn a_block_is_written_below_only_where_it_rests_on_the_host_alone() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::Planned, 2);
    assert!(pager.written_below(blocks[0]).is_err(), "it is on the device");
    let more = pager.insert(10, Arena(0));
    operate(&mut pager, &[more]);
    let away =
        *blocks.iter().find(|id| !pager.get(**id).expect("it lives").place.is_on_device()).expect("one left");
    pager.written_below(away).expect("it rests there");
    assert!(pager.written_below(away).is_err(), "the disk has it");
    assert_eq!((pager.ledger().held(HOST), pager.ledger().held(DISK)), (10, 10));
    pager.sunk(away).expect("for free");
    assert_eq!((pager.counters().bytes_to_disk, pager.ledger().held(HOST)), (10, 0));
}
