//! Copies beside the device's work: what a runtime has to offer for them, and those under way.
//!
//! A copy off the device starts after the last work on its buffer, and its memory serves others when it has landed. A copy
//! onto the device starts once its memory is free of earlier work, as far as that is known ([`Marks`]); whoever uses the buffer first waits for it on the
//! device. Until a copy is done its host memory is kept here, and the device memory of one that
//! leaves, whatever becomes of the buffer.
//!
//! A read of the program's is copied like a buffer that leaves, to memory that its reader keeps. The buffer stays; whoever
//! uses it next waits for the copy on the device, and so does its stream before the memory serves others
//! (`tensors_read_while_kernels_run_arrive_unchanged`). The buffer counts until the program drops it. A read has begun
//! once its future was polled; later kernels do not wait for the read (`kernels_do_not_wait_for_earlier_reads`).
//!
//! Copies that run in parallel with the work change no bit (`overlapped_copies_shorten_a_step_and_give_the_same_bits`).
//! This holds under each schedule of the stand-in, which finds a missing wait (`a_missing_wait_for_a_copy_is_found`).

use super::marks::Marks;
use super::runtime::InnerRuntime;
use crate::tiers::{Draft, Lease};
use cubecl_common::bytes::Bytes;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::Handle;
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use pager::Token;
use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Debug};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// Rows inside a buffer: where the first starts, how long each is, how far apart they are.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub start: usize,
    pub row: usize,
    pub pitch: usize,
    pub count: usize,
}

impl Rows {
    /// A buffer as a whole.
    pub(super) fn whole(bytes: usize) -> Self {
        Self { start: 0, row: bytes, pitch: bytes, count: 1 }
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let Self { start, row, pitch, count } = *self;
        (0..count).map(move |n| start + n * pitch..start + n * pitch + row)
    }

    pub(super) fn bytes(&self) -> usize {
        self.row * self.count
    }
}

/// A runtime's way to copy beside its own work.
#[doc(hidden)]
pub trait SideCopies<S>: Debug + Default + Send {
    /// The end of one copy.
    type End: Debug + Send + Sync + 'static;

    /// Lets the server begin a stream of its own, by `begin`, and notes which it is.
    fn watch(&mut self, server: &mut S, index: usize, begin: &mut dyn FnMut(&mut S));

    /// Whether buffers of this stream can be copied beside its work.
    fn serves(&self, index: usize) -> bool;

    /// Starts to copy `rows` of `device` to `host`, one behind the other, `after` a point in the work of the stream of this index; after all
    /// that it was given, if there is none.
    ///
    /// # Safety
    /// Both memories stay until the end.
    unsafe fn start_out(
        &mut self,
        server: &mut S,
        device: Handle,
        after: (usize, Option<&Self::End>),
        rows: Rows,
        host: &mut [u8],
    ) -> Result<Self::End, String>;

    /// Starts to copy `host` to the memory at `address`, as long, `after` that point.
    ///
    /// # Safety
    /// As for [`start_out`](Self::start_out).
    unsafe fn start_back(
        &mut self,
        address: u64,
        index: usize,
        host: &[u8],
        after: Option<&Self::End>,
    ) -> Result<Self::End, String>;

    /// Where the buffer lies.
    fn address(server: &mut S, device: Handle) -> Result<u64, String>;

    /// The point that the stream's work has come to when all that it was given is done.
    fn mark(&mut self, index: usize) -> Option<Self::End>;

    /// Makes what the stream is given from here on happen after the copy.
    fn order(&mut self, index: usize, copy: &Self::End) -> Result<(), String>;

    /// Whether the copy has ended.
    fn has_ended(copy: &Self::End) -> Result<bool, String>;

    /// Waits for the end, on any thread.
    fn wait(copy: &Self::End) -> Result<(), String>;
}

/// Names a copy for as long as anybody may ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CopyId(u64);

#[derive(Debug)]
struct Copying<E> {
    end: Arc<E>,
    host: Host,
}

#[derive(Debug)]
enum Host {
    /// Copy to the host. It holds the device memory, which must not be handed out again before the copy ends.
    Target(Token, Draft, ManagedMemoryHandle),
    /// Copy from the host. Its device memory needs no hold: the next owner is ordered after the copy.
    Source { _copy: Lease },
    /// Copy for the program, whose reader holds the host memory. Device memory as above.
    Reader,
}

