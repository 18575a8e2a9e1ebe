//! Decides which blocks of memory live where, and moves none of them.
//!
//! A *block* is one base allocation, identified by a [`BlockId`] and known by its size alone. The pager never
//! sees a device, a tensor, a clock or a file. An *adapter* drives it:
//!
//! 1. [`Pager::begin`] names the operands of the next operation.
//! 2. [`Pager::next_step`] names the next step. The adapter takes it and reports the result, until the step is
//!    [`Step::Ready`]. A move is reported twice: [`Pager::started`] and [`Pager::ended`]. In between, other steps may be
//!    taken and other operations may run.
//! 3. The operation runs. [`Pager::wrote`] names each block that changed.
//!
//! Once an operation is ready, [`Pager::prefetch`] names moves for operations to come, for adapters whose moves run in
//! parallel with operations.
//!
//! Each call names one step, because a step can fail, and because the memory it frees is known only when it ends.
//!
//! Budget invariant: `resident + spare <= budget` before and after every step, where *spare* are slices the
//! device allocator keeps for reuse, and blocks on their way in either direction are resident. The one
//! exception is an operation whose own operands exceed the budget under [`Oversized::RunAlone`]; it is counted.
//!
//! A report that contradicts the books is a [`Fault`] and changes nothing, in release too.
//!
//! Decisions follow from the program and the budget, not from addresses, hashing or timing
//! (`every_decision_of_small_programs_is_the_one_on_record`).
//!
//! Policies, forecasts and hints change how many bytes move, never a value. They refuse no operation
//! (`the_program_may_say_who_leaves_first_and_last`).
//!
//! Operations of a program that fits allocate nothing (`operations_of_a_program_that_fits_allocate_nothing`). Others
//! allocate at most once (`operations_of_a_program_of_which_half_fits_allocate_at_most_once_each`).

mod block;
mod blocks;
mod copies;
mod counters;
mod eviction;
mod eviction_order;
mod fault;
mod forecast;
mod history;
mod host_room;
mod ledger;
mod limit;
mod listeners;
mod load_ahead;
mod memory_profile;
mod outcome;
mod pager;
mod policy;
mod prefetch;
mod recent_activity;
mod recording;
mod repeats;
mod replacements;
mod request;
mod room;
mod rooms;
mod schedule;
mod step;
mod steps;
#[cfg(test)]
mod tests;
mod view;
mod write_ahead;

pub use block::{Arena, Block, BlockId, Place, Preference, Tier, Token};
pub use copies::TierSet;
pub use counters::Counters;
pub use fault::{Fault, Shortage, Stop};
pub use ledger::Ledger;
pub use limit::Limit;
pub use outcome::Outcome;
pub use pager::Pager;
pub use policy::Policy;
pub use prefetch::Link;
pub use recording::{BadRecording, Event, Operand, Recorder, Recording};
pub use rooms::Rooms;
pub use steps::Step;

/// The fate of an operation whose own operands are larger than the device budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Oversized {
    /// It is refused, with the error `WorkingSet`.
    #[default]
    Refuse,
    /// It runs with nothing else resident, and is counted as over budget. For budgets that are a wish, not a
    /// wall.
    RunAlone,
}
