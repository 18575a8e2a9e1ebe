//! The tiers below the device: host bytes by block, where contents wait while they are not on a device.
//!
//! One [`HostPool`] serves every device of the process, under one limit. Copies are slabs of exactly the
//! block's size; a slab given back is kept for the next copy of that size, and idle slabs are the first to go
//! when room runs short. Pinned slabs (page-locked memory, several times faster over the link) come from the
//! device's own allocator; when it refuses, ordinary memory serves, which is counted and said once.
//!
//! Below the host is the [`Disk`], if the program named one: space in a file of its own, taken before anything sinks to it.
//!
//! Each device has its [`Tiers`]: its blocks' copies by block id, with checksums where it distrusts them. *That*
//! a block is in a tier is for the pager to say; here are only the bytes.

mod aligned;
mod books;
mod bounce;
mod checksum;
mod copies;
mod disk;
mod extents;
#[cfg(target_os = "linux")]
mod hollow;
#[cfg(all(test, target_os = "linux"))]
mod lines;
mod machine;
mod pool;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(not(target_os = "linux"))]
#[path = "no_ring.rs"]
mod ring;
mod slab;
mod system;
mod threads;
mod transfer;

pub(crate) use checksum::checksum;
#[cfg(any(test, feature = "cube"))]
pub(crate) use copies::Share;
pub(crate) use copies::{Below, Tiers, Traffic};
pub(crate) use disk::{Disk, free_on};
pub use disk::{DiskSpeed, disk_speed};
#[cfg(test)]
pub(crate) use disk::{in_memory, scheduled};
pub(crate) use extents::ALIGNMENT;
pub use machine::available_memory;
pub(crate) use pool::{Draft, HostPool, Lease};
#[cfg(feature = "cuda")]
pub(crate) use slab::PinnedMemory;
pub(crate) use slab::SlabSource;
