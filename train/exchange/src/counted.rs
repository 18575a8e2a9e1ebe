//! An engine that counts its bytes and its time.

use std::time::{Duration, Instant};

use crate::engine::{Engine, Message};
use crate::error::Result;
use crate::watchdog::Watchdog;

/// An engine that counts. Bytes exclude its headers.
#[derive(Debug, Clone, Default)]
pub struct Counted<E> {
    inner: E,
    costs: Costs,
}

/// Costs since the engine was wrapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Costs {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Collective calls and messages sent, including failed ones.
    pub calls: u64,
    /// Time within calls, waits included.
    pub time: Duration,
}

impl<E: Engine> Counted<E> {
    /// Starts at zero.
    pub fn new(inner: E) -> Self {
        Self { inner, costs: Costs::default() }
    }

    /// Costs so far.
    pub fn costs(&self) -> Costs {
        self.costs
    }

    fn timed<T>(&mut self, call: impl FnOnce(&mut E) -> T) -> T {
        let began = Instant::now();
        let result = call(&mut self.inner);
        self.costs.calls += 1;
        self.costs.time += began.elapsed();
        result
    }

    fn of_others<P: AsRef<[u8]>>(&self, parts: &[P]) -> u64 {
        let others = parts.iter().enumerate().filter(|(peer, _)| *peer != self.inner.rank());
        others.map(|(_, part)| part.as_ref().len() as u64).sum()
    }
}

impl<E: Engine> Engine for Counted<E> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        self.costs.sent += self.of_others(send);
        self.costs.received += self.of_others(receive);
        self.timed(|inner| inner.all_to_all(send, receive))
    }

    fn all_gather(&mut self, parts: &mut [&mut [u8]]) -> Result<()> {
        let others = self.inner.world() as u64 - 1;
        let own = parts.get(self.inner.rank()).map_or(0, |part| part.len() as u64);
        self.costs.sent += others * own;
        self.costs.received += self.of_others(parts);
        self.timed(|inner| inner.all_gather(parts))
    }

    fn send(&mut self, to: (usize, u8), bytes: Vec<u8>) -> Result<()> {
        self.costs.sent += bytes.len() as u64;
        self.timed(|inner| inner.send(to, bytes))
    }

    fn expect(&mut self, from: (usize, u8), len: usize) -> Result<()> {
        self.inner.expect(from, len)
    }

    fn arrived(&mut self) -> Result<Option<Message>> {
        let arrived = self.inner.arrived()?;
        self.costs.received += arrived.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64);
        Ok(arrived)
    }

    fn is_sending(&self) -> bool {
        self.inner.is_sending()
    }

    fn finish_sending(&mut self) -> Result<()> {
        self.inner.finish_sending()
    }

    fn barrier(&mut self) -> Result<()> {
        self.timed(E::barrier)
    }

    fn commit(&mut self, ok: bool) -> Result<bool> {
        self.timed(|inner| inner.commit(ok))
    }

    fn survives(&self) -> bool {
        self.inner.survives()
    }

    fn shrink(&mut self) -> Result<()> {
        self.timed(E::shrink)
    }

    fn watchdog(&self, limit: Duration) -> Option<Watchdog> {
        self.inner.watchdog(limit)
    }
}