type Side<R> = <R as InnerRuntime>::Side;
type End<R> = <Side<R> as SideCopies<<R as cubecl_core::Runtime>::Server>>::End;

/// Copies beside the work of one device.
pub(super) struct Copies<R: InnerRuntime> {
    side: Side<R>,
    copying: HashMap<CopyId, Copying<End<R>>>,
    /// Under way in each direction, oldest first: a direction is done in order.
    out: VecDeque<CopyId>,
    back: VecDeque<CopyId>,
    /// Copies for the program, which are off the device as well.
    read: VecDeque<CopyId>,
    /// Points in the work of streams, by their numbers.
    marks: HashMap<usize, Marks<End<R>>>,
    /// Off the device and done, until the pager has said what becomes of the contents.
    landed: HashMap<Token, Draft>,
    started: u64,
}

impl<R: InnerRuntime> Default for Copies<R> {
    fn default() -> Self {
        Self {
            side: Side::<R>::default(),
            copying: HashMap::new(),
            out: VecDeque::new(),
            back: VecDeque::new(),
            read: VecDeque::new(),
            marks: HashMap::new(),
            landed: HashMap::new(),
            started: 0,
        }
    }
}

impl<R: InnerRuntime> Copies<R> {
    pub fn watch(&mut self, server: &mut R::Server, index: usize, begin: &mut dyn FnMut(&mut R::Server)) {
        self.side.watch(server, index, begin);
    }

    pub fn serves(&self, index: usize) -> bool {
        self.side.serves(index)
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
        // SAFETY: both memories are kept in `copying`.
        let end =
            unsafe { self.side.start_out(server, handle, after, Rows::whole(draft.len()), &mut draft) }?;
        marks.moves();
        let id = self.keep(Arc::new(end), Host::Target(token, draft, device.clone()));
        self.out.push_back(id);
        Ok(id)
    }

    pub fn start_back(
        &mut self,
        server: &mut R::Server,
        (device, stream, index): (&ManagedMemoryHandle, StreamId, usize),
        copy: Lease,
    ) -> Result<CopyId, String> {
        let bytes = copy.bytes().len() as u64;
        let handle = Handle::from_memory(device.clone(), stream, bytes);
        let address = Side::<R>::address(server, handle)?;
        let marks = self.marks.entry(index).or_default();
        marks.moves();
        // SAFETY: both memories are kept in `copying`.
        let end = unsafe { self.side.start_back(address, index, copy.bytes(), marks.take(address)) }?;
        let id = self.keep(Arc::new(end), Host::Source { _copy: copy });
        self.back.push_back(id);
        self.let_go_of_ended();
        Ok(id)
    }

    /// Starts to read these rows for the program, into `host`, after all that the stream of this index was given.
    pub fn start_read(
        &mut self,
        server: &mut R::Server,
        (device, rows, index): (Handle, Rows, usize),
        mut host: Bytes,
    ) -> Result<(CopyId, Reading<R>), String> {
        // SAFETY: the host memory is kept by what is returned. Device memory is used by others after the copy, on the device.
        let end = unsafe { self.side.start_out(server, device, (index, None), rows, &mut host) }?;
        let end = Arc::new(end);
        let id = self.keep(end.clone(), Host::Reader);
        self.read.push_back(id);
        self.let_go_of_ended();
        Ok((id, Reading { end, host: Some(host) }))
    }

    /// The stream has been given so many pieces of work, and is about to be given another.
    pub fn mark(&mut self, index: usize, pieces: u64) {
        if let Some(marks) = self.marks.get_mut(&index).filter(|marks| marks.is_moving()) {
            marks.mark(pieces, self.side.mark(index));
        }
    }

    /// Whether it is worth knowing what memory of this stream is let go of.
    pub fn is_moving(&self, index: usize) -> bool {
        self.marks.get(&index).is_some_and(Marks::is_moving)
    }

    /// Memory of this stream is let go of, whose last use was this piece of work; `None` if other work may use it still.
    pub fn let_go(&mut self, server: &mut R::Server, (device, index): (Handle, usize), last: Option<u64>) {
        let Some(marks) = self.marks.get_mut(&index) else { return };
        match Side::<R>::address(server, device) {
            Ok(address) => marks.let_go(address, last),
            Err(_) => marks.forget_all(),
        }
    }

