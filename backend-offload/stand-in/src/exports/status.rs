//! Result codes, output pointers and stream handles.

use super::device::current_device;
use crate::{
    driver::Driver,
    findings::{Fault, Finding},
    handles::Stream,
};

#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    EccUncorrectable = 214,
    InvalidPtx = 218,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    NotSupported = 801,
}

impl Status {
    pub(super) fn result(self) -> Result<(), Self> {
        if self == Self::Success { Ok(()) } else { Err(self) }
    }
}

impl From<bool> for Status {
    fn from(ok: bool) -> Self {
        if ok { Self::Success } else { Self::InvalidValue }
    }
}

/// C callers promise that the pointer is null or writable.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(super) fn put(self, value: T) -> Status {
        if self.0.is_null() {
            return Status::InvalidValue;
        }
        // SAFETY: promised by the caller of the C function.
        unsafe { self.0.write(value) };
        Status::Success
    }
}

impl Driver {
    /// Zero is the default stream, of the current device. Reports an invalid handle.
    pub(super) fn stream(&self, handle: u64, call: &str) -> Result<Stream, Status> {
        if handle == 0 {
            let device = current_device(call)?;
            return Ok(Stream { id: self.handles.legacy, blocking: true, device });
        }
        let stream = self.handles.streams.get(&handle).copied();
        stream.ok_or_else(|| invalid_handle(handle, "stream", call))
    }
}

/// CUDA refuses events and functions on another device's stream.
pub(super) fn require_same_device(
    kind: &str,
    device: usize,
    stream: Stream,
    call: &str,
) -> Result<(), Status> {
    if device == stream.device {
        return Ok(());
    }
    let circumstances =
        format!("{call} names {kind} of device {device} and a stream of device {}", stream.device);
    Fault::new(Finding::InvalidHandle, circumstances).report();
    Err(Status::InvalidHandle)
}

pub(super) fn invalid_handle(handle: u64, kind: &str, call: &str) -> Status {
    let circumstances = format!("{call} names {handle:#x}, which is no {kind}, or one no more");
    Fault::new(Finding::InvalidHandle, circumstances).report();
    Status::InvalidHandle
}

pub(super) fn status(call: impl FnOnce() -> Result<(), Status>) -> Status {
    call().err().unwrap_or(Status::Success)
}
