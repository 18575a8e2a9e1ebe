//! Streams: copies off the device, and events, recorded again and again.

use crate::cubecl::copy_streams::Rows;
use cudarc::driver::{DriverError, result, sys};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Clone, Copy)]
pub(super) struct Stream(pub sys::CUstream);

// SAFETY: one thread at a time uses a stream.
unsafe impl Send for Stream {}

/// Spare events of one context: creating and destroying one per launch would cost two driver calls.
#[derive(Debug, Default)]
pub(super) struct EventPool(Mutex<Vec<Handle>>);

#[derive(Debug, Clone, Copy)]
struct Handle(sys::CUevent);

// SAFETY: the driver accepts events from any thread.
unsafe impl Send for Handle {}

/// A point in a stream's work. After the drop its handle marks another point; waits queued until then keep theirs.
#[derive(Debug)]
pub struct Event {
    handle: Handle,
    pool: Arc<EventPool>,
}

// SAFETY: the driver accepts events from any thread; each is recorded before it is shared.
unsafe impl Sync for Event {}

impl Stream {
    pub fn create() -> Result<Self, DriverError> {
        result::stream::create(result::stream::StreamKind::NonBlocking).map(Self)
    }

    pub fn synchronize(self) -> Result<(), DriverError> {
        // SAFETY: the stream lives.
        unsafe { result::stream::synchronize(self.0) }
    }
}

impl EventPool {
    fn free(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn record(self: &Arc<Self>, stream: Stream) -> Result<Event, DriverError> {
        let free = self.free().pop();
        let handle = match free {
            Some(handle) => handle,
            // Recording a time would cost the device a write.
            None => Handle(result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?),
        };
        let event = Event { handle, pool: self.clone() };
        // SAFETY: both live.
        unsafe { result::event::record(event.handle.0, stream.0) }?;
        Ok(event)
    }
}

impl Drop for EventPool {
    fn drop(&mut self) {
        for Handle(event) in self.free().drain(..) {
            // SAFETY: destroyed once. At process exit a failure leaves nothing to do.
            let _gone = unsafe { result::event::destroy(event) };
        }
    }
}

impl Event {
    pub(super) fn delay(&self, stream: Stream) -> Result<(), DriverError> {
        // SAFETY: both live.
        unsafe {
            result::stream::wait_event(
                stream.0,
                self.handle.0,
                sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
            )
        }
    }

    pub(super) fn has_ended(&self) -> Result<bool, DriverError> {
        // SAFETY: the event lives.
        match unsafe { result::event::query(self.handle.0) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.handle.0) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.pool.free().push(self.handle);
    }
}

/// # Safety
/// Both memories outlive the copy. `host` holds all rows.
pub(super) unsafe fn copy_out(
    rows: Rows,
    device: u64,
    host: &mut [u8],
    stream: Stream,
) -> Result<(), DriverError> {
    let from = device + rows.start as u64;
    if !rows.has_gaps() {
        // SAFETY: as the caller promises.
        return unsafe { result::memcpy_dtoh_async(host, from, stream.0) };
    }

    let copy = sys::CUDA_MEMCPY2D_st {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: from,
        srcArray: std::ptr::null_mut(),
        srcPitch: rows.pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: host.as_mut_ptr().cast(),
        dstDevice: 0,
        dstArray: std::ptr::null_mut(),
        dstPitch: rows.row,
        WidthInBytes: rows.row,
        Height: rows.count,
    };
    // SAFETY: the caller keeps the memory that the descriptor names.
    unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream.0) }.result()
}

pub(super) fn copy_error(error: DriverError) -> String {
    format!("a copy in parallel with the device's work: {error}")
}
