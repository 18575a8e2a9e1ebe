//! Moves under way: started, not yet landed. Each holds its bytes in the ledger until it ends.

use crate::block::{Arena, Block, BlockId, Place, Tier, Token};
use crate::fault::Fault;
use std::collections::BTreeMap;

/// One copy between the device and a tier, or the release of device memory without one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub block: BlockId,
    pub bytes: u64,
    pub arena: Arena,
    pub direction: Direction,
    pub fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Off the device; into this tier unless a tier has the contents already or nothing was written.
    Out { copy: Option<Tier> },
    /// Onto the device; from this tier unless nothing was written.
    In { from: Option<Tier> },
}

/// Changes to the block since the move started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing.
    Awaited,
    /// An operation took it back before it had left; the copy being made is current.
    Rescued,
    /// As before, and it was written since: the copy being made is of no use.
    Overwritten,
    /// The program dropped it; a tier may hold a copy from before the move.
    Removed { clean: Option<Tier>, below: bool },
}

/// How a move ended, for the door to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The block is off the device: its device memory is to be given up. `copied` names the tier that has
    /// taken its contents; without one, nothing was copied.
    Left {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
        /// The tier the move copied to.
        copied: Option<Tier>,
    },
    /// An operation took the block back before it had left: its device memory stays its own. The copy just
    /// made is to be kept if it is `current`, and thrown away otherwise.
    Rescued {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
        /// The tier the move copied to.
        copied: Option<Tier>,
        /// Nothing was written since.
        current: bool,
    },
    /// The block is on the device.
    Returned {
        /// The block.
        block: BlockId,
        /// Its size.
        bytes: u64,
        /// The tier its contents came from, which keeps them; `None` for a block never written.
        from: Option<Tier>,
    },
    /// It could not leave: its device memory stays its own, a copy begun is to be thrown away.
    Stayed {
        /// The block.
        block: BlockId,
    },
    /// It could not return: the device memory taken for it is to be given up.
    NotReturned {
        /// The block.
        block: BlockId,
    },
    /// The program dropped it while it moved: device memory and copies are to be thrown away.
    Removed {
        /// The block, whose id no longer names anything.
        block: BlockId,
    },
}

/// All moves under way, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    under_way: BTreeMap<Token, Move>,
    started: u64,
}

impl Moves {
    pub fn start(&mut self, id: BlockId, block: &Block, direction: Direction) -> Token {
        let token = Token(self.started);
        self.started += 1;
        let (bytes, arena) = (block.bytes, block.arena);
        self.under_way.insert(token, Move { block: id, bytes, arena, direction, fate: Fate::Awaited });
        token
    }

    pub fn get(&self, token: Token) -> Result<Move, Fault> {
        self.under_way.get(&token).copied().ok_or(Fault::UnknownMove(token))
    }

    pub fn end(&mut self, token: Token) {
        self.under_way.remove(&token);
    }

    pub fn set_fate(&mut self, token: Token, fate: Fate) {
        if let Some(moving) = self.under_way.get_mut(&token) {
            moving.fate = fate;
        }
    }

    /// The block's contents changed on the device.
    pub fn overwritten(&mut self, token: Token) {
        self.set_fate(token, Fate::Overwritten);
    }

    pub fn oldest(&self) -> Option<Token> {
        self.under_way.keys().next().copied()
    }

    /// The moves that free device memory when they land, oldest first.
    pub fn departing(&self) -> impl Iterator<Item = (Token, &Move)> {
        self.under_way
            .iter()
            .filter(|(_, moving)| moving.frees_memory())
            .map(|(token, moving)| (*token, moving))
    }

    /// Bytes of device memory that they free.
    pub fn departing_bytes(&self) -> u64 {
        self.departing().map(|(_, moving)| moving.bytes).sum()
    }
}

impl Move {
    fn frees_memory(&self) -> bool {
        match self.fate {
            Fate::Awaited => matches!(self.direction, Direction::Out { .. }),
            Fate::Removed { .. } => true,
            Fate::Rescued | Fate::Overwritten => false,
        }
    }

    /// The tier that holds bytes for a removed block until its move ends.
    pub fn held_by(&self) -> Option<Tier> {
        match (self.direction, self.fate) {
            (Direction::Out { copy: Some(tier) }, _) => Some(tier),
            (_, Fate::Removed { clean, .. }) => clean,
            _ => None,
        }
    }
}

impl Place {
    /// The tier that holds the block's contents now, in whichever way.
    pub(crate) fn tier(self) -> Option<Tier> {
        match self {
            Self::Nowhere => None,
            Self::Device { clean } | Self::Leaving { clean } => clean,
            Self::Returning { from } => from,
            Self::Away(tier) => Some(tier),
        }
    }
}
