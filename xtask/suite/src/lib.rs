//! The size of a test run ([`size`]), and the needs of tests that a machine may not meet ([`Need`]).
//!
//! `cargo xtask test` sets the variables that this crate reads, and counts the tests that did not run. Without them a
//! test runs as in the quick suite, and reports unmet needs on standard error.

mod need;
mod size;

pub use need::{NOT_RUN, Need, REQUIRE};
pub use size::{SIZE, Size, cases, first, size};
