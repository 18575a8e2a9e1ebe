//! Questions of tests about their run: how large it is ([`size`]), and whether a machine has all they need ([`Need`]).
//!
//! `cargo xtask test` sets the variables that are read here, and counts what did not run. Without them a test runs as in
//! the quick suite, and says on standard error what it lacks.

mod need;
mod size;

pub use need::{NOT_RUN, Need, REQUIRE};
pub use size::{SIZE, Size, cases, first, size};
