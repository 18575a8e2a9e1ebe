//! The host tier: where the contents of blocks wait while they are not on a device.
//!
//! One tier serves every device of the process, under one limit. Copies are slabs of exactly the block's
//! size; a slab given back is kept for the next copy of that size, and idle slabs are the first to go when
//! room runs short. Pinned slabs (page-locked memory, several times faster over the link) come from the
//! device's own allocator; when it refuses, ordinary memory serves, which is counted and said once.

mod machine;
mod slab;
mod tier;

pub use machine::available_memory;
#[cfg(feature = "cuda")]
pub(crate) use slab::PinnedMemory;
pub(crate) use slab::SlabSource;
pub(crate) use tier::{HostCopy, HostTier};
