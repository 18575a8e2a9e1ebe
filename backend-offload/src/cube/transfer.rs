//! Bytes between device and host, through the runtime's own reads and writes.

use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use super::streams::Use;
use crate::host::HostCopy;
use crate::report::panic_message;
use cubecl_common::bytes::{AllocationController, AllocationProperty, Bytes};
use cubecl_common::future::block_on;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{Binding, ComputeServer, CopyDescriptor, Handle, ServerError};
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reads land in the runtime's own pinned pool, whose pages grow with the largest request.
const PIECE: u64 = 64 << 20;

impl<R: InnerRuntime> OffloadServer<R> {
    /// Copies the whole of `device` into `target`, waiting for it.
    pub(super) fn copy_out(
        &mut self,
        device: &ManagedMemoryHandle,
        stream: StreamId,
        target: &mut [u8],
    ) -> Result<(), String> {
        let size = target.len() as u64;
        for (n, piece) in target.chunks_mut(PIECE as usize).enumerate() {
            let start = n as u64 * PIECE;
            let end = size - start - piece.len() as u64;
            let bytes = self.read_piece(device, size, start, end, stream)?;
            piece.copy_from_slice(&bytes[..piece.len()]);
        }
        Ok(())
    }

    fn read_piece(
        &mut self,
        device: &ManagedMemoryHandle,
        size: u64,
        start: u64,
        end: u64,
        stream: StreamId,
    ) -> Result<Bytes, String> {
        let read = |server: &mut Self| -> Result<Bytes, ServerError> {
            let handle =
                Handle::from_memory(device.clone(), stream, size).offset_start(start).offset_end(end);
            let descriptor = flat(handle.binding(), size - start - end);
            let mut bytes = block_on(server.inner.read(vec![descriptor], stream))?;
            Ok(bytes.remove(0))
        };
        let mut attempt = || {
            catch_unwind(AssertUnwindSafe(|| read(self))).map_err(|panic| panic_message(panic.as_ref())).map(
                |result| {
                    // A runtime that returns a stream's errors from any read has now returned the
                    // program's to us: they are kept for the program, and the copy is tried again.
                    result.map_err(|error| {
                        let message = error.to_string();
                        self.keep_error(stream, error);
                        message
                    })
                },
            )
        };
        match attempt()? {
            Ok(bytes) => Ok(bytes),
            Err(_) => attempt()?,
        }
    }

    /// Queues the whole of `copy` to be written to `device`.
    pub(super) fn copy_in(&mut self, device: &ManagedMemoryHandle, stream: StreamId, copy: &HostCopy) {
        let size = copy.bytes().len() as u64;
        let binding = Handle::from_memory(device.clone(), stream, size).binding();
        self.inner.write(vec![(flat(binding, size), shared(copy))], stream);
    }

    /// Orders what the owner of a buffer does next after the last use by another stream.
    pub(super) fn order_owner_after(&mut self, owner: StreamId, last_use: Option<Use>) {
        if let Some(last) = last_use {
            self.order_after(owner, last);
        }
    }

    /// Waits on the host until the stream's work is done.
    pub(super) fn wait_for_stream(&mut self, stream: StreamId) {
        let inner = &mut self.inner;
        match catch_unwind(AssertUnwindSafe(|| block_on(inner.sync(stream)))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.keep_error(stream, error),
            Err(panic) => {
                let message = panic_message(panic.as_ref());
                tracing::warn!(target: crate::journal::TARGET, "waiting for a stream panicked: {message}");
            }
        }
    }
}

/// The bytes a binding covers, as one row.
pub(super) fn flat(binding: Binding, len: u64) -> CopyDescriptor {
    CopyDescriptor::new(binding, [len as usize].into(), [1].into(), 1)
}

/// The copy's bytes for an upload, without copying them. The upload keeps them alive.
fn shared(copy: &HostCopy) -> Bytes {
    let len = copy.bytes().len();
    // SAFETY: all `len` bytes of a slab are initialised.
    unsafe { Bytes::from_controller(Box::new(ReadOnly(copy.clone())), len) }
}

struct ReadOnly(HostCopy);

impl AllocationController for ReadOnly {
    fn alloc_align(&self) -> usize {
        1
    }

    fn property(&self) -> AllocationProperty {
        if self.0.is_pinned() { AllocationProperty::Pinned } else { AllocationProperty::Native }
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        unreachable!("a runtime only reads the bytes it is given to write")
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        let bytes = self.0.bytes();
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and initialised bytes are valid for it.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
    }
}

/// A cheap mixing checksum; it guards against our own mistakes, not against an adversary.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0x9e37_79b9_7f4a_7c15, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (sum ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
    })
}
