//! Promises of the crate as a Burn user meets them, on every door that is compiled in.

#[cfg(feature = "cube")]
mod allocations;
mod child;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cuda")]
mod cuda;
mod disk;
mod numbers;
mod operations;
mod programs;
mod requests;
#[cfg(feature = "router")]
mod router;
#[cfg(feature = "cuda")]
mod stand_in;

/// All scenarios that a child process can run.
fn scenarios() -> Vec<child::Scenario> {
    let mut scenarios = Vec::new();
    #[cfg(feature = "cube")]
    scenarios.extend(cube::scenarios());
    #[cfg(feature = "cuda")]
    scenarios.extend(cuda::scenarios());
    #[cfg(feature = "router")]
    scenarios.extend(router::scenarios());
    scenarios
}

/// Whether a test can run here. Where what it needs is missing it says so, straight to standard error, since what
/// goes through the print macros is shown only for tests that fail; and it fails if `required` is set to 1.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn present_or_not_run(present: bool, test: &str, required: &str, why: &str) -> bool {
    use std::io::Write;
    if !present {
        let required = std::env::var(required).is_ok_and(|value| value == "1");
        assert!(!required, "{test} has to run, but {why}");
        writeln!(std::io::stderr(), "NOT RUN: {test}: {why}").expect("standard error");
    }
    present
}
