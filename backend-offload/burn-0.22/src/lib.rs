//! Spills tensors of Burn 0.22 programs, by a server that wraps the device's own.
//!
//! Burn 0.22 closes the backend type; `cubecl::Device::client()` chooses each device's server. The patched `cubecl`
//! asks this crate first, so a program changes one call:
//!
//! ```no_run
//! use burn::tensor::{Device, Tensor};
//! use offload_burn_22::{OffloadConfig, WgpuDevice, install, stats};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = WgpuDevice::default();
//! install(&gpu, OffloadConfig::new().device_budget("2GiB".parse()?))?;
//!
//! let device = Device::from(gpu.clone()).autodiff();
//! let tensor = Tensor::<2>::ones([1024, 1024], &device);
//! println!("{:?} {:?}", tensor.sum().into_scalar::<f32>(), stats(&gpu));
//! # Ok(())
//! # }
//! ```
//!
//! Pager, tiers and paging come from `backend-offload`; this crate moves bytes. `docs/guide/burn-0.22.md` lists what it
//! lacks: copies in parallel with kernels, prefetches, hints, host memory for optimizers, and autotune's guard.

mod device;
mod failures;
mod launch;
mod movement;
mod passed;
mod release;
mod server;
mod wgpu;

pub use backend_offload::{Budget, Oversized, Policy};
pub use backend_offload::{OffloadConfig, OffloadError, Stats};
pub use cubecl_runtime::device::{WgpuBackend, WgpuDevice, WgpuDeviceKind};
pub use passed::Passed;
pub use release::LaunchMode;
pub use server::OffloadServer;
pub use wgpu::{configure, install, mark_step, set_device_budget, stats};
