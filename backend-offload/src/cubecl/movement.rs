//! Moves buffers: the [`Device`] that paging drives. Only this file gives and takes device memory.

use super::copies::{CopyId, Upload};
use super::device::CubeDevice;
use super::failures::together;
use super::inner::InnerRuntime;
use super::streams::Use;
use super::transfer::{flat, shared};
use crate::journal::TARGET;
use crate::paging::{Device, MoveFailure, Paging, Progress, Transfer, panic_message};
use crate::tiers::Lease;
use cubecl_common::bytes::Bytes;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{ComputeServer, Handle};
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use pager::{BlockId, Outcome, Token};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes. Smaller memory may serve the runtime's own buffers.
const REMEMBERED: u64 = 64 << 10;

const TAKEN: &str = "its memory was just taken";

/// A quiet NaN in every float format.
const POISON: u8 = 0xff;

impl<R: InnerRuntime> CubeDevice<R> {
    fn note_last_use(
        &mut self,
        (device, stream, size): (&ManagedMemoryHandle, StreamId, u64),
        last_use: Option<Use>,
        copy: Option<CopyId>,
    ) {
        let index = self.streams.index(stream);
        if size >= REMEMBERED && self.copies.is_moving(index) {
            // A copy is no work of the stream, but paranoid mode overwrites memory.
            let last = match last_use {
                _ if copy.is_some() || self.settings.paging.paranoid => None,
                None => return,
                Some(last) => self.streams.number_of_own(stream, last),
            };
            let device = Handle::from_memory(device.clone(), stream, size);
            self.copies.release(&mut self.inner, (device, index), last);
        }
    }

    fn order_owner(
        &mut self,
        owner: StreamId,
        last_use: Option<Use>,
        copy: Option<CopyId>,
    ) -> Result<(), String> {
        if let Some(last) = last_use {
            self.order_after(owner, last);
        }
        self.order_after_copy(owner, copy)
    }

    fn forget(&mut self, paging: &mut Paging, id: BlockId) {
        let Some(buffer) = self.buffers.remove(id) else { return };
        let in_use = buffer.copy.filter(|copy| self.copies.uses_memory(*copy));
        let in_use = in_use.filter(|_| !self.injector.forgets_copies());
        let discarded = in_use.map_or(Ok(None), |_| paging.discard(id));
        // A discarded block's memory serves again after the copy.
        let copy = in_use.filter(|_| !matches!(discarded, Ok(Some(_))));
        if let Some(device) = &buffer.device {
            let memory = (device, buffer.stream, buffer.size);
            self.note_last_use(memory, buffer.last_use, copy);
        }
        let _ordered = self.order_owner(buffer.stream, buffer.last_use, copy);
        let removed = match (discarded, in_use, buffer.device) {
            (Ok(Some(token)), Some(copy), Some(device)) => {
                self.copies.discard(copy, token, device);
                Ok(())
            }
            (Ok(_), ..) => paging.remove(id),
            (Err(fault), ..) => Err(fault),
        };
        if let Err(fault) = removed {
            self.report_fault(paging, id, fault, "releasing a buffer");
        }
    }

    pub(super) fn hold_until_flushed(&mut self, bytes: u64, stream: StreamId) {
        if self.streams.queued_upload(stream, bytes) {
            self.release_uploads(stream);
        }
    }

