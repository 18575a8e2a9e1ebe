//! The current operation: what it wants on the device, and how far it has come.

use crate::block::{Arena, BlockId};

/// One operation from [`Pager::begin`](crate::Pager::begin) to the next.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Counts operations; also the clock of last uses.
    pub number: u64,
    pub target: Target,
    pub driver: Driver,
    pub copies: Copies,
    pub garbage: Garbage,
}

/// Memory an operation asks for.
#[derive(Debug)]
pub(crate) enum Target {
    /// Blocks that must be on the device together. Those before `arrived` are there.
    Operands { blocks: Vec<BlockId>, arrived: usize },
    /// Room for this many bytes, which nobody takes yet.
    Room { bytes: u64, arena: Arena },
}

/// How the driver has answered requests for memory that the budget allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    /// It has not refused, or has been given memory back since.
    Willing,
    /// It refused: room has to be made beyond what the budget says.
    Refused,
    /// It refused, nothing was left to give up, and it is asked once more.
    LastRequest,
    /// It refused after the last request was made.
    RefusedAgain,
}

impl Driver {
    pub fn refuses(self) -> bool {
        matches!(self, Self::Refused | Self::RefusedAgain)
    }

    /// It refused memory.
    pub fn refused(self) -> Self {
        match self {
            Self::Willing | Self::Refused => Self::Refused,
            Self::LastRequest | Self::RefusedAgain => Self::RefusedAgain,
        }
    }

    /// It gave memory, or got some back.
    pub fn appeased(self) -> Self {
        match self {
            Self::Willing | Self::Refused => Self::Willing,
            Self::LastRequest | Self::RefusedAgain => Self::LastRequest,
        }
    }
}

/// Whether blocks whose copy failed have had their second chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// A block whose copy fails is passed over.
    FirstTry,
    /// All have failed once, and each is tried once more.
    SecondTry,
}

/// Whether dead blocks have been looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Garbage {
    Unsearched,
    /// Nothing dead is left: live blocks may be copied out.
    Collected,
}

impl Operation {
    /// The state before the first operation.
    pub fn none() -> Self {
        Self {
            number: 1,
            target: Target::Operands { blocks: Vec::new(), arrived: 0 },
            driver: Driver::Willing,
            copies: Copies::FirstTry,
            garbage: Garbage::Unsearched,
        }
    }

    /// Starts the next operation, which names no operand yet. The list of operands is used again, so that
    /// the common case allocates nothing.
    pub fn next(&mut self) -> &mut Vec<BlockId> {
        let blocks = match &mut self.target {
            Target::Operands { blocks, .. } => std::mem::take(blocks),
            Target::Room { .. } => Vec::new(),
        };
        *self = Self { number: self.number + 1, ..Self::none() };
        self.target = Target::Operands { blocks, arrived: 0 };
        let Target::Operands { blocks, .. } = &mut self.target else { unreachable!("set just above") };
        blocks.clear();
        blocks
    }

    pub fn operands(&self) -> &[BlockId] {
        match &self.target {
            Target::Operands { blocks, .. } => blocks,
            Target::Room { .. } => &[],
        }
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
