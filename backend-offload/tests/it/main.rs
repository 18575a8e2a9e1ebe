//! The crate's promises: `offload-tests` compiles them for the CPU and CUDA, `on-vulkan` for Vulkan.

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
