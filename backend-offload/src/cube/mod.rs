//! The door to every CubeCL runtime: CUDA, Vulkan, Metal, WebGPU.
//!
//! # Why below Burn
//!
//! A CubeCL runtime has one server per device, on a thread of its own, and every allocation, launch, read and
//! write of the device passes through it. [`OffloadServer`](server::OffloadServer) is a server over the
//! runtime's own, and [`OffloadRuntime`] a runtime that has it; to Burn both are ordinary. So activations,
//! gradients, optimizer state and kernels' scratch are all seen, with their true sizes, and fusion, autotune
//! and autodiff work as ever.
//!
//! # Two handles for each buffer
//!
//! Burn holds a *logical* handle, bound in [`logical`] and never shown to the runtime. The memory
//! behind it is a *physical* handle, known to us and the runtime only, which a buffer loses when it leaves the
//! device and gets anew when it returns. A launch names logical handles; [`launch`] makes their blocks
//! resident and rewrites the bindings to the physical ones. Physical memory always lives in the pool of the
//! stream the buffer was allocated on, and is taken at first use, not at allocation.
//!
//! # Streams
//!
//! Every thread has a stream. A stream that uses a buffer waits, on the device, for the stream that used it last
//! ([`streams`]); the owner's stream does so before the memory is read, reused or given back. Where the runtime allows
//! it, copies run on streams of their own beside the work ([`side`]). Elsewhere, and within autotune's samples, they run
//! on the buffer's own stream, which orders them with its work for free; the device's thread waits for copies to the
//! host.
//!
//! # What can go wrong
//!
//! The runtime panics where it cannot allocate, launches return nothing, and errors of a stream are handed to
//! whoever synchronises it first. Hence `catch_unwind` around the runtime's allocations and launches, marks on
//! buffers that were never written ([`failures`]), and errors kept for the stream they belong to.

mod backends;
#[cfg(feature = "cuda")]
mod cuda;
mod door;
mod exchange;
mod failures;
#[cfg(feature = "wgpu")]
mod in_line;
mod io;
mod launch;
mod logical;
mod marks;
mod precision;
mod profile;
mod room;
mod runtime;
mod server;
mod side;
mod streams;
mod table;
mod tiles;
mod transfer;
mod unmeasured;
mod visibility;
#[cfg(feature = "wgpu")]
mod wgpu;

#[cfg(feature = "cuda")]
pub use cuda::cuda_driver_found;
pub use door::CubeDoor;
pub use runtime::{InnerRuntime, OffloadRuntime};
