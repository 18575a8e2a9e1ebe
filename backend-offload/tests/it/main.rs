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
