//! Errors: impossible reports, too little memory.

use crate::block::{Block, BlockId, Place, Token};
use std::fmt;

/// A report that contradicts the pager's books. Changes nothing, in release too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The block was removed, or never existed.
    UnknownBlock(BlockId),
    /// The move has ended or never started.
    UnknownMove(Token),
    /// The block's place forbids that.
    Illegal {
        /// The transition.
        attempted: &'static str,
        /// The block.
        block: BlockId,
        /// Where it is.
        place: Place,
    },
    /// The reported step moves no block.
    NoMove,
    /// A sum of bytes would fall below zero or exceed `u64`.
    Ledger {
        /// The sum.
        account: &'static str,
        /// Its bytes.
        holds: u64,
        /// Bytes to be added or subtracted.
        change: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownBlock(id) => write!(f, "block {}.{} does not exist", id.index, id.generation),
            Self::UnknownMove(token) => write!(f, "move {} is not under way", token.0),
            Self::NoMove => write!(f, "the step that started moves no block"),
            Self::Illegal { attempted, block, place } => {
                write!(f, "block {}.{} cannot be {attempted}: it is {place:?}", block.index, block.generation)
            }
            Self::Ledger { account, holds, change } => {
                write!(f, "the {account} account holds {holds} bytes and cannot change by {change}")
            }
        }
    }
}

impl std::error::Error for Fault {}

pub(crate) fn illegal(attempted: &'static str, block: BlockId, found: &Block) -> Fault {
    Fault::Illegal { attempted, block, place: found.place() }
}

/// Why an operation cannot run. No contents are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Operands and pinned blocks exceed the device budget.
    WorkingSet {
        /// Bytes of the operands.
        wanted: u64,
        /// Bytes of other pinned blocks.
        pinned: u64,
    },
    /// Blocks must leave, but the tier is full.
    TierFull {
        /// Bytes the operation needs.
        wanted: u64,
    },
    /// Blocks must leave, but copying them out failed.
    CopyOut {
        /// Bytes the operation needs.
        wanted: u64,
    },
    /// The driver refuses memory within the budget, and nothing is left to evict.
    Device {
        /// Bytes the operation needs.
        wanted: u64,
    },
}

/// Why an operation stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Memory does not suffice.
    Shortage(Shortage),
    /// A report contradicts the books.
    Fault(Fault),
}

impl From<Shortage> for Stop {
    fn from(shortage: Shortage) -> Self {
        Self::Shortage(shortage)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}
