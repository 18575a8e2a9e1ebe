//! Memory below the device: host copies of blocks, and a disk.
//!
//! One [`HostPool`] serves all devices under one budget. A copy is a slab; a returned slab awaits the next copy of its
//! size. Pinned slabs (page-locked, several times faster over the link) come from the device's allocator. On refusal
//! ordinary memory serves, counted and logged once; its copies pass page-locked buffers.
//!
//! Each device's [`Tiers`] hold copies by block id.

mod aligned;
mod books;
mod bounce;
mod checksum;
mod copies;
mod disk;
mod extents;
#[cfg(target_os = "linux")]
mod hollow;
#[cfg(feature = "cube")]
mod lent;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod lines;
mod machine;
mod pool;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(not(target_os = "linux"))]
#[path = "no_ring.rs"]
mod ring;
mod shelves;
mod slab;
#[cfg(feature = "cube")]
mod staging;
mod system;
mod threads;
mod transfer;

#[cfg(feature = "cuda")]
pub use books::STAGING_BUFFERS;
pub(crate) use checksum::checksum;
#[cfg(any(test, feature = "cube"))]
pub(crate) use copies::Share;
pub use copies::Tiers;
pub(crate) use copies::{Below, Traffic};
pub(crate) use disk::{Disk, free_on};
pub use disk::{DiskSpeed, disk_speed};
#[cfg(test)]
pub(crate) use disk::{in_memory, scheduled};
pub(crate) use extents::ALIGNMENT;
pub use machine::{available_memory, control_group_limit};
pub(crate) use pool::HostPool;
pub use pool::{Draft, Lease};
#[cfg(feature = "cuda")]
pub(crate) use slab::PinnedMemory;
pub use slab::SlabSource;
#[cfg(feature = "cuda")]
pub use staging::StagingBuffer;
#[cfg(feature = "cube")]
pub use staging::StagingSource;
