//! Reads and writes from the host, and raw resources.

use super::copies::{Upload, yield_once};
use super::copy_streams::Rows;
use super::device::CubeDevice;
use super::failures::read_error;
use super::inner::{InnerRuntime, Resource};
use super::lent::taken_back;
use super::server::OffloadServer;
use super::table::Named;
use super::transfer::{flat, written};
use crate::error::OffloadError;
use crate::paging::{Paging, panic_message};
use crate::tiers::Share;
use cubecl_common::backtrace::BackTrace;
use cubecl_common::bytes::{AllocationProperty, Bytes};
use cubecl_common::future::DynFut;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{Binding, ComputeServer, CopyDescriptor, Handle, ServerError};
use cubecl_runtime::memory_management::optimal_align;
use cubecl_runtime::storage::ManagedResource;
use pager::{BlockId, Place};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const READ: &str = "reading a tensor";
const WRITE: &str = "writing a tensor";

/// Bytes. The events of a smaller upload would take longer than its copy.
const UPLOADED: u64 = 1 << 20;

type Contents = DynFut<Result<Vec<Bytes>, ServerError>>;

type OnDevice = (usize, CopyDescriptor, Named);

impl Rows {
    /// For row-major layouts with contiguous rows, which the runtime can read.
    fn of(descriptor: &CopyDescriptor) -> Self {
        let shape = descriptor.shape.as_slice();
        let size = descriptor.elem_size;
        let row = shape.last().copied().unwrap_or(1) * size;
        let count = shape.iter().rev().skip(1).product::<usize>();
        let pitch = match shape.len() {
            0 | 1 => row,
            rank => descriptor.strides[rank - 2] * size,
        };
        let start = descriptor.handle.offset_start.unwrap_or(0) as usize;
        let count = if row == 0 { 0 } else { count };
        Self { start, row, pitch, count }
    }
}

/// Whether a tensor covers its buffer, up to padding. A small buffer's size does not reveal it.
fn is_whole(descriptor: &CopyDescriptor, alignment: u64) -> bool {
    let Rows { start, row, pitch, count } = Rows::of(descriptor);
    // CUDA also pads a single row, unseen in its strides.
    let row = match descriptor.shape.as_slice() {
        [len] => row.next_multiple_of(optimal_align(*len, descriptor.elem_size, alignment.max(16) as usize)),
        _ => row,
    };
    let covered = (start + count * pitch.max(row)) as u64;
    let handle = &descriptor.handle;
    let end = handle.size - handle.offset_end.unwrap_or(0);
    start == 0 && covered >= end && end.next_multiple_of(alignment.max(1)) >= handle.size
}

fn copy_error(reason: impl std::fmt::Display) -> ServerError {
    ServerError::Generic { reason: format!("{READ}: {reason}"), backtrace: BackTrace::default() }
}

fn runtime_panic(operation: &str, panic: &(dyn Any + Send)) -> OffloadError {
    OffloadError::RuntimePanic { operation: operation.to_owned(), message: panic_message(panic) }
}

impl<R: InnerRuntime> OffloadServer<R> {
    pub(super) fn read_buffers(
        &mut self,
        descriptors: Vec<CopyDescriptor>,
        stream: StreamId,
    ) -> Result<Contents, ServerError> {
        self.enter(stream);
        self.device.errors_at_read(stream)?;

        let mut from_host = Vec::new();
        let mut from_device = Vec::new();
        let mut operands = Vec::new();
        for (n, descriptor) in descriptors.into_iter().enumerate() {
            let named = self.device.buffers.name(&descriptor.handle);
            self.device.contents(named, &descriptor.handle, READ).map_err(|error| read_error(&error))?;
            if let Some(id) = named.block()
                && let Some(recorder) = self.paging.recorder()
            {
                recorder.reads(id, Rows::of(&descriptor).bytes() as u64);
            }
            match named.block().map(|id| (id, self.bytes_without_device(id, &descriptor))) {
                Some((_, Some(bytes))) => from_host.push((n, bytes)),
                Some((id, None)) => {
                    operands.push(id);
                    from_device.push((n, descriptor, named));
                }
                None => from_device.push((n, descriptor, named)),
            }
        }

        self.make_resident(&operands, READ).map_err(|error| read_error(&error))?;
        self.device.wait_for_small_buffer_users(stream, stream);
        self.device.order_operands(&operands, stream).map_err(|error| read_error(&error))?;
        for (_, descriptor, named) in &from_device {
            self.device.order_small(*named, &descriptor.handle, stream);
        }

        if from_device.is_empty() {
            let bytes = from_host.into_iter().map(|(_, bytes)| bytes).collect();
            return Ok(Box::pin(async move { Ok(bytes) }));
        }

        let read = from_device.iter().map(|(_, descriptor, _)| Rows::of(descriptor).bytes() as u64);
        self.paging.counts().bytes_read += read.sum::<u64>();
        let places: Vec<usize> = from_device.iter().map(|(n, ..)| *n).collect();
        let in_parallel = self.device.read_in_parallel(&self.paging, &from_device, stream);
        let reading = in_parallel.unwrap_or_else(|| self.device.read_in_order(from_device, stream))?;

        if from_host.is_empty() {
            return Ok(reading);
        }
        Ok(Box::pin(async move {
            let read = reading.await?;
            from_host.extend(places.into_iter().zip(read));
            from_host.sort_by_key(|(n, _)| *n);
            Ok(from_host.into_iter().map(|(_, bytes)| bytes).collect())
        }))
    }

