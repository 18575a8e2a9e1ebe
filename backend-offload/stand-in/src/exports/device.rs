//! Start and exit, devices and contexts. A context's handle is its device's number plus one.

use std::{
    cell::Cell,
    ffi::{c_char, c_int, c_uint},
    ptr,
    sync::Once,
};

use super::{
    entry::call,
    status::{Out, Status},
};
use crate::{
    driver::check_all_guards,
    findings::{Fault, Finding},
    prices::CallKind,
    report, segfault,
    settings::settings,
};

pub(super) const VERSION: (c_int, c_int) = (12, 8);

extern "C" fn at_exit() {
    check_all_guards();
    report::write();
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> Status {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        _ = settings();
        segfault::install_handler();
        // SAFETY: a function without arguments that stays loaded.
        unsafe { libc::atexit(at_exit) };
    });
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> Status {
    version.put(VERSION.0 * 1000 + VERSION.1 * 10)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(error: c_int, name: Out<*const c_char>) -> Status {
    name.put(
        match error {
            0 => c"CUDA_SUCCESS",
            1 => c"CUDA_ERROR_INVALID_VALUE",
            2 => c"CUDA_ERROR_OUT_OF_MEMORY",
            101 => c"CUDA_ERROR_INVALID_DEVICE",
            200 => c"CUDA_ERROR_INVALID_IMAGE",
            201 => c"CUDA_ERROR_INVALID_CONTEXT",
            214 => c"CUDA_ERROR_ECC_UNCORRECTABLE",
            218 => c"CUDA_ERROR_INVALID_PTX",
            400 => c"CUDA_ERROR_INVALID_HANDLE",
            500 => c"CUDA_ERROR_NOT_FOUND",
            600 => c"CUDA_ERROR_NOT_READY",
            801 => c"CUDA_ERROR_NOT_SUPPORTED",
            _ => return Status::InvalidValue,
        }
        .as_ptr(),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(error: c_int, text: Out<*const c_char>) -> Status {
    text.put(
        match error {
            0 => c"no error",
            2 => c"out of memory",
            214 => c"a copy failed, because an option asks for that",
            _ => c"an error of the stand-in for CUDA",
        }
        .as_ptr(),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> Status {
    count.put(settings().device.count as c_int)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> Status {
    if exists(ordinal) { device.put(ordinal) } else { Status::InvalidDevice }
}

pub(super) fn exists(device: c_int) -> bool {
    (0..settings().device.count as c_int).contains(&device)
}

/// # Safety
/// `name` must have room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> Status {
    let computes = settings().device.computes;
    // The library allows dry runs on the second.
    let text: &[u8] = if computes { b"CUDA stand-in\0" } else { b"CUDA stand-in that computes nothing\0" };
    let length = text.len().min(length.max(0) as usize);
    // SAFETY: promised by the caller.
    unsafe { ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), length) };
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) -> Status {
    uuid.put([0x5a + device as u8; 16])
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, _device: c_int) -> Status {
    bytes.put(settings().memory.device as usize)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, _device: c_int) -> Status {
    let capability = settings().device.capability as c_int;
    value.put(match attribute {
        // Threads per block: in all, along x and y; along z.
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65535,
        8 => 48 << 10,
        97 => shared_memory(capability),
        10 => 32,
        16 => 4,
        40 => 2,
        75 => capability / 10,
        76 => capability % 10,
        115 => 1,
        _ => 0,
    })
}

/// Below 8.0, less than a card has.
pub(super) fn shared_memory(capability: c_int) -> c_int {
    let kilobytes = match capability {
        ..80 => 48,
        80 | 87 => 163,
        86 | 89 | 120.. => 99,
        _ => 227,
    };
    kilobytes << 10
}

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Reports a thread without a context.
pub(super) fn current_device(call: &str) -> Result<usize, Status> {
    let context = CURRENT.get();
    if context == 0 {
        Fault::new(Finding::NoContext, call).report();
        return Err(Status::InvalidContext);
    }
    Ok(context as usize - 1)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: c_int) -> Status {
    if exists(device) { context.put(device as u64 + 1) } else { Status::InvalidDevice }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Status {
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: u64) -> Status {
    report::count(|counters| counters.host.called("cuCtxSetCurrent"));
    CURRENT.set(context);
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Out<u64>) -> Status {
    context.put(CURRENT.get())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Status {
    call("cuCtxSynchronize", CallKind::Synchronise, |driver| {
        current_device("cuCtxSynchronize")?;
        Ok(driver.host_waits_for_all("cuCtxSynchronize")?)
    })
}
