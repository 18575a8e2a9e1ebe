//! Copies on two streams, one per direction, ordered by events; of ordinary host memory by [`staging`](super::staging).
//!
//! The runtime hides its streams. A stream's handle is read from the server's debug text just after its begin. If that
//! fails, the stream's buffers are copied in line with its work.

use super::staging::{Direction, Job, Staging};
use super::stream::{Event, EventPool, Stream, copy_error, copy_out};
use super::worker::Ticket;
use crate::cubecl::copy_streams::{CopyStreams, Pages, Rows};
use crate::tiers::StagingSource;
use cubecl_core::Runtime;
use cubecl_core::server::{ComputeServer, Handle as Buffer};
use cubecl_cuda::CudaRuntime;
use cudarc::driver::{DriverError, result};
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;

/// Launches upload through the same engine: they wait for one piece, not a block.
const PIECE: usize = 4 << 20;

type Server = <CudaRuntime as Runtime>::Server;

#[derive(Debug)]
pub struct CudaCopies {
    streams: Option<Streams>,
    owners: HashMap<usize, Stream>,
    events: Arc<EventPool>,
    handles: Handles,
    staging: Staging,
}

#[derive(Debug, Clone, Copy)]
struct Streams {
    out: Stream,
    back: Stream,
}

#[derive(Debug)]
pub enum End {
    Recorded(Event),
    Staged(Ticket<Event>),
}

impl End {
    /// Waits for the thread to queue the copy.
    fn event(&self) -> Result<&Event, String> {
        match self {
            Self::Recorded(event) => Ok(event),
            Self::Staged(ticket) => ticket.wait().as_ref().map_err(Clone::clone),
        }
    }
}

impl Streams {
    fn of(self, direction: Direction) -> Stream {
        match direction {
            Direction::Out => self.out,
            Direction::Back => self.back,
        }
    }
}

impl CudaCopies {
    /// The device's context is current: the server has used it.
    fn streams(&mut self) -> Result<Streams, DriverError> {
        if let Some(streams) = self.streams {
            return Ok(streams);
        }
        let streams = Streams { out: Stream::create()?, back: Stream::create()? };
        self.streams = Some(streams);
        Ok(streams)
    }

    fn owner(&self, index: usize) -> Result<Stream, String> {
        self.owners.get(&index).copied().ok_or_else(|| "a stream whose handle is not known".to_owned())
    }

    /// Without `after`, waits for all work queued on stream `index`.
    fn start(
        &mut self,
        (index, after): (usize, Option<&End>),
        direction: Direction,
        copy: impl FnOnce(Stream) -> Result<(), DriverError>,
    ) -> Result<Event, String> {
        let owner = self.owner(index)?;
        let after = after.map(End::event).transpose()?;

        let started = || {
            let stream = self.streams()?.of(direction);
            match after {
                Some(after) => after.delay(stream)?,
                None => self.events.record(owner)?.delay(stream)?,
            }
            copy(stream).and_then(|()| self.events.record(stream)).inspect_err(|_| {
                // Part of the copy may use memory about to be freed.
                let _idle = stream.synchronize();
            })
        };
        started().map_err(|error: DriverError| format!("a copy could not start: {error}"))
    }

    /// `None` if the driver copies these pages.
    ///
    /// # Safety
    /// Both memories stay until the end.
    unsafe fn stage(
        &mut self,
        direction: Direction,
        after: (usize, Option<&End>),
        (device, rows): (u64, Rows),
        (host, pages): (NonNull<u8>, Pages),
    ) -> Result<Option<End>, String> {
        if pages == Pages::Locked || !self.staging.serves(direction, rows, &self.events) {
            return Ok(None);
        }
        let turn = self.start(after, direction, |_| Ok(()))?;
        // SAFETY: as the caller promises.
        let ticket = unsafe { self.staging.copy(direction, Job { turn, device, rows, host }) };
        Ok(ticket.map(End::Staged))
    }
}

impl CopyStreams<Server> for CudaCopies {
    type End = End;

    fn new(staging: StagingSource) -> Self {
        Self {
            streams: None,
            owners: HashMap::new(),
            events: Arc::default(),
            handles: Handles::default(),
            staging: Staging::new(staging),
        }
    }

    fn watch(&mut self, server: &mut Server, index: usize, begin: &mut dyn FnMut(&mut Server)) {
        if let Some(handle) = self.handles.begun(server, begin) {
            self.owners.insert(index, Stream(std::ptr::with_exposed_provenance_mut(handle as usize)));
        } else {
            tracing::warn!(
                target: crate::journal::TARGET,
                "stream {index} of the runtime was not found: copies of its tensors do not overlap with its work"
            );
        }
    }

    fn serves(&self, index: usize) -> bool {
        self.owners.contains_key(&index)
    }

    unsafe fn start_out(
        &mut self,
        server: &mut Server,
        device: Buffer,
        after: (usize, Option<&End>),
        rows: Rows,
        host: &mut [u8],
        pages: Pages,
    ) -> Result<End, String> {
        let device = Self::address(server, device)?;
        let memory = NonNull::from(&mut *host).cast();
        // SAFETY: as the caller promises.
        if let Some(end) = unsafe { self.stage(Direction::Out, after, (device, rows), (memory, pages)) }? {
            return Ok(end);
        }

        let copy = |stream: Stream| {
            let mut rest = host;
            rows.pieces(PIECE).try_for_each(|piece| {
                let (part, others) = std::mem::take(&mut rest).split_at_mut(piece.bytes());
                rest = others;
                // SAFETY: the caller keeps both memories; `part` holds the piece.
                unsafe { copy_out(piece, device, part, stream) }
            })
        };
        self.start(after, Direction::Out, copy).map(End::Recorded)
    }

    unsafe fn start_back(
        &mut self,
        address: u64,
        index: usize,
        host: &[u8],
        pages: Pages,
        after: Option<&End>,
    ) -> Result<End, String> {
        let (after, whole) = ((index, after), Rows::whole(host.len()));
        let memory = NonNull::from(host).cast();
        // SAFETY: as the caller promises.
        if let Some(end) = unsafe { self.stage(Direction::Back, after, (address, whole), (memory, pages)) }? {
            return Ok(end);
        }
        let copy = |stream: Stream| {
            let mut pieces = host.chunks(PIECE).zip((address..).step_by(PIECE));
            // SAFETY: the caller keeps both memories, of one size.
            pieces.try_for_each(|(piece, to)| unsafe { result::memcpy_htod_async(to, piece, stream.0) })
        };
        self.start(after, Direction::Back, copy).map(End::Recorded)
    }

    fn address(server: &mut Server, device: Buffer) -> Result<u64, String> {
        let stream = device.stream;
        let resource = server.get_resource(device.binding(), stream).map_err(|error| error.to_string())?;
        Ok(resource.resource().ptr)
    }

    fn mark(&mut self, index: usize) -> Option<End> {
        self.events.record(self.owner(index).ok()?).ok().map(End::Recorded)
    }

    fn order(&mut self, index: usize, copy: &End) -> Result<(), String> {
        copy.event()?.delay(self.owner(index)?).map_err(copy_error)
    }

    fn has_ended(copy: &End) -> Result<bool, String> {
        if let End::Staged(ticket) = copy
            && ticket.get().is_none()
        {
            return Ok(false);
        }
        copy.event()?.has_ended().map_err(copy_error)
    }

    fn wait(copy: &End) -> Result<(), String> {
        copy.event()?.wait().map_err(copy_error)
    }
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
