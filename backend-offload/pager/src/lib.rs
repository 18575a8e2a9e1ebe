//! Decides where blocks of memory live; moves none. A *block* is one base allocation with a [`BlockId`] and a size. An
//! *adapter* drives the pager:
//!
//! 1. [`Pager::begin`] names the operands of the next operation.
//! 2. [`Pager::next_step`] returns one step at a time, until [`Step::Ready`]. The adapter takes and reports it; moves
//!    by [`Pager::started`] and [`Pager::ended`]. Other steps and operations may run in between.
//! 3. The operation runs. [`Pager::wrote`] names each block that changed.
//!
//! [`Pager::prefetch`] names moves for later operations.
//!
//! Invariant: `resident + spare <= budget` before and after every step. *Spare* slices await reuse in the allocator;
//! moving blocks are resident. The sole exception, [`Oversized::RunAlone`], is counted.
//!
//! Decisions depend on program and budget alone (`every_decision_of_small_programs_is_the_one_on_record`). Hints and
//! policies change only how many bytes move (`the_program_may_say_who_leaves_first_and_last`).
//!
//! Operations of a program that fits allocate nothing (`operations_of_a_program_that_fits_allocate_nothing`); others
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
mod marked_steps;
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
mod rest;
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
pub use counters::{AheadCounts, Counters, DiskCounts, LinkCounts, MemoryCounts};
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

/// Treatment of an operation whose operands exceed the device budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Oversized {
    /// Refused, with the error `WorkingSet`.
    #[default]
    Refuse,
    /// Runs with nothing else resident, and counts as over budget.
    RunAlone,
}
