//! Copies in flight, in parallel with the device's work.
//!
//! A copy to the host starts after the buffer's last use; one to the device once [`Marks`] knows its memory unused. The
//! buffer's next user waits on the device. Until its end, a copy's memory on host and device stays here.
//!
//! The program's read copies to its reader's memory from its future's first poll on
//! (`tensors_read_while_kernels_run_arrive_unchanged`). Later kernels do not wait for it
//! (`kernels_do_not_wait_for_earlier_reads`).
//!
//! Parallel copies change no bit (`overlapped_copies_shorten_a_step_and_give_the_same_bits`). The stand-in finds
//! missing waits (`a_missing_wait_for_a_copy_is_found`).

use super::copy_streams::{CopyStreams, Pages, Rows};
use super::inner::InnerRuntime;
use super::marks::Marks;
use crate::tiers::{Draft, Lease, StagingSource};
use cubecl_common::bytes::{AllocationProperty, Bytes};
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::Handle;
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use pager::Token;
use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Debug};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CopyId(u64);

#[derive(Debug)]
struct Copying<E> {
    end: Arc<E>,
    host: Host,
    /// A dropped block's memory: no reuse before the copy ends.
    discarded: Option<(Token, ManagedMemoryHandle)>,
}

#[derive(Debug)]
enum Host {
    /// No reuse of the device memory before the copy ends.
    Target(Token, Draft, ManagedMemoryHandle),
    Source {
        _upload: Upload,
    },
    /// The reader holds the host memory.
    Reader,
}

#[derive(Debug)]
pub(super) enum Upload {
    Return(Lease),
    /// The program's, for a new tensor.
    New(Bytes),
}

impl Upload {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Return(copy) => copy.bytes(),
            Self::New(bytes) => bytes,
        }
    }

    fn pages(&self) -> Pages {
        Pages::are(match self {
            Self::Return(copy) => copy.is_pinned(),
            Self::New(bytes) => matches!(bytes.property(), AllocationProperty::Pinned),
        })
    }
}

type StreamsOf<R> = <R as InnerRuntime>::CopyStreams;
type End<R> = <StreamsOf<R> as CopyStreams<<R as cubecl_core::Runtime>::Server>>::End;

pub(super) struct Copies<R: InnerRuntime> {
    streams: StreamsOf<R>,
    copying: HashMap<CopyId, Copying<End<R>>>,
    /// Oldest first, as each direction runs.
    out: VecDeque<CopyId>,
    back: VecDeque<CopyId>,
    read: VecDeque<CopyId>,
    /// By stream index.
    marks: HashMap<usize, Marks<End<R>>>,
    landed: HashMap<Token, Draft>,
    freed: VecDeque<Token>,
    failed_uploads: HashMap<CopyId, String>,
    started: u64,
}

impl<R: InnerRuntime> Copies<R> {
    pub fn new(staging: StagingSource) -> Self {
        Self {
            streams: StreamsOf::<R>::new(staging),
            copying: HashMap::new(),
            out: VecDeque::new(),
            back: VecDeque::new(),
            read: VecDeque::new(),
            marks: HashMap::new(),
            landed: HashMap::new(),
            freed: VecDeque::new(),
            failed_uploads: HashMap::new(),
            started: 0,
        }
    }

    pub fn watch(&mut self, server: &mut R::Server, index: usize, begin: &mut dyn FnMut(&mut R::Server)) {
        self.streams.watch(server, index, begin);
    }

    pub fn serves(&self, index: usize) -> bool {
        self.streams.serves(index)
    }

    pub fn start_out(
        &mut self,
        server: &mut R::Server,
        (device, stream, index): (&ManagedMemoryHandle, StreamId, usize),
        last: Option<u64>,
        (token, mut draft): (Token, Draft),
    ) -> Result<CopyId, String> {
        let bytes = draft.len() as u64;
        let handle = Handle::from_memory(device.clone(), stream, bytes);
        let marks = self.marks.entry(index).or_default();
        let after = (index, last.and_then(|last| marks.after(last)));
        let (rows, pages) = (Rows::whole(draft.len()), Pages::are(draft.is_pinned()));
        // SAFETY: both memories are kept in `copying`.
        let end = unsafe { self.streams.start_out(server, handle, after, rows, &mut draft, pages) }?;
        marks.moves();
        let id = self.keep(Arc::new(end), Host::Target(token, draft, device.clone()));
        self.out.push_back(id);
        Ok(id)
    }

