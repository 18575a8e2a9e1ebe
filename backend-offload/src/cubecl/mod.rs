//! The adapter for every CubeCL runtime: CUDA, Vulkan, Metal, WebGPU.
//!
//! # Why below Burn
//!
//! A CubeCL runtime has one server per device, on its own thread, for all allocations, launches, reads and writes.
//! [`OffloadServer`](server::OffloadServer) wraps it for [`OffloadRuntime`]: it sees all memory in true sizes, and
//! fusion, autotune and autodiff work unchanged. [`Paging`](crate::paging::Paging) decides;
//! [`CubeDevice`](device::CubeDevice) moves bytes.
//!
//! # Two handles per buffer
//!
//! Burn holds a *[logical]* handle, hidden from the runtime. The memory has a *physical* handle: taken at first use
//! from the allocating stream's pool, lost at eviction, replaced at the return. [`launch`] substitutes it.
//!
//! Buffers below `smallest_block` pass through. Steps that fit launch and allocate as on the plain runtime
//! (`a_step_that_fits_is_launched_and_allocated_as_on_the_plain_runtime`).
//!
//! # Streams
//!
//! A stream waits, on the device, for a buffer's last user ([`streams`]); the owner's stream waits before the memory is
//! read, reused or freed. Copies run on separate streams if possible ([`copy_streams`]). Otherwise, and in autotune's
//! samples, they run on the buffer's stream, and copies to the host block the device's thread.
//!
//! # Failures
//!
//! The runtime panics if it cannot allocate, launches return nothing, and errors surface at a stream's first
//! synchronisation. Hence `catch_unwind`, marks on unwritten buffers ([`failures`]), and errors kept for their stream.

mod adapter;
mod backends;
mod copies;
mod copy_streams;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod exchange;
mod failures;
#[cfg(feature = "wgpu")]
mod in_line;
mod inner;
mod io;
mod launch;
mod lent;
mod logical;
mod marks;
mod movement;
mod operands;
mod precision;
mod profile;
mod runtime;
mod server;
mod streams;
mod table;
mod tiles;
mod transfer;
mod unmeasured;
mod visibility;
#[cfg(feature = "wgpu")]
mod wgpu;

pub use adapter::CubeDoor;
#[cfg(feature = "cuda")]
pub use cuda::{CudaInstallation, CudaLibrary, CudaPart, cuda_capabilities, cuda_driver_found};
pub use inner::InnerRuntime;
pub(crate) use lent::lent;
pub use runtime::OffloadRuntime;
