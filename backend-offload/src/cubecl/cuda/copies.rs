//! Copies on two streams, one per direction, ordered by events.
//!
//! The runtime hides its streams. A stream's handle is read from the server's debug text just after its begin. If that
//! fails, the stream's buffers are copied in line with its work.

use crate::cubecl::copy_streams::{CopyStreams, Rows};
use cubecl_core::Runtime;
use cubecl_core::server::{ComputeServer, Handle as Buffer};
use cubecl_cuda::CudaRuntime;
use cudarc::driver::{DriverError, result, sys};
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Launches upload through the same engine: they wait for one piece, not a block.
const PIECE: usize = 4 << 20;

type Server = <CudaRuntime as Runtime>::Server;

#[derive(Debug, Default)]
pub struct CudaCopies {
    streams: Option<Streams>,
    owners: HashMap<usize, Stream>,
    events: Arc<EventPool>,
    handles: Handles,
}

#[derive(Debug, Clone, Copy)]
struct Stream(sys::CUstream);

// SAFETY: only the server's thread uses a stream.
unsafe impl Send for Stream {}

#[derive(Debug, Clone, Copy)]
struct Streams {
    out: Stream,
    back: Stream,
}

/// Spare events of one context: creating and destroying one per launch would cost two driver calls.
#[derive(Debug, Default)]
struct EventPool(Mutex<Vec<Handle>>);

#[derive(Debug, Clone, Copy)]
struct Handle(sys::CUevent);

// SAFETY: the driver accepts events from any thread.
unsafe impl Send for Handle {}

impl EventPool {
    fn free(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(self: &Arc<Self>, stream: Stream) -> Result<Event, DriverError> {
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

/// A point in a stream's work. After the drop its handle marks another point; waits queued until then keep theirs.
#[derive(Debug)]
pub struct Event {
    handle: Handle,
    pool: Arc<EventPool>,
}

// SAFETY: the driver accepts events from any thread; each is recorded before it is shared.
unsafe impl Sync for Event {}

impl Event {
    fn delay(&self, stream: Stream) -> Result<(), DriverError> {
        // SAFETY: both live.
        unsafe {
            result::stream::wait_event(
                stream.0,
                self.handle.0,
                sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
            )
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.pool.free().push(self.handle);
    }
}

impl CudaCopies {
    /// The device's context is current: the server has used it.
    fn streams(&mut self) -> Result<Streams, DriverError> {
        if let Some(streams) = self.streams {
            return Ok(streams);
        }
        let create = || result::stream::create(result::stream::StreamKind::NonBlocking).map(Stream);
        let streams = Streams { out: create()?, back: create()? };
        self.streams = Some(streams);
        Ok(streams)
    }

    fn owner(&self, index: usize) -> Result<Stream, String> {
        self.owners.get(&index).copied().ok_or_else(|| "a stream whose handle is not known".to_owned())
    }

    /// Without `after`, waits for all work queued on stream `index`.
    fn start(
        &mut self,
        (index, after): (usize, Option<&Event>),
        choose: fn(Streams) -> Stream,
        copy: impl FnOnce(Stream) -> Result<(), DriverError>,
    ) -> Result<Event, String> {
        let owner = self.owner(index)?;

        let started = || {
            let stream = choose(self.streams()?);
            match after {
                Some(after) => after.delay(stream)?,
                None => self.events.record(owner)?.delay(stream)?,
            }
            copy(stream).and_then(|()| self.events.record(stream)).inspect_err(|_| {
                // Part of the copy may run, into memory about to be freed. SAFETY: the stream lives.
                let _idle = unsafe { result::stream::synchronize(stream.0) };
            })
        };
        started().map_err(|error: DriverError| format!("a copy could not start: {error}"))
    }
}

impl CopyStreams<Server> for CudaCopies {
    type End = Event;

    fn watch(&mut self, server: &mut Server, index: usize, begin: &mut dyn FnMut(&mut Server)) {
        if let Some(handle) = self.handles.begun(server, begin) {
            self.owners.insert(index, Stream(std::ptr::with_exposed_provenance_mut(handle as usize)));
        }
    }

    fn serves(&self, index: usize) -> bool {
        self.owners.contains_key(&index)
    }

    unsafe fn start_out(
        &mut self,
        server: &mut Server,
        device: Buffer,
        after: (usize, Option<&Event>),
        rows: Rows,
        host: &mut [u8],
    ) -> Result<Event, String> {
        let from = Self::address(server, device)? + rows.start as u64;

        let copy = |stream: Stream| {
            if rows.count > 1 && rows.pitch != rows.row {
                // SAFETY: the caller keeps both memories; `host` holds all rows.
                return unsafe { copy_rows(rows, from, host, stream) };
            }

            let mut pieces = host.chunks_mut(PIECE).zip((from..).step_by(PIECE));
            // SAFETY: the caller keeps both memories, of one size.
            pieces.try_for_each(|(piece, from)| unsafe { result::memcpy_dtoh_async(piece, from, stream.0) })
        };
        self.start(after, |streams| streams.out, copy)
    }

    unsafe fn start_back(
        &mut self,
        address: u64,
        index: usize,
        host: &[u8],
        after: Option<&Event>,
    ) -> Result<Event, String> {
        let copy = |stream: Stream| {
            let mut pieces = host.chunks(PIECE).zip((address..).step_by(PIECE));
            // SAFETY: the caller keeps both memories, of one size.
            pieces.try_for_each(|(piece, to)| unsafe { result::memcpy_htod_async(to, piece, stream.0) })
        };
        self.start((index, after), |streams| streams.back, copy)
    }

    fn address(server: &mut Server, device: Buffer) -> Result<u64, String> {
        let stream = device.stream;
        let resource = server.get_resource(device.binding(), stream).map_err(|error| error.to_string())?;
        Ok(resource.resource().ptr)
    }

    fn mark(&mut self, index: usize) -> Option<Event> {
        self.events.record(self.owner(index).ok()?).ok()
    }

    fn order(&mut self, index: usize, copy: &Event) -> Result<(), String> {
        copy.delay(self.owner(index)?).map_err(copy_error)
    }

    fn has_ended(copy: &Event) -> Result<bool, String> {
        // SAFETY: the event lives.
        match unsafe { result::event::query(copy.handle.0) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(copy_error(error)),
        }
    }

    fn wait(copy: &Event) -> Result<(), String> {
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(copy.handle.0) }.map_err(copy_error)
    }
}

/// # Safety
/// Both memories outlive the copy. On the device, `rows` start at `from`; `host` holds them all.
unsafe fn copy_rows(rows: Rows, from: u64, host: &mut [u8], stream: Stream) -> Result<(), DriverError> {
    let in_piece = (PIECE / rows.row).max(1);
    let pieces = host.chunks_mut(in_piece * rows.row).zip((from..).step_by(in_piece * rows.pitch));

    for (piece, from) in pieces {
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
            dstHost: piece.as_mut_ptr().cast(),
            dstDevice: 0,
            dstArray: std::ptr::null_mut(),
            dstPitch: rows.row,
            WidthInBytes: rows.row,
            Height: piece.len() / rows.row,
        };
        // SAFETY: the caller keeps the memory that the descriptor names.
        unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream.0) }.result()?;
    }
    Ok(())
}

