//! The size of a test run ([`size`]), needs that a machine may not meet ([`Need`]), and pages that tests hold
//! ([`assert_reference`]).
//!
//! `cargo xtask test` sets the variables read here, and counts tests that did not run. Without them, tests run as in
//! the quick suite.

mod command_line;
mod need;
mod reference;
mod size;

pub use command_line::command_line;
pub use need::{NOT_RUN, Need, REQUIRE};
pub use reference::{WRITE_REFERENCE, assert_reference};
pub use size::{SIZE, Size, cases, first, schedule_seeds, size};