    /// The bytes of a current host copy; zeros if never written.
    fn bytes_without_device(&self, id: BlockId, descriptor: &CopyDescriptor) -> Option<Bytes> {
        if !R::can_read_tensor(&descriptor.shape, &descriptor.strides) {
            return None;
        }
        let rows = Rows::of(descriptor);
        match self.paging.pager().get(id)?.place() {
            Place::Away(_) | Place::Device { clean: Some(_) } => {
                let contents = self.paging.tiers().get(id)?.bytes();
                let mut bytes = Vec::with_capacity(rows.bytes());
                rows.ranges().for_each(|range| bytes.extend_from_slice(&contents[range]));
                Some(Bytes::from_bytes_vec(bytes))
            }
            Place::Nowhere => Some(Bytes::from_bytes_vec(vec![0; rows.bytes()])),
            Place::Device { clean: None } | Place::Leaving { .. } | Place::Returning { .. } => None,
        }
    }

    pub(super) fn write_buffer(&mut self, descriptor: CopyDescriptor, bytes: Bytes, stream: StreamId) {
        self.enter(stream);
        match self.device.buffers.name(&descriptor.handle) {
            Named::Small => {
                self.device.streams.begin(stream);
                self.device.wait_for_small_buffer_users(stream, stream);
                self.device.order_small(Named::Small, &descriptor.handle, stream);
                if is_whole(&descriptor, self.utilities.properties.memory.alignment) {
                    self.device.failures.small.heal(&descriptor.handle);
                }
                let (handle, len) = (descriptor.handle.clone(), bytes.len() as u64);
                match self.device.write_in_line(descriptor, bytes, stream) {
                    Ok(()) => self.paging.counts().bytes_written += len,
                    Err(error) => {
                        let error = self.new_failure(Arc::new(error), stream);
                        self.device.fail_small(&handle, &error);
                    }
                }
            }

            Named::Unknown => {
                let error = OffloadError::UnknownBuffer { operation: WRITE.to_owned() };
                self.new_failure(Arc::new(error), stream);
            }

            Named::Block(id) => {
                if matches!(
                    self.device.buffers.get(id).failed.as_deref(),
                    Some(OffloadError::BufferTooLarge { .. })
                ) {
                    return;
                }
                let Err(bytes) = self.write_on_host(id, &descriptor, bytes) else { return };
                let written = match self.beside_work(id, &descriptor, &bytes, stream) {
                    Some(index) => self.upload(id, bytes, (stream, index)),
                    None => self.write_on_device(id, descriptor, bytes, stream),
                };
                if let Err(error) = written {
                    let error = self.new_failure(Arc::new(error), stream);
                    self.device.buffers.get_mut(id).failed = Some(error);
                }
            }
        }
    }

    fn write_on_device(
        &mut self,
        id: BlockId,
        mut descriptor: CopyDescriptor,
        bytes: Bytes,
        stream: StreamId,
    ) -> Result<(), OffloadError> {
        self.make_resident(&[id], WRITE)?;
        self.device.wait_for_small_buffer_users(stream, stream);
        self.device.order_operands(&[id], stream)?;
        self.clear_failure_if_whole(id, &descriptor);
        self.device.make_physical(&mut descriptor.handle, Named::Block(id));
        let len = bytes.len() as u64;
        let written = self.device.write_in_line(descriptor, bytes, stream);
        self.wrote(id);
        written?;
        self.paging.counts().bytes_written += len;
        self.device.check_stream(stream)
    }

