//! The eviction policy: a pure decision over last uses.
//!
//! Backward passes need the last-used block first: the *least* recently used one should leave. The optimizer step and
//! the next forward pass sweep: they need the longest-unused block first, so the *most* recently used one should leave.
//! [`Policy::Recency`] assumes a sweep when restored blocks are the longest unused.

/// The choice of victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Policy {
    /// Least recently used; in a sweep, most recently used.
    Recency,
    /// The block with the latest predicted need; recency without predictions.
    #[default]
    Planned,
    /// Always least recently used: a baseline.
    LeastRecentlyUsed,
}

/// Most-recently-used victims exclude blocks of this many last operations: their results are read next.
const WARM_OPERATIONS: u64 = 16;

/// Restores in a row that begin or end a sweep.
const CONVICTION: i32 = 8;

#[derive(Debug, Default)]
pub(crate) struct Recency {
    policy: Policy,
    /// Positive: restores look like a sweep.
    sweeping: i32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub index: u32,
    pub last_use: u64,
}

impl Recency {
    pub fn new(policy: Policy) -> Self {
        Self { policy, sweeping: 0 }
    }

    /// `older` of the `away` blocks still away were unused longer.
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
