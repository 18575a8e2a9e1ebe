//! Result codes, output pointers and stream handles.

use crate::{
    driver::Driver,
    findings::{Fault, Finding},
    handles::Stream,
    schedule::StreamId,
};

#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    InvalidDevice = 101,
    InvalidImage = 200,
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
    /// Zero is the default stream. Reports an invalid handle.
    pub(super) fn stream(&self, handle: u64, call: &str) -> Result<StreamId, Status> {
        if handle == 0 {
            return Ok(self.handles.legacy);
        }
        let stream = self.handles.streams.get(&handle).map(|Stream { id, .. }| *id);
        stream.ok_or_else(|| invalid_handle(handle, "stream", call))
    }
}

pub(super) fn invalid_handle(handle: u64, kind: &str, call: &str) -> Status {
    let circumstances = format!("{call} names {handle:#x}, which is no {kind}, or one no more");
    Fault::new(Finding::InvalidHandle, circumstances).report();
    Status::InvalidHandle
}

pub(super) fn status(call: impl FnOnce() -> Result<(), Status>) -> Status {
    call().err().unwrap_or(Status::Success)
}
