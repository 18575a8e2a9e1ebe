//! Copies beside the device's work: what a runtime has to offer for them, and those under way.
//!
//! A copy off the device starts after the last work on its buffer, and its memory serves others when it has landed. A copy
//! onto the device starts once its memory is free of earlier work; whoever uses the buffer first waits for it on the
//! device. Until a copy is done its host memory is kept here, and the device memory of one that
//! leaves, whatever becomes of the buffer.

use super::runtime::InnerRuntime;
use crate::tiers::{Draft, Lease};
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::Handle;
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use pager::Token;
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;

/// A runtime's way to copy beside its own work.
#[doc(hidden)]
pub trait SideCopies<S>: Debug + Default + Send {
    /// The end of one copy.
    type End: Debug + Send;

    /// Lets the server begin a stream of its own, by `begin`, and notes which it is.
    fn watch(&mut self, server: &mut S, index: usize, begin: &mut dyn FnMut(&mut S));

    /// Whether buffers of this stream can be copied beside its work.
    fn serves(&self, index: usize) -> bool;

    /// Starts to copy the whole of `device` to `host`, after all that its stream was given.
    ///
    /// # Safety
    /// Both memories stay until the end.
    unsafe fn start_out(
        &mut self,
        server: &mut S,
        device: Handle,
        index: usize,
        host: &mut [u8],
    ) -> Result<Self::End, String>;

    /// Starts to copy `host` to the whole of `device`, after all that its stream was given.
    ///
    /// # Safety
    /// As for [`start_out`](Self::start_out).
    unsafe fn start_back(
        &mut self,
        server: &mut S,
        device: Handle,
        index: usize,
        host: &[u8],
    ) -> Result<Self::End, String>;

    /// Makes what the stream is given from here on happen after the copy.
    fn order(&mut self, index: usize, copy: &Self::End) -> Result<(), String>;

    /// Whether the copy has ended.
    fn has_ended(&self, copy: &Self::End) -> Result<bool, String>;

    /// Waits for the end.
    fn wait(&self, copy: &Self::End) -> Result<(), String>;
}

/// Names a copy for as long as anybody may ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CopyId(u64);

#[derive(Debug)]
struct Copying<E> {
    end: E,
    host: Host,
}

#[derive(Debug)]
enum Host {
    /// Copy to the host. It holds the device memory, which must not be handed out again before the copy ends.
    Target(Token, Draft, ManagedMemoryHandle),
    /// Copy from the host. Its device memory needs no hold: the next owner is ordered after the copy.
    Source { _copy: Lease },
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
        token: Token,
        mut draft: Draft,
    ) -> Result<CopyId, String> {
        let bytes = draft.len() as u64;
        let handle = Handle::from_memory(device.clone(), stream, bytes);
        // SAFETY: both memories are kept in `copying`.
        let end = unsafe { self.side.start_out(server, handle, index, &mut draft) }?;
        let id = self.keep(end, Host::Target(token, draft, device.clone()));
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
        // SAFETY: both memories are kept in `copying`.
        let end = unsafe { self.side.start_back(server, handle, index, copy.bytes()) }?;
        let id = self.keep(end, Host::Source { _copy: copy });
        self.back.push_back(id);
        self.let_go_of_sources();
        Ok(id)
    }

    fn keep(&mut self, end: End<R>, host: Host) -> CopyId {
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
        self.let_go_of_sources();
        let oldest = *self.out.front()?;
        match self.side.has_ended(&self.copying.get(&oldest)?.end) {
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
        let end = self.side.wait(&end);
        if end.is_ok() {
            self.landed.insert(token, draft);
        }
        Some((token, end))
    }

    /// The contents that a move took off the device.
    pub fn take_landed(&mut self, token: Token) -> Option<Draft> {
        self.landed.remove(&token)
    }

    /// Lets go of host memory that finished uploads still hold.
    pub fn let_go_of_sources(&mut self) {
        while let Some(oldest) = self.back.front()
            && let Some(copying) = self.copying.get(oldest)
            && !matches!(self.side.has_ended(&copying.end), Ok(false))
        {
            self.copying.remove(oldest);
            self.back.pop_front();
        }
    }

    /// Waits until nothing is being copied.
    pub fn wait_for_all(&self) {
        for id in self.out.iter().chain(&self.back) {
            if let Some(copying) = self.copying.get(id)
                && let Err(reason) = self.side.wait(&copying.end)
            {
                tracing::warn!(target: crate::journal::TARGET, "waiting for a copy: {reason}");
            }
        }
    }
}

impl<R: InnerRuntime> Drop for Copies<R> {
    fn drop(&mut self) {
        // Memory that is still being written must not go.
        self.wait_for_all();
    }
}