    /// The stream's index, if a new block's bytes may reach the device beside its work.
    fn beside_work(
        &self,
        id: BlockId,
        descriptor: &CopyDescriptor,
        bytes: &Bytes,
        stream: StreamId,
    ) -> Option<usize> {
        let is_new = self.paging.pager().get(id).is_some_and(|block| block.place() == Place::Nowhere);
        // Other memory would pass through buffers that a program may never need.
        let is_locked = matches!(bytes.property(), AllocationProperty::Pinned);
        let (rows, alignment) = (Rows::of(descriptor), self.utilities.properties.memory.alignment);
        let is_flat = rows.bytes() as u64 >= UPLOADED && !rows.has_gaps() && is_whole(descriptor, alignment);
        if !is_new || !is_locked || !is_flat || self.device.buffers.get(id).stream != stream {
            return None;
        }
        self.device.copies_in_parallel(stream)
    }

    fn upload(
        &mut self,
        id: BlockId,
        bytes: Bytes,
        (stream, index): (StreamId, usize),
    ) -> Result<(), OffloadError> {
        self.make_resident(&[id], WRITE)?;
        self.device.wait_for_small_buffer_users(stream, stream);
        self.device.buffers.get_mut(id).failed = None;
        let len = bytes.len() as u64;
        self.device
            .start_back(id, index, Upload::New(bytes))
            .map_err(|message| OffloadError::LaunchFailed { operation: WRITE.to_owned(), message })?;
        self.wrote(id);
        self.paging.counts().bytes_written += len;
        self.device.check_stream(stream)
    }

    fn clear_failure_if_whole(&mut self, id: BlockId, descriptor: &CopyDescriptor) {
        let alignment = self.utilities.properties.memory.alignment;
        let buffer = self.device.buffers.get_mut(id);
        if buffer.failed.is_some() && is_whole(descriptor, alignment) {
            buffer.failed = None;
        }
    }

    /// Returns the bytes if they belong on the device.
    fn write_on_host(&mut self, id: BlockId, descriptor: &CopyDescriptor, bytes: Bytes) -> Result<(), Bytes> {
        let readable = R::can_read_tensor(&descriptor.shape, &descriptor.strides);
        let (stream, size) = (self.device.buffers.get(id).stream, self.device.buffers.get(id).size);
        let rows = Rows::of(descriptor);
        let whole = is_whole(descriptor, self.utilities.properties.memory.alignment);
        let is_lent = || self.paging.tiers().pool().has_lent(&bytes);
        let is_copy = whole && bytes.len() as u64 == size && !rows.has_gaps() && is_lent();

        let belongs_here = match self.paging.pager().get(id).map(|block| (block.place(), block.bytes)) {
            Some((Place::Away(_), _)) => true,
            Some((Place::Nowhere, bytes)) => {
                let arena = self.device.streams.arena(stream);
                self.paging.begins_on_host(&mut self.device, bytes, (arena, is_copy))
            }
            _ => false,
        };
        if !belongs_here || !readable {
            return Err(bytes);
        }

        let share = if whole { Share::Whole } else { Share::Part };
        let taken = if is_copy { taken_back(self.paging.tiers().pool(), bytes) } else { Err(bytes) };
        let edited = match taken {
            Ok(contents) => self.paging.take_on_host(id, contents),
            Err(bytes) => {
                let edited = self.paging.edit_on_host(id, size as usize, share, |contents| {
                    for (range, row) in rows.ranges().zip(bytes.chunks(rows.row.max(1))) {
                        contents[range].copy_from_slice(row);
                    }
                });
                if matches!(edited, Ok(false)) {
                    return Err(bytes);
                }
                edited.map(drop)
            }
        };

        self.clear_failure_if_whole(id, descriptor);
        if let Err(fault) = edited {
            self.report_fault(id, fault, WRITE);
        }
        Ok(())
    }

    /// Pins the block while the handle lives: the user may write to it.
    pub(super) fn hand_out(
        &mut self,
        mut binding: Binding,
        stream: StreamId,
    ) -> Result<ManagedResource<Resource<R>>, ServerError> {
        const OPERATION: &str = "handing out a raw resource";
        self.enter(stream);
        let named = self.device.buffers.name(&binding);
        self.device.contents(named, &binding, OPERATION).map_err(|error| read_error(&error))?;
        if let Some(id) = named.block() {
            self.make_resident(&[id], OPERATION).map_err(|error| read_error(&error))?;
            self.device.order_operands(&[id], stream).map_err(|error| read_error(&error))?;
            self.wrote(id);
            if let Err(fault) = self.paging.pin(id) {
                self.report_fault(id, fault, OPERATION);
            }
        }
        self.device.make_physical(&mut binding, named);
        self.device.inner.get_resource(binding, stream)
    }

