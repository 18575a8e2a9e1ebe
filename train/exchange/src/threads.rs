//! Ranks as threads of one process: an engine for tests.
//!
//! It carries real bytes, loses ranks, and recovers as Open MPI with ULFM: an error on one rank ends all calls,
//! `commit` agrees on it, and `shrink` continues with the survivors. A [`Fault`] causes this at a chosen call. A
//! dropped rank counts as gone, so no fault or panic leaves another waiting.

mod world;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::engine::{Engine, Message, count_parts, gathered, keep_own};
use crate::error::{Call, Error, Result};
use crate::waiting::Waiting;
use world::{Letter, Shared};

/// One rank of a world within this process.
#[derive(Debug)]
pub struct Threads {
    shared: Arc<Shared>,
    /// This rank's number in the first world; `shrink` renumbers ranks, not seats.
    seat: usize,
    /// Seats of the present world, by rank.
    members: Vec<usize>,
    rank: usize,
    calls: u64,
    faults: Vec<(u64, Fault)>,
    dead: bool,
    expected: Vec<(usize, u8, usize)>,
    /// Whether this call fails here after the others have data.
    deaf: bool,
    waiting: Waiting,
}

/// A fault at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails on this rank, which lives on. `shrink` ignores it.
    Fail,
    /// The call succeeds for others and fails here: data for this rank is lost. Votes ignore it.
    Deaf,
    /// The rank is gone: its calls return errors, and others notice.
    Die,
    /// The call begins later.
    Delay(Duration),
}

/// The ranks of a new world, in order, each for a thread of its own.
///
/// # Panics
///
/// If `ranks` is zero.
pub fn world(ranks: usize) -> Vec<Threads> {
    assert!(ranks > 0, "a world has at least one rank");
    let shared = Arc::new(Shared::new(ranks));
    let rank = |rank| Threads {
        shared: Arc::clone(&shared),
        seat: rank,
        members: (0..ranks).collect(),
        rank,
        calls: 0,
        faults: Vec::new(),
        dead: false,
        expected: Vec::new(),
        deaf: false,
        waiting: Waiting::default(),
    };
    (0..ranks).map(rank).collect()
}

/// Runs `work` on every rank of a new world and returns results in order.
///
/// # Panics
///
/// If `work` panics or `ranks` is zero.
pub fn on_each<T: Send>(ranks: usize, work: impl Fn(Threads) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let running: Vec<_> =
            world(ranks).into_iter().map(|engine| scope.spawn(move || work(engine))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    })
}

