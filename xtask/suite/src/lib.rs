//! The size of a test run ([`size`]), and needs that a machine may not meet ([`Need`]).
//!
//! `cargo xtask test` sets the variables read here, and counts tests that did not run. Without them, tests run as in
//! the quick suite.

mod need;
mod size;

pub use need::{NOT_RUN, Need, REQUIRE};
pub use size::{SIZE, Size, cases, first, size};
