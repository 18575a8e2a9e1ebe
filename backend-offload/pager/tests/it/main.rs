//! Promises of the pager on recorded training steps.

mod allocations;
mod steps;
