//! Device memory and page-locked memory: host memory between guards.

mod address_space;
mod device;
mod extents;
mod granules;
mod pinned;
mod pool;
mod rows;
mod written;

pub(crate) use address_space::{Owner, owner_of};
pub(crate) use device::{DeviceMemory, FRESH};
pub(crate) use pinned::PinnedMemory;
pub(crate) use rows::{Rows, copy, fill};
