//! The driver's pool, from which the runtime's own pools take memory and to which they give it back.
//!
//! The driver unmaps what is free in it whenever somebody waits for work, and mapping takes long. Memory goes back to it to come
//! again in other sizes, so it keeps as much as the budget allows, until the program trims the device.

use cubecl_common::device::DeviceId;
use cudarc::driver::{DriverError, result, sys};

/// Keeps so many bytes mapped, those in use included.
pub(super) fn keep(device: DeviceId, bytes: u64) -> Result<(), DriverError> {
    const THRESHOLD: sys::CUmemPool_attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let (pool, mut bytes) = (pool_of(device)?, bytes);
    // SAFETY: the pool is the driver's, and the attribute a number of 64 bits.
    unsafe { sys::cuMemPoolSetAttribute(pool, THRESHOLD, (&raw mut bytes).cast()) }.result()
}

/// Unmaps all that is free. Waits for the device, whose frees happen in the order of its work.
pub(super) fn give_back(device: DeviceId) -> Result<(), DriverError> {
    result::ctx::synchronize()?;
    // SAFETY: the pool is the driver's.
    unsafe { sys::cuMemPoolTrimTo(pool_of(device)?, 0) }.result()
}

fn pool_of(device: DeviceId) -> Result<sys::CUmemoryPool, DriverError> {
    let device = result::device::get(i32::from(device.index_id))?;
    let mut pool = std::ptr::null_mut();
    // SAFETY: `device` was returned by the driver, and `pool` can be written.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, device) }.result()?;
    Ok(pool)
}
