//! Memory pools, one per device. A pool's handle is the device's number plus one.

use std::ffi::{c_int, c_void};

use super::{
    device::exists,
    entry::enter,
    status::{Out, Status, invalid_handle, status},
};
use crate::{prices::CallKind, report};

/// Bytes that stay mapped when the host waits.
const RELEASE_THRESHOLD: c_int = 4;

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: c_int) -> Status {
    if exists(device) { pool.put(device as u64 + 1) } else { Status::InvalidDevice }
}

/// # Safety
/// `value` must point to a 64-bit number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(pool: u64, attribute: c_int, value: *const c_void) -> Status {
    status(|| {
        let device = device_of(pool, "cuMemPoolSetAttribute")?;
        if attribute != RELEASE_THRESHOLD || value.is_null() {
            return Err(Status::NotSupported);
        }
        // SAFETY: promised by the caller.
        let threshold = unsafe { value.cast::<u64>().read() };
        enter("cuMemPoolSetAttribute", CallKind::Other)?.device.pool(device).release_threshold = threshold;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: u64, mapped: usize) -> Status {
    status(|| {
        let device = device_of(pool, "cuMemPoolTrimTo")?;
        let mut driver = enter("cuMemPoolTrimTo", CallKind::Other)?;
        let unmapped = driver.device.unmap(device, mapped as u64);
        driver.charge_for_unmapping(unmapped);
        report::count(|counters| counters.device.trims += 1);
        Ok(())
    })
}

fn device_of(pool: u64, call: &str) -> Result<usize, Status> {
    let device = c_int::try_from(pool).unwrap_or(0) - 1;
    if exists(device) { Ok(device as usize) } else { Err(invalid_handle(pool, "memory pool", call)) }
}
