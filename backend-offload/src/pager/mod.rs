//! The core: decides which blocks of memory live where, and moves none of them.
//!
//! A *block* is one base allocation, identified by a [`BlockId`] and known by its size alone. The pager never
//! sees a device, a tensor, a clock or a file. A door (the CubeCL server, the router client) drives it:
//!
//! 1. [`Pager::begin`] names the operands of the next operation;
//! 2. [`Pager::next_step`] says what to do next, and the door does it and reports how it went
//!    ([`Pager::evicted`], [`Pager::brought`], [`Pager::trimmed`], …) until the step is [`Step::Ready`];
//! 3. the operation runs; [`Pager::wrote`] tells which blocks changed; [`Pager::finish`] ends it.
//!
//! One step at a time, because each can fail, and because what a step frees is known only once it is done.
//! Budget invariant: `resident + spare <= budget` before and after every step, where *spare* are slices the
//! device allocator keeps for reuse. The one exception is an operation whose own operands exceed the budget
//! under [`Oversized::RunAlone`]; it is counted.

mod block;
mod ledger;
mod policy;
#[cfg(test)]
mod property;
mod steps;

pub(crate) use block::{Arena, BlockId, Place};
pub use policy::Policy;
pub(crate) use steps::{Pager, Shortage, Step};

/// What happens to an operation whose own operands are larger than the device budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Oversized {
    /// It is refused with [`OffloadError::WorkingSet`](crate::OffloadError::WorkingSet).
    #[default]
    Refuse,
    /// It runs with nothing else resident, and is counted in
    /// [`Stats::over_budget`](crate::Stats::over_budget). For budgets that are a wish, not a wall.
    RunAlone,
}

/// Counts of what the pager decided. Exact: tests compare them with equality.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub operations: u64,
    pub evictions: u64,
    pub clean_drops: u64,
    pub restores: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    pub trims: u64,
    pub over_budget: u64,
    pub device_refusals: u64,
    pub largest_operation: u64,
}
