//! The current operation: the memory it wants, and its progress.

use crate::block::{Arena, BlockId};
use crate::rest::Rest;

/// One operation from [`Pager::begin`](crate::Pager::begin) to the next.
#[derive(Debug)]
pub(crate) struct Request {
    /// Counts operations: the clock of last uses.
    number: u64,
    wanted: Wanted,
    driver: Driver,
    rest: Rest,
    /// Blocks with failed copies are tried once more.
    second_try: bool,
    swept: bool,
    swept_at: u64,
    /// Blocks and bytes inserted since the last sweep.
    unswept: (u64, u64),
}

#[derive(Debug)]
enum Wanted {
    /// Blocks needed together; the first `arrived` are on the device.
    Operands { blocks: Vec<BlockId>, arrived: usize },
    /// Free room, for no block.
    Room { bytes: u64, arena: Arena },
}

/// The driver's answers to requests within the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    /// No refusal, or memory given back since.
    Willing,
    /// Room must be made beyond the budget.
    Refused,
    /// Refused with nothing left to evict; asked once more.
    LastRequest,
    /// Refused the last request too.
    RefusedAgain,
}

impl Driver {
    pub fn refuses(self) -> bool {
        matches!(self, Self::Refused | Self::RefusedAgain)
    }

    pub fn refused(self) -> Self {
        match self {
            Self::Willing | Self::Refused => Self::Refused,
            Self::LastRequest | Self::RefusedAgain => Self::RefusedAgain,
        }
    }

    pub fn appeased(self) -> Self {
        match self {
            Self::Willing | Self::Refused => Self::Willing,
            Self::LastRequest | Self::RefusedAgain => Self::LastRequest,
        }
    }
}

/// Once dead blocks may hold this part of the device, a sweep pays.
const DEAD_PART: u64 = 32;

impl Request {
    pub fn none() -> Self {
        Self {
            number: 1,
            wanted: Wanted::Operands { blocks: Vec::new(), arrived: 0 },
            driver: Driver::Willing,
            rest: Rest::default(),
            second_try: false,
            swept: false,
            swept_at: 0,
            unswept: (0, 0),
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    fn begin(&mut self) {
        self.number += 1;
        self.driver = Driver::Willing;
        (self.second_try, self.swept) = (false, false);
    }

    /// Returns an empty list to reuse for operands.
    pub fn next(&mut self) -> Vec<BlockId> {
        self.begin();
        let Wanted::Operands { blocks, .. } = &mut self.wanted else { return Vec::new() };
        let mut blocks = std::mem::take(blocks);
        blocks.clear();
        blocks
    }

    pub fn name(&mut self, blocks: Vec<BlockId>, arrived: usize) {
        self.wanted = Wanted::Operands { blocks, arrived };
    }

    pub fn next_room(&mut self, bytes: u64, arena: Arena) {
        self.begin();
        self.wanted = Wanted::Room { bytes, arena };
    }

    pub fn room(&self) -> Option<(u64, Arena)> {
        match self.wanted {
            Wanted::Room { bytes, arena } => Some((bytes, arena)),
            Wanted::Operands { .. } => None,
        }
    }

    pub fn operands(&self) -> &[BlockId] {
        match &self.wanted {
            Wanted::Operands { blocks, .. } => blocks,
            Wanted::Room { .. } => &[],
        }
    }

    pub fn arrived(&self) -> usize {
        match self.wanted {
            Wanted::Operands { arrived, .. } => arrived,
            Wanted::Room { .. } => 0,
        }
    }

    pub fn set_arrived(&mut self, count: usize) {
        if let Wanted::Operands { arrived, .. } = &mut self.wanted {
            *arrived = count;
        }
    }

    pub fn driver(&self) -> Driver {
        self.driver
    }

    pub fn note_refusal(&mut self) {
        self.driver = self.driver.refused();
        self.rest.begin(self.number);
    }

    pub fn driver_has_rested(&self) -> bool {
        self.rest.is_over(self.number)
    }

    pub fn appease_driver(&mut self) {
        self.driver = self.driver.appeased();
    }

    pub fn ask_last(&mut self) {
        self.driver = Driver::LastRequest;
    }

    pub fn grants_second_try(&mut self) -> bool {
        !std::mem::replace(&mut self.second_try, true)
    }

    pub fn is_swept(&self) -> bool {
        self.swept
    }

    pub fn note_sweep(&mut self) {
        (self.swept, self.swept_at, self.unswept) = (true, self.number, (0, 0));
    }

    pub fn note_insertion(&mut self, bytes: u64) {
        self.unswept = (self.unswept.0 + 1, self.unswept.1.saturating_add(bytes));
    }

    /// A sweep visits all blocks: many make it rarer.
    pub fn sweep_is_due(&self, most_blocks: u64) -> bool {
        self.number - self.swept_at > most_blocks / 64
    }

    pub fn sweep_pays(&self, blocks: u64, resident: u64) -> bool {
        let (inserted, bytes) = self.unswept;
        inserted >= 64.max(blocks / 8) || bytes >= (resident / DEAD_PART).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_gets_one_last_request_in_an_operation() {
        let refused = Driver::Willing.refused();
        assert!(refused.refuses() && !refused.appeased().refuses());
        let last = Driver::LastRequest;
        assert!(!last.refuses() && last.refused().refuses());
        assert_eq!(last.refused().appeased(), Driver::LastRequest, "a trim does not earn another one");
    }
}