    pub fn start_back(
        &mut self,
        server: &mut R::Server,
        (device, stream, index): (&ManagedMemoryHandle, StreamId, usize),
        upload: Upload,
    ) -> Result<CopyId, String> {
        let bytes = upload.bytes().len() as u64;
        let handle = Handle::from_memory(device.clone(), stream, bytes);
        let address = StreamsOf::<R>::address(server, handle)?;
        let marks = self.marks.entry(index).or_default();
        marks.moves();
        let (after, pages) = (marks.take(address), upload.pages());
        // SAFETY: both memories are kept in `copying`.
        let end = unsafe { self.streams.start_back(address, index, upload.bytes(), pages, after) }?;
        let id = self.keep(Arc::new(end), Host::Source { _upload: upload });
        self.back.push_back(id);
        self.release_ended();
        Ok(id)
    }

    /// After all work queued on stream `index`.
    pub fn start_read(
        &mut self,
        server: &mut R::Server,
        (device, rows, index): (Handle, Rows, usize),
        mut host: Bytes,
    ) -> Result<(CopyId, Reading<R>), String> {
        let pages = Pages::are(matches!(host.property(), AllocationProperty::Pinned));
        // SAFETY: the `Reading` keeps the host memory. Later users of the device memory wait for the copy.
        let end = unsafe { self.streams.start_out(server, device, (index, None), rows, &mut host, pages) }?;
        let end = Arc::new(end);
        let id = self.keep(end.clone(), Host::Reader);
        self.read.push_back(id);
        self.release_ended();
        Ok((id, Reading { end, host: Some(host) }))
    }

    /// Marks the point before the work that follows `pieces` others.
    pub fn mark(&mut self, index: usize, pieces: u64) {
        if let Some(marks) = self.marks.get_mut(&index).filter(|marks| marks.is_moving()) {
            marks.mark(pieces, self.streams.mark(index));
        }
    }

    pub fn is_moving(&self, index: usize) -> bool {
        self.marks.get(&index).is_some_and(Marks::is_moving)
    }

    pub fn release(&mut self, server: &mut R::Server, (device, index): (Handle, usize), last: Option<u64>) {
        let Some(marks) = self.marks.get_mut(&index) else { return };
        match StreamsOf::<R>::address(server, device) {
            Ok(address) => marks.release(address, last),
            Err(_) => marks.forget_all(),
        }
    }

    pub fn forget_marks(&mut self) {
        self.marks.values_mut().for_each(Marks::forget_all);
    }

    fn keep(&mut self, end: Arc<End<R>>, host: Host) -> CopyId {
        self.started += 1;
        let id = CopyId(self.started);
        self.copying.insert(id, Copying { end, host, discarded: None });
        id
    }

    pub fn order(&mut self, index: usize, copy: CopyId) -> Result<(), String> {
        match (self.copying.get(&copy), self.failed_uploads.get(&copy)) {
            (Some(copying), _) => self.streams.order(index, &copying.end),
            (None, failed) => failed.cloned().map_or(Ok(()), Err),
        }
    }

    /// Waits. An error if the device lacks its bytes.
    pub fn wait_for_upload(&mut self, copy: CopyId) -> Result<(), String> {
        if let Some(reason) = self.failed_uploads.remove(&copy) {
            return Err(reason);
        }
        let source = self.copying.get(&copy).filter(|copying| matches!(copying.host, Host::Source { .. }));
        source.map_or(Ok(()), |copying| StreamsOf::<R>::wait(&copying.end))
    }

    /// Whether the copy still uses device memory that nothing else keeps.
    pub fn uses_memory(&self, copy: CopyId) -> bool {
        self.copying.get(&copy).is_some_and(|copying| !matches!(copying.host, Host::Target(..)))
    }

    /// Keeps a dropped block's memory until the copy ends.
    pub fn discard(&mut self, copy: CopyId, token: Token, device: ManagedMemoryHandle) {
        match self.copying.get_mut(&copy) {
            Some(copying) => copying.discarded = Some((token, device)),
            None => self.freed.push_back(token),
        }
    }

    pub fn ended(&mut self) -> Option<(Token, Result<(), String>)> {
        self.release_ended();
        if let Some(token) = self.freed.pop_front() {
            return Some((token, Ok(())));
        }
        let oldest = *self.out.front()?;
        match StreamsOf::<R>::has_ended(&self.copying.get(&oldest)?.end) {
            Ok(false) => None,
            Ok(true) => self.finish(0),
            Err(reason) => self.finish(0).map(|(token, _)| (token, Err(reason))),
        }
    }