    /// Memory may come from the driver again at an address where other memory was.
    pub fn forget_marks(&mut self) {
        self.marks.values_mut().for_each(Marks::forget_all);
    }

    fn keep(&mut self, end: Arc<End<R>>, host: Host) -> CopyId {
        self.started += 1;
        let id = CopyId(self.started);
        self.copying.insert(id, Copying { end, host });
        id
    }

    /// Makes what the stream is given from here on happen after the copy.
    pub fn order(&mut self, index: usize, copy: CopyId) -> Result<(), String> {
        // The host has seen the end of one that is gone.
        self.copying.get(&copy).map_or(Ok(()), |copying| self.side.order(index, &copying.end))
    }

    /// A copy off the device that has ended since this was asked last.
    pub fn ended(&mut self) -> Option<(Token, Result<(), String>)> {
        self.let_go_of_ended();
        let oldest = *self.out.front()?;
        match Side::<R>::has_ended(&self.copying.get(&oldest)?.end) {
            Ok(false) => None,
            Ok(true) => self.finish(0),
            Err(reason) => self.finish(0).map(|(token, _)| (token, Err(reason))),
        }
    }

    /// Waits for the copy of this move; those before it have ended then, too.
    pub fn wait(&mut self, token: Token) -> Result<(), String> {
        let is_it =
            |copying: &Copying<End<R>>| matches!(copying.host, Host::Target(other, ..) if other == token);
        let position = self.out.iter().position(|id| self.copying.get(id).is_some_and(is_it));
        let position = position.ok_or("no such copy is under way")?;
        self.finish(position).map_or(Ok(()), |(_, end)| end)
    }

    /// Waits for one of the copies off the device, and takes it off the list.
    fn finish(&mut self, position: usize) -> Option<(Token, Result<(), String>)> {
        let Copying { end, host } = self.copying.remove(&self.out.remove(position)?)?;
        let Host::Target(token, draft, _device) = host else { return None };
        let end = Side::<R>::wait(&end);
        if end.is_ok() {
            self.landed.insert(token, draft);
        }
        Some((token, end))
    }

    /// The contents that a move took off the device.
    pub fn take_landed(&mut self, token: Token) -> Option<Draft> {
        self.landed.remove(&token)
    }

    /// Forgets uploads and reads that have ended, and lets go of the host memory that uploads hold.
    pub fn let_go_of_ended(&mut self) {
        for under_way in [&mut self.back, &mut self.read] {
            while let Some(oldest) = under_way.front()
                && let Some(copying) = self.copying.get(oldest)
                && !matches!(Side::<R>::has_ended(&copying.end), Ok(false))
            {
                self.copying.remove(oldest);
                under_way.pop_front();
            }
        }
    }

    /// Waits until nothing is being copied.
    pub fn wait_for_all(&self) {
        for id in self.out.iter().chain(&self.back).chain(&self.read) {
            if let Some(copying) = self.copying.get(id)
                && let Err(reason) = Side::<R>::wait(&copying.end)
            {
                tracing::warn!(target: crate::journal::TARGET, "waiting for a copy: {reason}");
            }
        }
    }
}

/// Bytes on their way to the program. Their memory is not let go before they are there, whoever waits for them.
pub(super) struct Reading<R: InnerRuntime> {
    end: Arc<End<R>>,
    /// There until they are handed over.
    host: Option<Bytes>,
}

impl<R: InnerRuntime> Reading<R> {
    /// Waits for the bytes.
    pub fn wait(mut self) -> Result<Bytes, String> {
        Side::<R>::wait(&self.end)?;
        Ok(self.host.take().expect("they are handed over once"))
    }
}

impl<R: InnerRuntime> Drop for Reading<R> {
    fn drop(&mut self) {
        if self.host.is_some()
            && let Err(reason) = Side::<R>::wait(&self.end)
        {
            tracing::warn!(target: crate::journal::TARGET, "waiting for bytes that nobody reads: {reason}");
        }
    }
}

impl<R: InnerRuntime> Debug for Reading<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reading").field(&self.end).finish()
    }
}

/// Pending once. Whoever polls a future with this in it has begun what comes before, and may do other things before the rest.
pub(super) async fn begun() {
    let mut is_begun = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_begun, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl<R: InnerRuntime> Drop for Copies<R> {
    fn drop(&mut self) {
        // Memory that is still being written must not go.
        self.wait_for_all();
    }
}