impl Threads {
    /// `fault` happens at this rank's call number `at`, counted from zero over all kinds.
    #[must_use]
    pub fn with_fault(mut self, at: u64, fault: Fault) -> Self {
        self.faults.push((at, fault));
        self
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Peers that this rank awaits, for a [`Watchdog`](crate::Watchdog).
    pub fn waiting(&self) -> Waiting {
        self.waiting.clone()
    }

    /// This rank leaves its world when the value is dropped, for callers that keep the engine.
    #[must_use = "it leaves at once otherwise"]
    pub fn leave_later(&self) -> Leaving {
        Leaving { shared: Arc::clone(&self.shared), seat: self.seat }
    }

    fn begin(&mut self, call: Call) -> Result<()> {
        let number = self.calls;
        self.calls += 1;
        let gone = Error::Failed { call, peer: None, reason: "this rank is gone".into() };
        if self.dead {
            return Err(gone);
        }

        match self.faults.iter().find(|(at, _)| *at == number) {
            Some((_, Fault::Fail)) => {
                self.shared.lock().broken = true;
                self.shared.changed();
                Err(Error::Failed { call, peer: None, reason: "an injected fault".into() })
            }
            Some((_, Fault::Deaf)) => {
                self.deaf = true;
                Ok(())
            }
            Some((_, Fault::Die)) => {
                self.die();
                Err(gone)
            }
            Some((_, Fault::Delay(time))) => {
                thread::sleep(*time);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn die(&mut self) {
        self.dead = true;
        drop(self.leave_later());
    }

    fn transfer(&mut self, call: Call, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        self.waiting.begin(call, self.rank, 0..self.members.len());
        let deaf = std::mem::take(&mut self.deaf);
        let done = self.deliver(call, send).and_then(|()| {
            self.collect(call, receive)?;
            if deaf {
                Err(Error::Failed { call, peer: None, reason: "an injected fault".into() })
            } else {
                Ok(())
            }
        });
        self.waiting.end_with(&done);
        if done.is_err() {
            self.shared.lock().broken = true;
            self.shared.changed();
        }
        done
    }

    fn wait_for_messages(&self) {
        if self.expected.is_empty() {
            return self.waiting.end();
        }
        let peers = self.expected.iter().map(|(peer, ..)| *peer);
        self.waiting.begin(Call::Message, self.rank, peers);
    }

    fn deliver(&self, call: Call, send: &[&[u8]]) -> Result<()> {
        let mut world = self.shared.lock();
        if world.broken {
            return Err(Error::Broken { call });
        }
        for (peer, bytes) in send.iter().enumerate().filter(|(peer, _)| *peer != self.rank) {
            let letter = Letter { call, number: world.calls[self.seat], bytes: bytes.to_vec() };
            world.mail.entry((self.seat, self.members[peer])).or_default().push_back(letter);
        }
        world.calls[self.seat] += 1;
        drop(world);
        self.shared.changed();
        Ok(())
    }

    fn collect(&self, call: Call, receive: &mut [&mut [u8]]) -> Result<()> {
        let others = self.members.iter().copied().enumerate().filter(|(peer, _)| *peer != self.rank);
        let mut missing: Vec<(usize, usize)> = others.collect();
        while !missing.is_empty() {
            let (peer, letter) = self.shared.take(call, self.seat, &mut missing)?;
            self.waiting.arrived(peer);
            let part = &mut receive[peer];
            if letter.bytes.len() != part.len() {
                return Err(Error::Bytes { call, peer, expected: part.len(), found: letter.bytes.len() });
            }
            part.copy_from_slice(&letter.bytes);
        }
        Ok(())
    }
}

impl Engine for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.members.len()
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        keep_own(self.rank, self.world(), send, receive)?;
        self.begin(Call::AllToAll)?;
        self.transfer(Call::AllToAll, send, receive)
    }

    fn all_gather(&mut self, parts: &mut [&mut [u8]]) -> Result<()> {
        count_parts(Call::AllGather, self.world(), parts.len())?;
        self.begin(Call::AllGather)?;
        let (send, mut receive) = gathered(self.rank, parts);
        self.transfer(Call::AllGather, &send, &mut receive)
    }

    fn send(&mut self, (peer, tag): (usize, u8), bytes: Vec<u8>) -> Result<()> {
        self.begin(Call::Message)?;
        let mut world = self.shared.lock();
        if world.broken {
            return Err(Error::Broken { call: Call::Message });
        }
        world.messages.entry((self.seat, self.members[peer], tag)).or_default().push_back(bytes);
        drop(world);
        self.shared.changed();
        Ok(())
    }

    fn expect(&mut self, (peer, tag): (usize, u8), len: usize) -> Result<()> {
        self.expected.push((peer, tag, len));
        self.wait_for_messages();
        Ok(())
    }

    fn arrived(&mut self) -> Result<Option<Message>> {
        if self.expected.is_empty() {
            return Ok(None);
        }
        let found = self.shared.message(self.seat, &self.members, &mut self.expected);
        match &found {
            Ok(None) => {}
            Ok(Some(_)) => self.wait_for_messages(),
            Err(_) => {
                self.waiting.fail();
                self.expected.clear();
                self.shared.lock().broken = true;
                self.shared.changed();
            }
        }
        found
    }

    fn barrier(&mut self) -> Result<()> {
        self.begin(Call::Barrier)?;
        let nothing: Vec<&[u8]> = vec![&[]; self.world()];
        let mut received: Vec<&mut [u8]> = nothing.iter().map(|_| -> &mut [u8] { &mut [] }).collect();
        self.transfer(Call::Barrier, &nothing, &mut received)
    }

    fn commit(&mut self, ok: bool) -> Result<bool> {
        if let Err(error) = self.begin(Call::Commit)
            && self.dead
        {
            return Err(error);
        }
        self.deaf = false;
        let agreed = self.shared.agree(Call::Commit, self.seat, ok, &self.waiting, &self.members)?;
        if agreed.whole { Ok(agreed.ok) } else { Err(Error::Broken { call: Call::Commit }) }
    }

    fn survives(&self) -> bool {
        true
    }

    fn shrink(&mut self) -> Result<()> {
        if let Err(error) = self.begin(Call::Shrink)
            && self.dead
        {
            return Err(error);
        }
        let agreed = self.shared.agree(Call::Shrink, self.seat, true, &self.waiting, &self.members)?;
        self.rank = agreed.members.iter().position(|seat| *seat == self.seat).expect("this rank lives");
        self.members = agreed.members;
        self.expected.clear();
        Ok(())
    }
}

/// Leaves the world when dropped.
#[derive(Debug)]
pub struct Leaving {
    shared: Arc<Shared>,
    seat: usize,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.shared.lock().alive[self.seat] = false;
        self.shared.changed();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.die();
    }
}

#[cfg(test)]
mod tests;
