//! Carries out the pager's steps: the only place where buffers change place.

use super::failures::together;
use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use super::transfer::checksum;
use crate::error::OffloadError;
use crate::journal::Event;
use crate::pager::{BlockId, Shortage, Step};
use crate::report::{self, panic_message};
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::ComputeServer;
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Written over device memory that a block has left, in paranoid mode: a quiet NaN in every float format.
const POISON: u8 = 0xff;

impl<R: InnerRuntime> OffloadServer<R> {
    /// Brings all operands onto the device.
    pub(super) fn make_resident(
        &mut self,
        operands: &[BlockId],
        operation: &str,
    ) -> Result<(), OffloadError> {
        if operands.is_empty() {
            return Ok(());
        }
        match self.pager.begin(operands) {
            Ok(true) => {}
            Ok(false) => {
                let start = Instant::now();
                let moved = self.pager.counters();
                let result = self.take_steps(operation);
                let now = self.pager.counters();
                // Memory for a buffer's first use is not a stall.
                if (now.bytes_in, now.bytes_out) != (moved.bytes_in, moved.bytes_out) {
                    self.stall += start.elapsed();
                    self.profile.moved(start.elapsed());
                }
                result?;
            }
            Err(shortage) => return Err(self.shortage(shortage, operation, None)),
        }
        Ok(())
    }

    fn take_steps(&mut self, operation: &str) -> Result<(), OffloadError> {
        let mut copy_failure = None;
        loop {
            let step = self.pager.next_step(self.settings.host.room());
            match step.map_err(|shortage| self.shortage(shortage, operation, copy_failure.as_deref()))? {
                Step::Ready => return Ok(()),
                Step::Bring { block, fill } => self.bring(block, fill)?,
                other => copy_failure = self.give_way(other).err().or(copy_failure),
            }
        }
    }

    /// Makes room for a block that is not brought yet. As far as it goes: it is a favour, not an operation.
    pub(super) fn clear_for(&mut self, block: BlockId) {
        self.pager.begin_favour(block);
        while let Ok(step) = self.pager.next_step(self.settings.host.room()) {
            match step {
                Step::Ready | Step::Bring { .. } => return,
                other => drop(self.give_way(other)),
            }
        }
    }