    pub(super) fn read_raw(&mut self, binding: Binding, stream: StreamId) -> Result<Contents, ServerError> {
        let len = binding.size_in_used();
        self.read_buffers(vec![flat(binding, len)], stream)
    }
}

impl<R: InnerRuntime> CubeDevice<R> {
    fn read_in_order(&mut self, tensors: Vec<OnDevice>, stream: StreamId) -> Result<Contents, ServerError> {
        let physical = tensors.into_iter().map(|(_, mut descriptor, named)| {
            self.make_physical(&mut descriptor.handle, named);
            descriptor
        });
        let (descriptors, inner) = (physical.collect(), &mut self.inner);
        let reading = catch_unwind(AssertUnwindSafe(|| inner.read(descriptors, stream)))
            .map_err(|panic| read_error(&runtime_panic(READ, panic.as_ref())))?;
        if self.copies_in_parallel(stream).is_none() {
            return Ok(reading);
        }
        // The runtime's future waits for the stream in its first poll. So a program could queue no work meanwhile.
        Ok(Box::pin(async move {
            yield_once().await;
            reading.await
        }))
    }

    /// `None` if the tensors must be read in stream order. Else only the future's second poll waits.
    fn read_in_parallel(
        &mut self,
        paging: &Paging,
        tensors: &[OnDevice],
        stream: StreamId,
    ) -> Option<Result<Contents, ServerError>> {
        let index = self.copies_in_parallel(stream)?;
        let are_rows = |(_, descriptor, named): &OnDevice| {
            named.block().is_some()
                && Rows::of(descriptor).bytes() > 0
                && R::can_read_tensor(&descriptor.shape, &descriptor.strides)
        };
        tensors.iter().all(are_rows).then(|| self.start_reads(paging, tensors, (stream, index)))
    }

    fn start_reads(
        &mut self,
        paging: &Paging,
        tensors: &[OnDevice],
        (stream, index): (StreamId, usize),
    ) -> Result<Contents, ServerError> {
        if let Some(error) = R::stream_error(&mut self.inner, stream) {
            return Err(error);
        }

        let mut readings = Vec::with_capacity(tensors.len());
        for (_, descriptor, named) in tensors {
            let Some(id) = named.block() else { continue };
            let rows = Rows::of(descriptor);
            // The runtime's staging locks gigabytes that no budget counts.
            let host = match paging.draft_for_read(rows.bytes()) {
                Some(draft) => written(draft),
                None => Bytes::from_bytes_vec(vec![0; rows.bytes()]),
            };
            let buffer = self.buffers.get(id);
            let device = buffer.device.clone().expect("made resident before");
            let device = Handle::from_memory(device, buffer.stream, buffer.size);
            // Later users wait for one copy: it follows that of another view.
            let earlier = self.buffers.get_mut(id).copy.take();
            self.order_after_copy(stream, earlier).map_err(copy_error)?;
            let started = self.copies.start_read(&mut self.inner, (device, rows, index), host);
            let (copy, reading) = started.map_err(copy_error)?;
            self.buffers.get_mut(id).copy = Some(copy);
            readings.push(reading);
        }

        Ok(Box::pin(async move {
            yield_once().await;
            readings.into_iter().map(|reading| reading.wait().map_err(copy_error)).collect()
        }))
    }

    pub(super) fn check_stream(&mut self, stream: StreamId) -> Result<(), OffloadError> {
        R::stream_error(&mut self.inner, stream).map_or(Ok(()), |error| {
            Err(OffloadError::LaunchFailed { operation: WRITE.to_owned(), message: error.to_string() })
        })
    }

    /// The runtime holds lent memory until its next launches.
    fn write_in_line(
        &mut self,
        descriptor: CopyDescriptor,
        bytes: Bytes,
        stream: StreamId,
    ) -> Result<(), OffloadError> {
        let may_be_lent = matches!(bytes.property(), AllocationProperty::Pinned);
        let len = bytes.len() as u64;
        self.write_inside(descriptor, bytes, stream)?;
        if may_be_lent {
            self.hold_until_flushed(len, stream);
        }
        Ok(())
    }

    pub(super) fn write_inside(
        &mut self,
        descriptor: CopyDescriptor,
        bytes: Bytes,
        stream: StreamId,
    ) -> Result<(), OffloadError> {
        let inner = &mut self.inner;
        catch_unwind(AssertUnwindSafe(|| inner.write(vec![(descriptor, bytes)], stream)))
            .map_err(|panic| runtime_panic(WRITE, panic.as_ref()))
    }
}
