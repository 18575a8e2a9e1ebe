//! Copies between device and host through the runtime's own reads and writes.

use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use super::streams::Use;
use crate::report::panic_message;
use crate::tiers::Lease;
use cubecl_common::bytes::{AllocationController, AllocationProperty, Bytes};
use cubecl_common::future::block_on;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{Binding, ComputeServer, CopyDescriptor, Handle, ServerError};
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl<R: InnerRuntime> OffloadServer<R> {
    /// Copies all of `device` and waits.
    pub(super) fn copy_out(
        &mut self,
        device: &ManagedMemoryHandle,
        stream: StreamId,
        target: &mut [u8],
    ) -> Result<(), String> {
        let size = target.len() as u64;
        let mut attempt = || {
            let source = Handle::from_memory(device.clone(), stream, size);
            let inner = &mut self.inner;
            let copied = catch_unwind(AssertUnwindSafe(|| R::copy_out(inner, source, stream, target)))
                .map_err(|panic| panic_message(panic.as_ref()))?;
            // Some runtimes return a stream's errors from any call that waits. Keep this one for the program, and try
            // again.
            Ok::<_, String>(copied.map_err(|error| {
                let message = error.to_string();
                self.keep_error(stream, error);
                message
            }))
        };
        match attempt()? {
            Ok(()) => Ok(()),
            Err(_) => attempt()?,
        }
    }

    /// Queues an upload of `copy` and asks the stream for its outcome.
    pub(super) fn copy_in(
        &mut self,
        device: &ManagedMemoryHandle,
        stream: StreamId,
        copy: &Lease,
    ) -> Result<(), String> {
        let size = copy.bytes().len() as u64;
        let binding = Handle::from_memory(device.clone(), stream, size).binding();
        self.write_and_check(flat(binding, size), shared(copy), stream).map_err(|error| error.to_string())
    }

    /// Orders the owner's next work after the use by another stream.
    pub(super) fn order_owner_after(&mut self, owner: StreamId, last_use: Option<Use>) {
        if let Some(last) = last_use {
            self.order_after(owner, last);
        }
    }

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

/// Reads piece by piece: the runtime's pool for reads grows its pages with the largest request.
pub(super) fn read_in_pieces<S: ComputeServer>(
    server: &mut S,
    source: &Handle,
    stream: StreamId,
    target: &mut [u8],
) -> Result<(), ServerError> {
    const PIECE: u64 = 64 << 20;
    let size = target.len() as u64;
    for (n, piece) in target.chunks_mut(PIECE as usize).enumerate() {
        let (start, len) = (n as u64 * PIECE, piece.len() as u64);
        let handle = source.clone().offset_start(start).offset_end(size - start - len);
        let bytes = block_on(server.read(vec![flat(handle.binding(), len)], stream))?;
        piece.copy_from_slice(&bytes[0][..piece.len()]);
    }
    Ok(())
}

pub(super) fn flat(binding: Binding, len: u64) -> CopyDescriptor {
    CopyDescriptor::new(binding, [len as usize].into(), [1].into(), 1)
}

/// Shares the copy's bytes with an upload, which keeps them alive.
fn shared(copy: &Lease) -> Bytes {
    let len = copy.bytes().len();
    // SAFETY: all `len` bytes of a slab are initialised.
    unsafe { Bytes::from_controller(Box::new(ReadOnly(copy.clone())), len) }
}

struct ReadOnly(Lease);

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