    /// The runtime keeps the last two batches' host bytes, hence two flushes.
    fn release_uploads(&mut self, stream: StreamId) {
        self.streams.flushed_uploads(stream);
        let inner = &mut self.inner;
        let flushed = catch_unwind(AssertUnwindSafe(|| {
            together(inner.flush(stream).err().into_iter().collect(), inner.flush(stream))
        }));
        match flushed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.keep_error(stream, error),
            Err(panic) => {
                let message = panic_message(panic.as_ref());
                tracing::warn!(target: TARGET, "flushing a stream panicked: {message}");
            }
        }
    }

    fn copy_out(
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
            // Some runtimes return a stream's errors from any waiting call: try again.
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

    fn copy_in(
        &mut self,
        device: &ManagedMemoryHandle,
        stream: StreamId,
        copy: &Lease,
    ) -> Result<(), String> {
        let size = copy.bytes().len() as u64;
        let binding = Handle::from_memory(device.clone(), stream, size).binding();
        self.write_inside(flat(binding, size), shared(copy), stream)
            .and_then(|()| self.check_stream(stream))
            .map_err(|error| error.to_string())
    }

    fn overwrite(&mut self, device: &ManagedMemoryHandle, stream: StreamId, size: u64) {
        let binding = Handle::from_memory(device.clone(), stream, size).binding();
        let poison = Bytes::from_bytes_vec(vec![POISON; size as usize]);
        self.inner.write(vec![(flat(binding, size), poison)], stream);
    }

    fn release_memory(&mut self, id: BlockId) {
        let paranoid = self.settings.paging.paranoid;
        let buffer = self.buffers.get_mut(id);
        buffer.last_use = None;
        let (device, stream, size) = (buffer.device.take(), buffer.stream, buffer.size);
        if let Some(device) = device.filter(|_| paranoid) {
            self.overwrite(&device, stream, size);
        }
    }

    fn evict(
        &mut self,
        paging: &mut Paging,
        token: Token,
        id: BlockId,
        copies: bool,
    ) -> Result<Progress, MoveFailure> {
        let arriving = self.buffers.get_mut(id).copy.take();
        let evicted = self.evict_after(arriving, paging, (token, id), copies);
        if evicted.is_err() {
            // It stays, and its next user waits for what arrives.
            self.buffers.get_mut(id).copy = arriving;
        }
        evicted
    }

    fn evict_after(
        &mut self,
        arriving: Option<CopyId>,
        paging: &mut Paging,
        (token, id): (Token, BlockId),
        copies: bool,
    ) -> Result<Progress, MoveFailure> {
        let buffer = self.buffers.get(id);
        let device = buffer.device.clone().expect("a victim is on the device");
        let (stream, size, last_use) = (buffer.stream, buffer.size, buffer.last_use);

        if !copies {
            self.note_last_use((&device, stream, size), last_use, arriving);
        }
        let arrived = self.order_owner(stream, last_use, arriving);
        if !copies {
            return Ok(Progress::Landed);
        }
        arrived?;

        if self.injector.breaks_copy_out() {
            return Err("injected: the copy failed".to_owned().into());
        }
        let mut draft = paging.tiers().draft(size as usize);
        // Another device or the program may have taken the room.
        while draft.is_err() && self.reclaim_upload() {
            draft = paging.tiers().draft(size as usize);
        }
        let mut draft = draft?;
        if let Some(index) = self.copies_in_parallel(stream) {
            let buffer = (&device, stream, index);
            let last = last_use.filter(|_| arriving.is_none());
            let last = last.and_then(|last| self.streams.number_of_own(stream, last));
            let copy = self.copies.start_out(&mut self.inner, buffer, last, (token, draft))?;
            self.buffers.get_mut(id).copy = Some(copy);
            return Ok(Progress::UnderWay);
        }
        self.copy_out(&device, stream, &mut draft)?;
        paging.keep(id, draft);
        Ok(Progress::Landed)
    }

    /// Copies onto new memory of a block, beside the work of its stream, the one of `index`.
    pub(super) fn start_back(&mut self, id: BlockId, index: usize, upload: Upload) -> Result<(), String> {
        let buffer = self.buffers.get(id);
        let (device, stream) = (buffer.device.clone().expect(TAKEN), buffer.stream);
        let copy = self.copies.start_back(&mut self.inner, (&device, stream, index), upload)?;
        self.buffers.get_mut(id).copy = Some(copy);
        Ok(())
    }

    fn bring(&mut self, paging: &Paging, id: BlockId) -> Result<Progress, MoveFailure> {
        if self.injector.breaks_copy_in() {
            return Err("injected: the upload failed".to_owned().into());
        }
        let copy = paging.tiers().verified(id)?;
        let stream = self.buffers.get(id).stream;
        if let Some(index) = self.copies_in_parallel(stream) {
            self.start_back(id, index, Upload::Return(copy))?;
            return Ok(Progress::Landed);
        }
        let device = self.buffers.get(id).device.clone().expect(TAKEN);
        self.copy_in(&device, stream, &copy)?;
        self.hold_until_flushed(copy.bytes().len() as u64, stream);
        Ok(Progress::Landed)
    }
}

