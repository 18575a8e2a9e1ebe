//! Copies by the runtime's own reads and writes.

use crate::tiers::{Draft, Lease};
use cubecl_common::bytes::{AllocationController, AllocationProperty, Bytes};
use cubecl_common::future::block_on;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{Binding, ComputeServer, CopyDescriptor, Handle, ServerError};
use std::mem::MaybeUninit;

/// The runtime's pool for reads grows by the largest request.
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

pub(super) fn shared(copy: &Lease) -> Bytes {
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
        property(self.0.is_pinned())
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        unreachable!("a runtime only reads the bytes it is given to write")
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        memory(self.0.bytes())
    }
}

/// Host memory counts while the bytes live.
pub(super) fn written(draft: Draft) -> Bytes {
    let len = draft.len();
    // SAFETY: all `len` bytes of a slab are initialised.
    unsafe { Bytes::from_controller(Box::new(Counted(draft)), len) }
}

struct Counted(Draft);

impl AllocationController for Counted {
    fn alloc_align(&self) -> usize {
        1
    }

    fn property(&self) -> AllocationProperty {
        property(self.0.is_pinned())
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes: &mut [u8] = &mut self.0;
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and the caller keeps the bytes initialised.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        memory(&self.0)
    }
}

fn property(is_pinned: bool) -> AllocationProperty {
    if is_pinned { AllocationProperty::Pinned } else { AllocationProperty::Native }
}

fn memory(bytes: &[u8]) -> &[MaybeUninit<u8>] {
    // SAFETY: `MaybeUninit<u8>` has the layout of `u8`.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
}