fn copy_error(error: DriverError) -> String {
    format!("a copy in parallel with the device's work: {error}")
}

/// Handles of the server's streams, if all are known. The text names each compiled kernel: printing takes milliseconds.
#[derive(Debug, Default)]
struct Handles {
    all: Option<HashSet<u64>>,
    begun: usize,
}

impl Handles {
    /// The handle of the stream that `begin` creates, if exactly one appears.
    fn begun<S: Debug>(&mut self, server: &mut S, begin: &mut dyn FnMut(&mut S)) -> Option<u64> {
        let before = self.all.take().unwrap_or_else(|| stream_handles(server));
        begin(server);
        let after = stream_handles(server);
        let mut fresh = after.difference(&before).copied();
        let handle = fresh.next().filter(|_| fresh.next().is_none());
        self.begun += usize::from(handle.is_some());
        // Another new stream could be taken for the next one.
        self.all = (after.len() == self.begun).then_some(after);
        handle
    }
}

fn stream_handles(server: &impl Debug) -> HashSet<u64> {
    let text = format!("{server:?}");
    let handles = text.split("Stream { sys: 0x").skip(1).filter_map(|rest| {
        let digits = rest.find(|character: char| !character.is_ascii_hexdigit()).unwrap_or(rest.len());
        u64::from_str_radix(&rest[..digits], 16).ok()
    });
    handles.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[derive(Default)]
    struct Server {
        streams: Vec<u64>,
        printed: Cell<usize>,
    }

    impl Debug for Server {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.printed.set(self.printed.get() + 1);
            self.streams.iter().try_for_each(|stream| write!(f, "Stream {{ sys: {stream:#x} }}, "))
        }
    }

    #[test]
    fn the_server_is_printed_once_for_each_stream() {
        let (mut server, mut handles) = (Server::default(), Handles::default());
        for n in 1..=20 {
            assert_eq!(handles.begun(&mut server, &mut |server| server.streams.push(n)), Some(n));
        }
        assert_eq!(server.printed.get(), 1 + 20);
    }

    #[test]
    fn a_stream_that_began_elsewhere_is_taken_for_no_other() {
        let (mut server, mut handles) = (Server::default(), Handles::default());
        server.streams = vec![1];
        assert_eq!(handles.begun(&mut server, &mut |server| server.streams.push(2)), Some(2));
        server.streams.push(3);
        assert_eq!(handles.begun(&mut server, &mut |_| {}), None, "the first one had begun before");
        assert_eq!(handles.begun(&mut server, &mut |server| server.streams.push(4)), Some(4));

        let (mut server, mut handles) = (Server::default(), Handles::default());
        assert_eq!(handles.begun(&mut server, &mut |server| server.streams.push(1)), Some(1));
        server.streams.push(2);
        assert_eq!(handles.begun(&mut server, &mut |server| server.streams.push(3)), None);
        assert_eq!(handles.begun(&mut server, &mut |server| server.streams.push(4)), Some(4));
    }
}
