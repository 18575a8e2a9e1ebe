//! The backend that all examples run on, by feature.

/// CUDA, else Vulkan, Metal or WebGPU, else the CPU, whose memory then stands in for a device's.
#[cfg(feature = "cuda")]
pub type Inner = burn::backend::Cuda;
/// See above.
#[cfg(all(feature = "wgpu", not(feature = "cuda")))]
pub type Inner = burn::backend::Wgpu;
/// See above.
#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
pub type Inner = burn::backend::Flex;

/// The device of [`Inner`].
pub type Device = <Inner as burn::tensor::backend::BackendTypes>::Device;
