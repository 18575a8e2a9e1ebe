//! Blocks used forwards and backwards, on a device for two and a host above a disk.

use super::*;

pub(super) const HOST: Tier = Tier::Host;
pub(super) const DISK: Tier = Tier::Disk;

pub(super) const BLOCKS: usize = 40;
const ROUNDS: usize = 6;

pub(super) struct Sweep {
    pub pager: Pager,
    pub blocks: Vec<BlockId>,
    host: u64,
    disk: u64,
    /// Since the first two rounds.
    pub waited_for: Waited,
}

#[derive(Default)]
pub(super) struct Waited {
    pub loaded: u64,
    pub written: u64,
}

impl Sweep {
    pub fn new(policy: Policy, host: u64, disk: u64) -> Self {
        let mut pager = Pager::new(Limit::bytes(20), policy, Oversized::Refuse);
        let blocks = (0..BLOCKS).map(|_| pager.insert(10, Arena(0))).collect();
        Self { pager, blocks, host, disk, waited_for: Waited::default() }
    }

    pub fn rooms(&self) -> Rooms {
        // Copies in progress are held, a load ahead among them.
        let left = |room: u64, tier| Limit::bytes(room - self.pager.ledger().held(tier));
        Rooms { host: left(self.host, HOST), disk: left(self.disk, DISK), page: 1 }
    }

    pub fn operate(&mut self, block: BlockId) {
        self.pager.begin(&[block]).expect("legal operands");
        let before = self.pager.counters();
        loop {
            let rooms = self.rooms();
            match self.pager.next_step(&|| rooms).expect("there is room") {
                Step::Ready => break,
                step => take(&mut self.pager, step).expect("as it was asked"),
            }
        }
        let after = self.pager.counters();
        self.waited_for.loaded += after.disk.bytes_from_disk - before.disk.bytes_from_disk;
        self.waited_for.written += after.disk.bytes_to_disk - before.disk.bytes_to_disk;
    }

    /// Sweeps `ROUNDS` times, with `after` after each operation.
    pub fn run(mut self, mut after: impl FnMut(&mut Self, BlockId)) -> Self {
        for round in 0..ROUNDS {
            for n in (0..BLOCKS).chain((0..BLOCKS).rev()) {
                let block = self.blocks[n];
                self.operate(block);
                after(&mut self, block);
            }
            self.pager.mark_step();
            if round == 1 {
                self.waited_for = Waited::default();
            }
        }
        self
    }
}
