//! Memory: device memory is host memory that guards surround and that is never handed out twice; page-locked memory
//! is host memory in a list of its own.

mod address_space;
mod device;
mod pinned;
mod pool;
mod rows;
mod written;

pub(crate) use address_space::{Owner, owner_of};
pub(crate) use device::{DeviceMemory, FRESH};
pub(crate) use pinned::PinnedMemory;
pub(crate) use rows::{Rows, copy, fill};
