//! The backend that all examples run on, by feature.

/// CUDA.
#[cfg(feature = "cuda")]
pub type Inner = burn::backend::Cuda;
/// Vulkan, Metal or WebGPU.
#[cfg(all(feature = "wgpu", not(feature = "cuda")))]
pub type Inner = burn::backend::Wgpu;
/// The CPU, whose memory stands in for a device's.
#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
pub type Inner = burn::backend::Flex;

/// The device of [`Inner`].
pub type Device = <Inner as burn::tensor::backend::BackendTypes>::Device;
