//! Burn programs that outgrow their GPU keep running, with the same numbers.
//!
//! Change the backend type and set a budget, nothing else:
//!
//! ```
//! # #[cfg(feature = "router")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use backend_offload::{Offload, OffloadConfig, stats};
//! use burn::tensor::Tensor;
//! # use burn_flex::{Flex, FlexDevice};
//!
//! type Inner = Flex; // Cuda or Wgpu on a machine with a GPU
//! type B = Offload<Inner>; // Autodiff<Offload<Inner>> to train
//!
//! let device = FlexDevice;
//! OffloadConfig::new()
//!     .device_budget("512KiB".parse()?)
//!     .host_budget("1GiB".parse()?)
//!     .install::<Inner>(&device)?;
//!
//! // A mebibyte of tensors on a device that may hold half a mebibyte.
//! let rows: Vec<Tensor<B, 2>> = (0..8).map(|n| Tensor::full([128, 256], n as f32, &device)).collect();
//! let sum = rows.into_iter().reduce(|sum, row| sum + row).expect("eight");
//! assert_eq!(sum.max().into_scalar(), 28.0);
//!
//! let stats = stats::<Inner>(&device);
//! assert!(stats.evictions > 0 && stats.device.peak <= 512 << 10);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "router"))]
//! # fn main() {}
//! ```
//!
//! # What moves
//!
//! The unit is the **base allocation**, called a block: a tensor's memory with all its views. Fusion, autotune and
//! autodiff work above it, unchanged. Activations, gradients, optimizer state and kernels' scratch memory are blocks.
//! Buffers below 64 KiB never move or count.
//!
//! # When
//!
//! Blocks move only under pressure. An operation's blocks are made resident before it runs; without room in the budget,
//! others are evicted first. An eviction copies nothing if the host copy is current (*clean*) or the block was never
//! written. While everything fits, a launch costs a few microseconds more.
//!
//! A block is in one of four places. In motion, it counts on both sides:
//!
//! | place | meaning | leaves by |
//! |---|---|---|
//! | nowhere | allocated by the program, not touched yet | first use |
//! | device, dirty | the only copy of its contents | a copy to the host |
//! | device, clean | the host holds the same contents | nothing to copy |
//! | host | not on the device | its next use |
//!
//! # Promises
//!
//! - **Numbers do not change.** Blocks return bit for bit, in the same layout, to the same kernels. Hints and
//!   predictions decide only *when* bytes move.
//! - **The budget holds before memory is taken.** Used and spare bytes of the allocator never exceed it. Its floor is
//!   the largest single operation ([`Stats::largest_launch`]). A larger operation is refused by name.
//! - **A failure is reported once, to the thread that caused it.** If a launch cannot run, reads of its outputs, or of
//!   values computed from them, return the [`OffloadError`]. So does the next synchronisation of its stream. Reads
//!   never return stale bytes, and later operations work.
//! - **Memory comes back.** Dropping the last tensor of a block frees its bytes on every tier.
//!
//! The [`guide`] explains budgets, speed and limits.
//!
//! # Adapters
//!
//! The core decides; two adapters move bytes. One (features `cuda`, `wgpu`, `vulkan`, `metal`) wraps any CubeCL
//! runtime's server. The other (feature `router`) wraps the CPU backend `Flex`, whose heap plays the device.

#![cfg_attr(
    not(feature = "cube"),
    expect(
        dead_code,
        reason = "pins, bindings and allocators that pool are CubeCL's; without an adapter nothing drives the core"
    )
)]
#![cfg_attr(
    feature = "adapter",
    expect(missing_docs, reason = "the core is public for an adapter outside, which reads its source")
)]
#![cfg_attr(
    not(any(feature = "cube", feature = "router", feature = "adapter")),
    expect(unused_imports, reason = "without an adapter nothing drives the core but its own tests")
)]

#[cfg(feature = "burn")]
mod backend;
mod bytes;
mod config;
#[cfg(feature = "cube")]
mod cubecl;
mod disk_memory;
mod error;
mod faults;
#[doc = include_str!("../GUIDE.md")]
pub mod guide {
    #[doc = include_str!("../BUDGETS.md")]
    pub mod budgets {}
}
#[cfg(feature = "router")]
mod flex;
#[cfg(feature = "burn")]
mod hints;
mod host_memory;
mod journal;
mod paging;
mod registry;
mod stats;
mod tiers;
mod timeline;
mod trace_file;

#[cfg(feature = "burn")]
#[doc(hidden)]
pub use backend::Decoding;
#[cfg(feature = "burn")]
pub use backend::{
    Door, Managed, Offload, Offloadable, Spilling, host_memory, in_place, largest_holders, mark_step, probe,
    ready, reset_peaks, set_device_budget, stats, trim, watch_step, watched_step, with_device_budget,
    works_in_place,
};
#[cfg(all(feature = "burn", feature = "test-util"))]
pub use backend::{events, runtime_peaks};
/// The core for an adapter outside of this crate. No promise holds across releases.
#[cfg(feature = "adapter")]
#[doc(hidden)]
pub mod adapter {
    pub use crate::paging::{Device, MoveFailure, Paging, PagingSettings, Progress, Transfer, panic_message};
    pub use crate::registry::{DeviceKey, Settings, install, prepare, start};
    pub use crate::tiers::{Draft, Lease, SlabSource};
    pub use pager;
}
pub use bytes::{Budget, BudgetError, Bytes};
pub use config::{DEFAULT_DEVICE_SHARE, DEFAULT_HOST_SHARE, OffloadConfig, dry_run_requested};
#[cfg(feature = "cube")]
pub use cubecl::{CubeDoor, InnerRuntime, OffloadRuntime};
#[cfg(feature = "cuda")]
pub use cubecl::{CudaInstallation, CudaLibrary, CudaPart, cuda_capabilities, cuda_driver_found};
pub use disk_memory::{DiskMemory, DiskPieces, PageBuffer};
pub use error::{Holder, OffloadError, Situation};
#[cfg(any(test, feature = "test-util"))]
pub use faults::DiskFault;
#[cfg(feature = "test-util")]
pub use faults::{Faults, RuntimePeaks};
#[cfg(feature = "burn")]
pub use hints::{prefer, prefer_module};
pub use host_memory::{HostBuffer, HostMemory};
#[cfg(feature = "test-util")]
pub use journal::Event;
pub use pager::{Oversized, Policy, Preference, Tier};
pub use registry::{DeviceFacts, DeviceMemory};
pub use stats::{Stats, TierStats};
pub use tiers::available_memory as available_host_memory;
pub use tiers::{DiskSpeed, control_group_limit, disk_speed};
pub use timeline::Stretch;
