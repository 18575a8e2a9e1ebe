//! No ring where there is no `io_uring`.

use super::transfer::Transfer;
use std::io;
use std::ptr::NonNull;

/// None there can be.
pub(super) enum Ring {}

impl Ring {
    pub(super) fn open(_: &mut [u8]) -> io::Result<Self> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    pub(super) fn is_of_use(&self) -> bool {
        match *self {}
    }

    pub(super) unsafe fn start(&mut self, _: &Transfer<'_>, _: NonNull<[u8]>, _: u64) -> Option<usize> {
        match *self {}
    }

    pub(super) fn landed(&mut self, _: usize) -> io::Result<usize> {
        match *self {}
    }
}
