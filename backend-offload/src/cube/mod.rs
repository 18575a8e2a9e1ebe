//! The door to every CubeCL runtime.
mod arenas;
#[cfg(feature = "cuda")]
mod cuda;
mod door;
mod exchange;
mod failures;
mod io;
mod launch;
mod logical;
mod profile;
mod room;
mod runtime;
mod server;
mod table;
mod transfer;
mod visibility;
#[cfg(feature = "wgpu")]
mod wgpu;

pub use door::CubeDoor;
pub use runtime::{InnerRuntime, OffloadRuntime};