    /// Carries out a step that takes something off the device or the host.
    fn give_way(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Sweep => self.sweep(),
            Step::Trim => self.trim_device(),
            Step::DropCopy { block } => {
                self.table.get_mut(block).host = None;
                self.pager.copy_dropped(block);
                self.journal.record(Event::CopyDropped { bytes: self.pager.bytes(block) });
            }
            Step::Evict { block, .. } if self.table.get(block).user.is_free() => self.forget(block),
            Step::Evict { block, copy } => {
                return self.evict(block, copy).inspect_err(|_| self.pager.evict_failed(block));
            }
            Step::Bring { .. } | Step::Ready => {}
        }
        Ok(())
    }

    fn evict(&mut self, id: BlockId, copy: bool) -> Result<(), String> {
        let (device, stream, size, last_use) = {
            let buffer = self.table.get_mut(id);
            let device = buffer.device.clone().expect("a victim is on the device");
            (device, buffer.stream, buffer.size, buffer.last_use.take())
        };
        self.order_owner_after(stream, last_use);
        if copy {
            #[cfg(feature = "test-util")]
            if self.fault_copies.strikes(self.settings.faults.break_copy_out_every) {
                return Err("injected: the copy failed".to_owned());
            }
            let host = self.settings.host.clone();
            let copied = host
                .copy(size as usize, R::slabs(), |target| self.copy_out(&device, stream, target))?
                .ok_or("the host has no memory left for it")?;
            let buffer = self.table.get_mut(id);
            buffer.checksum = self.settings.paranoid.then(|| checksum(copied.bytes()));
            buffer.host = Some(copied);
        }
        if self.settings.paranoid {
            self.overwrite(&device, stream, size);
        }
        self.table.get_mut(id).device = None;
        self.pager.evicted(id, copy);
        self.journal.record(Event::Evicted { bytes: self.pager.bytes(id), copied: copy });
        Ok(())
    }

    fn overwrite(&mut self, device: &ManagedMemoryHandle, stream: StreamId, size: u64) {
        let binding = cubecl_core::server::Handle::from_memory(device.clone(), stream, size).binding();
        let poison = cubecl_common::bytes::Bytes::from_bytes_vec(vec![POISON; size as usize]);
        self.inner.write(vec![(super::transfer::flat(binding, size), poison)], stream);
    }

    fn bring(&mut self, id: BlockId, fill: bool) -> Result<(), OffloadError> {
        let (stream, size) = (self.table.get(id).stream, self.table.get(id).size);
        let Some(device) = self.allocate(stream, size) else {
            self.pager.device_refused();
            self.journal.record(Event::DeviceRefused { bytes: size });
            return Ok(());
        };
        if fill {
            let buffer = self.table.get(id);
            let copy = buffer.host.clone().expect("what is on the host has a copy there");
            if let Some(expected) = buffer.checksum {
                let found = checksum(copy.bytes());
                if found != expected {
                    return Err(OffloadError::HostCopyDamaged { bytes: size, expected, found });
                }
            }
            self.copy_in(&device, stream, &copy);
            self.journal.record(Event::Restored { bytes: self.pager.bytes(id) });
        }
        let uploaded = self.streams.begin(stream);
        let buffer = self.table.get_mut(id);
        buffer.device = Some(device);
        buffer.last_use = Some(uploaded);
        self.pager.brought(id);
        self.profile.allocated(self.pager.bytes(id));
        Ok(())
    }

    /// Device memory from the runtime, which panics where it cannot.
    fn allocate(&mut self, stream: StreamId, size: u64) -> Option<ManagedMemoryHandle> {
        let memory = ManagedMemoryHandle::new();
        let theirs = memory.clone();
        #[cfg(feature = "test-util")]
        {
            let faults = self.settings.faults;
            let refused = self.fault_allocations.strikes(faults.refuse_allocation_every);
            let exhausted = faults.refuse_allocations_after > 0
                && self.fault_allocations.count() > faults.refuse_allocations_after;
            if refused || exhausted {
                return None;
            }
        }
        let inner = &mut self.inner;
        catch_unwind(AssertUnwindSafe(|| inner.initialize_memory(theirs, size, stream)))
            .map_err(|panic| {
                tracing::warn!(
                    target: crate::journal::TARGET,
                    "the runtime refused {size} bytes: {}",
                    panic_message(panic.as_ref())
                );
            })
            .ok()
            .map(|()| memory)
    }

    /// Releases what nobody holds any more.
    pub(super) fn sweep(&mut self) {
        for id in self.table.dead() {
            self.forget(id);
        }
        self.pager.swept();
    }

    pub(super) fn forget(&mut self, id: BlockId) {
        if let Some(buffer) = self.table.remove(id) {
            // Its memory goes to whoever the owner's pool serves next.
            self.order_owner_after(buffer.stream, buffer.last_use);
            self.pager.remove(id);
        }
    }

    /// Gives the runtime's free slices back to the driver.
    pub(super) fn trim_device(&mut self) {
        let streams: Vec<_> = self.streams.entered().collect();
        for stream in streams {
            let inner = &mut self.inner;
            // On CUDA a cleanup only queues the frees; a flush performs them. The first flush lets go of the
            // uploads before the last ones, the second of those.
            let trimmed = catch_unwind(AssertUnwindSafe(|| {
                inner.memory_cleanup(stream);
                together(inner.flush(stream).err().into_iter().collect(), inner.flush(stream))
            }));
            match trimmed {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.keep_error(stream, error),
                Err(panic) => {
                    let message = panic_message(panic.as_ref());
                    tracing::warn!(target: crate::journal::TARGET, "trimming device memory panicked: {message}");
                }
            }
        }
        self.pager.trimmed();
        self.journal.record(Event::Trimmed);
    }

    fn shortage(&self, shortage: Shortage, operation: &str, copy_failure: Option<&str>) -> OffloadError {
        report::shortage(shortage, operation.to_owned(), &self.pager, &self.settings.host, copy_failure)
    }
}
