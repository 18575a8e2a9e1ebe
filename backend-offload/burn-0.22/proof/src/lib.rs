//! Burn 0.22 programs and counting servers, for the tests of `offload-burn-22`.

pub mod cost;
pub mod counted;
pub mod programs;
