//! Promises of the crate as a Burn user meets them, on every door that is compiled in.

#![cfg(all(feature = "test-util", any(feature = "router", feature = "wgpu")))]

mod child;
#[cfg(feature = "wgpu")]
mod cube;
#[cfg(feature = "cuda")]
mod cuda;
mod numbers;
mod operations;
mod programs;
#[cfg(feature = "router")]
mod router;

/// Everything a child process can be asked to do.
fn scenarios() -> Vec<child::Scenario> {
    let mut scenarios = Vec::new();
    #[cfg(feature = "wgpu")]
    scenarios.extend(cube::scenarios());
    #[cfg(feature = "router")]
    scenarios.extend(router::scenarios());
    scenarios
}

/// Says that a test did not run. Straight to standard error: what goes through the print macros is shown only
/// for tests that fail.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn not_run(test: &str, why: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "NOT RUN: {test}: {why}").expect("standard error");
}
