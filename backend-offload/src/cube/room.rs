//! Moves buffers: the CubeCL adapter's part of the loop in [`drive`](crate::drive). Only this file gives a buffer
//! device memory or takes it away.

use super::copy_streams::CopyId;
use super::failures::together;
use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use super::streams::Use;
use crate::drive::{self, Device, MoveFailure, Progress};
use crate::error::OffloadError;
use crate::journal::{Journal, TARGET};
use crate::report::{Counts, panic_message};
use crate::tiers::{Lease, Tiers};
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{ComputeServer, Handle};
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use pager::{BlockId, Fault, Outcome, Pager, Tier, Token};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Smallest size, in bytes, whose last use is recorded. Smaller memory may serve the runtime's own buffers, whose uses
/// this crate cannot see.
const REMEMBERED: u64 = 64 << 10;

/// Overwrites the device memory of evicted blocks in paranoid mode: a quiet NaN in every float format.
const POISON: u8 = 0xff;

impl<R: InnerRuntime> OffloadServer<R> {
    pub(super) fn make_resident(
        &mut self,
        operands: &[BlockId],
        operation: &str,
    ) -> Result<(), OffloadError> {
        if operands.is_empty() {
            return Ok(());
        }
        self.profile.used(operands);
        drive::make_resident(self, operands, &|| operation.to_owned())
    }

    /// Releases the buffers that no handle names.
    pub(super) fn sweep(&mut self) {
        drive::sweep(self);
    }

    /// Waits for all copies that run in parallel with the work.
    pub(super) fn finish_copies(&mut self) {
        self.copies.wait_for_all();
        drive::complete_ended(self);
    }

    /// Returns the runtime's free slices to the driver.
    pub(super) fn trim_device(&mut self) {
        drive::trim(self);
    }

    /// Records the last use of a buffer's memory before it is released: copies to the same memory wait for that use.
    fn note_last_use(
        &mut self,
        (device, stream, size): (&ManagedMemoryHandle, StreamId, u64),
        last_use: Option<Use>,
        copy: Option<CopyId>,
    ) {
        let index = self.streams.index(stream);
        if size >= REMEMBERED && self.copies.is_moving(index) {
            // Copies are not work of the stream, and paranoid mode overwrites the memory: the last use is unknown.
            let last = match last_use {
                _ if copy.is_some() || self.settings.paranoid => None,
                // An unused buffer adds nothing to the record of its memory.
                None => return,
                Some(last) => self.streams.number_of_own(stream, last),
            };
            let device = Handle::from_memory(device.clone(), stream, size);
            self.copies.release(&mut self.inner, (device, index), last);
        }
    }

    fn forget(&mut self, id: BlockId) {
        if let Some(buffer) = self.table.remove(id) {
            if let Some(device) = &buffer.device {
                let memory = (device, buffer.stream, buffer.size);
                self.note_last_use(memory, buffer.last_use, buffer.copy);
            }
            // The owner's pool reuses the memory, so the owner's stream waits for the last use.
            self.order_owner_after(buffer.stream, buffer.last_use);
            self.order_after_copy(buffer.stream, buffer.copy);
            self.tiers.remove(id);
            if let Err(fault) = self.pager.remove(id) {
                self.report_fault(id, fault, "releasing a buffer");
            }
        }
    }

    /// Reports inconsistent books. The buffer's contents count as failed from here on.
    pub(super) fn report_fault(&mut self, id: BlockId, fault: Fault, operation: &str) {
        let (operation, fault) = (operation.to_owned(), fault.to_string());
        let mut error = Arc::new(OffloadError::Bookkeeping { operation, fault });
        if let Some(stream) = self.table.find_mut(id).map(|buffer| buffer.stream) {
            error = self.new_failure(error, stream);
        } else {
            self.count_failure(&error);
        }
        if let Some(buffer) = self.table.find_mut(id) {
            buffer.failed = Some(error);
        }
    }

    /// Makes the runtime drop the host bytes of finished uploads. It keeps those of the last two batches, so it takes
    /// two flushes.
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

    fn overwrite(&mut self, device: &ManagedMemoryHandle, stream: StreamId, size: u64) {
        let binding = Handle::from_memory(device.clone(), stream, size).binding();
        let poison = cubecl_common::bytes::Bytes::from_bytes_vec(vec![POISON; size as usize]);
        self.inner.write(vec![(super::transfer::flat(binding, size), poison)], stream);
    }

    /// The stream's index if its buffers are copied in parallel with its work. Samples of autotune time kernels alone,
    /// so no copy runs in parallel with them.
    pub(super) fn copies_in_parallel(&self, stream: StreamId) -> Option<usize> {
        let index = self.streams.index(stream);
        (self.settings.overlap && self.copies.serves(index) && !self.profile.is_sampling()).then_some(index)
    }

    fn release_memory(&mut self, id: BlockId) {
        let paranoid = self.settings.paranoid;
        let buffer = self.table.get_mut(id);
        buffer.last_use = None;
        let (device, stream, size) = (buffer.device.take(), buffer.stream, buffer.size);
        if let Some(device) = device.filter(|_| paranoid) {
            self.overwrite(&device, stream, size);
        }
    }
}

fn buffer_bytes(copy: &Lease) -> u64 {
    copy.bytes().len() as u64
}

impl<R: InnerRuntime> Device for OffloadServer<R> {
    fn pager(&mut self) -> &mut Pager {
        &mut self.pager
    }

    fn tiers(&mut self) -> &mut Tiers {
        &mut self.tiers
    }

    fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    fn counts(&self) -> &Counts {
        &self.counts
    }

    fn forget_if_dead(&mut self, block: BlockId) -> bool {
        let dead = self.table.get(block).user.is_free();
        if dead {
            self.forget(block);
        }
        dead
    }

    fn remove_dead(&mut self) {
        for id in self.table.dead() {
            self.forget(id);
        }
    }

    fn trim_allocator(&mut self) {
        self.profile.moved();
        self.copies.forget_marks();
        let streams: Vec<_> = self.streams.entered().collect();
        for stream in streams {
            // The driver takes the memory once this stream's work has ended, even if other streams still read it.
            self.wait_for_small_buffer_users(stream, stream);
            let inner = &mut self.inner;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| inner.memory_cleanup(stream))) {
                let message = panic_message(panic.as_ref());
                tracing::warn!(target: TARGET, "trimming device memory panicked: {message}");
            }
            // On CUDA a cleanup only queues the frees; a flush performs them.
            self.release_uploads(stream);
        }
    }

    fn reclaim_host(&mut self) {
        self.copies.wait_for_all();
        let streams: Vec<_> = self.streams.entered().collect();
        for stream in streams {
            self.release_uploads(stream);
        }
        self.copies.release_ended();
    }

    fn leave(&mut self, token: Token, id: BlockId, copy: Option<Tier>) -> Result<Progress, MoveFailure> {
        let buffer = self.table.get_mut(id);
        let device = buffer.device.clone().expect("a victim is on the device");
        let (stream, size, last_use) = (buffer.stream, buffer.size, buffer.last_use);
        let arriving = buffer.copy.take();

        if copy.is_none() {
            self.note_last_use((&device, stream, size), last_use, arriving);
        }
        self.order_owner_after(stream, last_use);
        self.order_after_copy(stream, arriving);

        if copy.is_some() {
            if self.injector.breaks_copy_out() {
                return Err("injected: the copy failed".to_owned().into());
            }
            let mut draft = self.tiers.draft(size as usize).or_else(|_| {
                self.reclaim_host();
                self.tiers.draft(size as usize)
            })?;
            if let Some(index) = self.copies_in_parallel(stream) {
                let buffer = (&device, stream, index);
                let last = last_use.filter(|_| arriving.is_none());
                let last = last.and_then(|last| self.streams.number_of_own(stream, last));
                let copy = self.copies.start_out(&mut self.inner, buffer, last, (token, draft))?;
                self.table.get_mut(id).copy = Some(copy);
                return Ok(Progress::UnderWay);
            }
            self.copy_out(&device, stream, &mut draft)?;
            self.tiers.keep(id, draft);
        }
        Ok(Progress::Landed)
    }

    /// The runtime panics if it cannot allocate.
    fn take_memory(&mut self, id: BlockId) -> bool {
        if self.injector.refuses_allocation() {
            return false;
        }
        let (stream, size) = (self.table.get(id).stream, self.table.get(id).size);
        let memory = ManagedMemoryHandle::new();
        self.inner.initialize_memory(memory.clone(), size, stream);
        self.table.get_mut(id).device = Some(memory);
        true
    }

    fn fill(&mut self, _: Token, id: BlockId, _: Tier) -> Result<Progress, MoveFailure> {
        if self.injector.breaks_copy_in() {
            return Err("injected: the upload failed".to_owned().into());
        }
        let copy = self.tiers.verified(id)?;
        let buffer = self.table.get(id);
        let (device, stream) = (buffer.device.clone().expect("its memory was just taken"), buffer.stream);
        if let Some(index) = self.copies_in_parallel(stream) {
            let copy = self.copies.start_back(&mut self.inner, (&device, stream, index), copy)?;
            self.table.get_mut(id).copy = Some(copy);
            return Ok(Progress::Landed);
        }
        self.copy_in(&device, stream, &copy)?;
        if self.streams.queued_upload(stream, buffer_bytes(&copy)) {
            self.release_uploads(stream);
        }
        Ok(Progress::Landed)
    }

    fn settle(&mut self, token: Token, outcome: Outcome) {
        let landed = self.copies.take_landed(token);
        match outcome {
            Outcome::Left { block, .. } => {
                if let Some(draft) = landed {
                    self.tiers.keep(block, draft);
                    self.table.get_mut(block).copy = None;
                }
                self.release_memory(block);
            }
            Outcome::NotReturned { block } => self.release_memory(block),
            Outcome::Returned { block, bytes, from } => {
                // A copy that runs in parallel is waited for through `copy`, not through `last_use`.
                if self.table.get(block).copy.is_none() {
                    let uploaded = self.streams.begin(self.table.get(block).stream);
                    self.table.get_mut(block).last_use = Some(uploaded);
                }
                if from.is_none() {
                    self.profile.took(block, bytes);
                }
            }
            Outcome::Rescued { block, current: true, .. } => {
                if let Some(draft) = landed {
                    self.tiers.keep(block, draft);
                }
            }
            _ => {}
        }
    }

    fn ended(&mut self) -> Option<(Token, Result<(), MoveFailure>)> {
        self.copies.ended().map(|(token, end)| (token, end.map_err(MoveFailure::from)))
    }

    fn wait(&mut self, token: Token) -> Result<(), MoveFailure> {
        Ok(self.copies.wait(token)?)
    }

    fn looks_ahead(&mut self) -> bool {
        !self.profile.is_sampling()
    }

    fn waited(&mut self, time: Duration) {
        self.counts.stall += time;
        self.profile.moved();
    }
}
