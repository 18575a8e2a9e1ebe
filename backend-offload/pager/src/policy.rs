//! The eviction policy: which block leaves the device. Pure: a decision over the last uses of blocks, nothing else.
//!
//! Training walks its memory in two shapes. Forward then backward is a palindrome: the block used last is needed first,
//! so the *least* recently used block should leave. From the optimizer step to the next forward pass it is a cyclic
//! sweep: the block used longest ago is needed next, so the least recently used block is the worst victim and the
//! *most* recently used one the best. [`Policy::Recency`] distinguishes the shapes by the blocks that come back: if
//! restored blocks are those that have been unused longest, it is a sweep.

/// How victims are chosen. Choices never change results, only how many bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Policy {
    /// Least recently used, turning to most recently used while the program sweeps over its memory.
    Recency,
    /// The block whose next use is furthest, as far as an earlier step foretells it; recency where the future is unknown.
    #[default]
    Planned,
    /// Least recently used, always. A baseline to measure against.
    LeastRecentlyUsed,
}

/// Blocks used in this many last operations are not most-recently-used victims: the next operations
/// usually read what the last ones wrote.
const WARM_OPERATIONS: u64 = 16;

/// How many restores in a row it takes to believe in a sweep, and as many to stop believing.
const CONVICTION: i32 = 8;

#[derive(Debug, Default)]
pub(crate) struct Recency {
    policy: Policy,
    /// Above zero: restores look like a sweep.
    sweeping: i32,
}

/// A block that may leave, in the policy's eyes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub index: u32,
    pub last_use: u64,
}

impl Recency {
    pub fn new(policy: Policy) -> Self {
        Self { policy, sweeping: 0 }
    }

    /// Learns from a block that had to come back: `older` of the `away` blocks still away have been unused
    /// for longer than it was.
    pub fn restored(&mut self, older: usize, away: usize) {
        if away < 2 {
            return;
        }
        let vote = if older * 2 < away { 1 } else { -1 };
        self.sweeping = (self.sweeping + vote).clamp(-CONVICTION, CONVICTION);
    }

    /// The victim's index.
    pub fn choose(&self, now: u64, candidates: &(impl Iterator<Item = Candidate> + Clone)) -> Option<u32> {
        let oldest = || candidates.clone().min_by_key(|c| (c.last_use, c.index));
        let chosen = match self.policy {
            Policy::Recency | Policy::Planned if self.sweeping > 0 => candidates
                .clone()
                .filter(|c| c.last_use + WARM_OPERATIONS < now)
                .max_by_key(|c| (c.last_use, c.index))
                .or_else(oldest),
            Policy::Recency | Policy::Planned | Policy::LeastRecentlyUsed => oldest(),
        };
        chosen.map(|c| c.index)
    }
}
