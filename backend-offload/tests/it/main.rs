//! Promises of the crate as a Burn user meets them, on every adapter that is compiled in: the package `backend-offload`
//! compiles them with its own for the CPU and for CUDA, and `on-vulkan` with the one for Vulkan.

#[cfg(feature = "cube")]
mod allocations;
mod child;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cuda")]
mod cuda;
mod disk;
mod folders;
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
