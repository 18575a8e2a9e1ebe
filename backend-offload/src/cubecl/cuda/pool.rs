//! The driver's memory pool, below the runtime's pools.
//!
//! By default the driver unmaps free memory at every synchronisation; mapping is slow. So the pool keeps the budget
//! mapped until the program trims the device
//! (`memory_given_back_to_the_driver_stays_mapped_until_the_program_trims_the_device`).

use cubecl_common::device::DeviceId;
use cudarc::driver::{DriverError, result, sys};

/// Keeps up to `bytes` mapped, including used ones.
pub(super) fn keep(device: DeviceId, bytes: u64) -> Result<(), DriverError> {
    const THRESHOLD: sys::CUmemPool_attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let (pool, mut bytes) = (pool_of(device)?, bytes);
    // SAFETY: the pool belongs to the driver, and the attribute is a 64-bit number.
    unsafe { sys::cuMemPoolSetAttribute(pool, THRESHOLD, (&raw mut bytes).cast()) }.result()
}

/// Unmaps free memory. Waits for the device, which frees in work order.
pub(super) fn give_back(device: DeviceId) -> Result<(), DriverError> {
    result::ctx::synchronize()?;
    // SAFETY: the pool belongs to the driver.
    unsafe { sys::cuMemPoolTrimTo(pool_of(device)?, 0) }.result()
}

fn pool_of(device: DeviceId) -> Result<sys::CUmemoryPool, DriverError> {
    let device = result::device::get(i32::from(device.index_id))?;
    let mut pool = std::ptr::null_mut();
    // SAFETY: `device` was returned by the driver, and `pool` can be written.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, device) }.result()?;
    Ok(pool)
}