impl<R: InnerRuntime> Device for CubeDevice<R> {
    fn allocate(&mut self, id: BlockId) -> bool {
        if self.injector.refuses_allocation() {
            return false;
        }
        let (stream, size) = (self.buffers.get(id).stream, self.buffers.get(id).size);
        let memory = ManagedMemoryHandle::new();
        self.inner.initialize_memory(memory.clone(), size, stream);
        self.buffers.get_mut(id).device = Some(memory);
        true
    }

    fn start(
        &mut self,
        paging: &mut Paging,
        token: Token,
        transfer: Transfer,
    ) -> Result<Progress, MoveFailure> {
        match transfer {
            Transfer::Evict { block, copies } => self.evict(paging, token, block, copies),
            Transfer::Bring { block } => self.bring(paging, block),
        }
    }

    fn finish(&mut self, paging: &mut Paging, token: Token, outcome: Outcome) {
        let landed = self.copies.take_landed(token);

        match outcome {
            Outcome::Left { block, .. } => {
                if let Some(draft) = landed {
                    paging.keep(block, draft);
                    self.buffers.get_mut(block).copy = None;
                }
                self.release_memory(block);
            }
            Outcome::NotReturned { block } => self.release_memory(block),
            Outcome::Returned { block, bytes, from } => {
                if self.buffers.get(block).copy.is_none() {
                    let uploaded = self.streams.begin(self.buffers.get(block).stream);
                    self.buffers.get_mut(block).last_use = Some(uploaded);
                }
                if from.is_none() {
                    self.profile.took(block, bytes);
                }
            }
            Outcome::Rescued { block, current: true, .. } => {
                if let Some(draft) = landed {
                    paging.keep(block, draft);
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self) -> Option<(Token, Result<(), MoveFailure>)> {
        self.copies.ended().map(|(token, end)| (token, end.map_err(MoveFailure::from)))
    }

    fn wait(&mut self, token: Token) -> Result<(), MoveFailure> {
        Ok(self.copies.wait(token)?)
    }

    fn forget_if_dead(&mut self, paging: &mut Paging, block: BlockId) -> bool {
        let dead = self.buffers.get(block).user.is_free();
        if dead {
            self.forget(paging, block);
        }
        dead
    }

    fn sweep(&mut self, paging: &mut Paging) {
        for id in self.buffers.dead() {
            self.forget(paging, id);
        }
    }

    fn trim(&mut self) {
        self.profile.moved();
        self.copies.forget_marks();
        let streams: Vec<_> = self.streams.entered().collect();
        for stream in streams {
            // The driver takes the memory after this stream's work alone.
            self.wait_for_small_buffer_users(stream, stream);
            let inner = &mut self.inner;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| inner.memory_cleanup(stream))) {
                let message = panic_message(panic.as_ref());
                tracing::warn!(target: TARGET, "trimming device memory panicked: {message}");
            }
        }
    }

    fn release_ended(&mut self) {
        let streams: Vec<_> = self.streams.uploading().collect();
        for stream in streams {
            self.release_uploads(stream);
        }
        self.copies.release_ended();
    }

    fn reclaim_upload(&mut self) -> bool {
        if self.copies.end_oldest_upload() {
            return true;
        }
        let is_queued = self.streams.uploading().next().is_some();
        if is_queued {
            self.release_ended();
        }
        is_queued
    }

    fn reclaim_host(&mut self) {
        self.copies.wait_for_all();
        self.release_ended();
    }

    fn may_prefetch(&self) -> bool {
        !self.profile.is_sampling()
    }
}