    pub fn wait(&mut self, token: Token) -> Result<(), String> {
        if let Some(end) = self.wait_for_discarded(token) {
            return end;
        }
        let is_wanted =
            |copying: &Copying<End<R>>| matches!(copying.host, Host::Target(other, ..) if other == token);
        let position = self.out.iter().position(|id| self.copying.get(id).is_some_and(is_wanted));
        let position = position.ok_or("no such copy is under way")?;
        self.finish(position).map_or(Ok(()), |(_, end)| end)
    }

    fn wait_for_discarded(&mut self, token: Token) -> Option<Result<(), String>> {
        if let Some(at) = self.freed.iter().position(|freed| *freed == token) {
            self.freed.remove(at);
            return Some(Ok(()));
        }
        let is_wanted = |copying: &&mut Copying<End<R>>| {
            copying.discarded.as_ref().is_some_and(|(discarded, _)| *discarded == token)
        };
        let copying = self.copying.values_mut().find(is_wanted)?;
        let end = StreamsOf::<R>::wait(&copying.end);
        copying.discarded = None;
        Some(end)
    }

    fn finish(&mut self, position: usize) -> Option<(Token, Result<(), String>)> {
        let Copying { end, host, .. } = self.copying.remove(&self.out.remove(position)?)?;
        let Host::Target(token, draft, _device) = host else { return None };
        let end = StreamsOf::<R>::wait(&end);
        if end.is_ok() {
            self.landed.insert(token, draft);
        }
        Some((token, end))
    }

    pub fn take_landed(&mut self, token: Token) -> Option<Draft> {
        self.landed.remove(&token)
    }

    pub fn release_ended(&mut self) {
        for under_way in [&mut self.back, &mut self.read] {
            while let Some(oldest) = under_way.front()
                && let Some(copying) = self.copying.get(oldest)
                && let end = StreamsOf::<R>::has_ended(&copying.end)
                && !matches!(end, Ok(false))
            {
                if let (Host::Source { .. }, Err(reason)) = (&copying.host, end) {
                    self.failed_uploads.insert(*oldest, reason);
                }
                let ended = self.copying.remove(oldest);
                self.freed.extend(ended.and_then(|copying| copying.discarded).map(|(token, _)| token));
                under_way.pop_front();
            }
        }
    }

    /// Waits. False if none is under way.
    pub fn end_oldest_upload(&mut self) -> bool {
        let oldest = self.back.front().and_then(|oldest| self.copying.get(oldest));
        let Some(Copying { end, .. }) = oldest else { return false };
        if let Err(reason) = StreamsOf::<R>::wait(end) {
            tracing::warn!(target: crate::journal::TARGET, "waiting for an upload: {reason}");
        }
        let under_way = self.back.len();
        self.release_ended();
        self.back.len() < under_way
    }

    pub fn wait_for_all(&self) {
        for id in self.out.iter().chain(&self.back).chain(&self.read) {
            if let Some(copying) = self.copying.get(id)
                && let Err(reason) = StreamsOf::<R>::wait(&copying.end)
            {
                tracing::warn!(target: crate::journal::TARGET, "waiting for a copy: {reason}");
            }
        }
    }
}

/// A drop waits for the copy, which writes to the memory.
pub(super) struct Reading<R: InnerRuntime> {
    end: Arc<End<R>>,
    host: Option<Bytes>,
}

impl<R: InnerRuntime> Reading<R> {
    pub fn wait(mut self) -> Result<Bytes, String> {
        StreamsOf::<R>::wait(&self.end)?;
        Ok(self.host.take().expect("they are handed over once"))
    }
}

impl<R: InnerRuntime> Drop for Reading<R> {
    fn drop(&mut self) {
        if self.host.is_some()
            && let Err(reason) = StreamsOf::<R>::wait(&self.end)
        {
            tracing::warn!(target: crate::journal::TARGET, "waiting for bytes of a dropped read: {reason}");
        }
    }
}

impl<R: InnerRuntime> Debug for Reading<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reading").field(&self.end).finish()
    }
}

/// Lets a future start work before it waits.
pub(super) async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl<R: InnerRuntime> Drop for Copies<R> {
    fn drop(&mut self) {
        self.wait_for_all();
    }
}
