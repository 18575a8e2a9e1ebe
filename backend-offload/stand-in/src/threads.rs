//! Hosts: threads that share time and knowledge.
//!
//! Handovers are invisible, so one thread's wait may precede any other's next call: all are one host. A thread that
//! creates a stream where another thread created one is a host of its own. Hosts meet at events: their record precedes
//! waits.

use std::{
    collections::HashMap,
    thread::{self, ThreadId},
};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostId(usize);

impl HostId {
    pub(crate) const SHARED: Self = Self(0);

    #[cfg(test)]
    pub(crate) const fn from_index(index: usize) -> Self {
        Self(index)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }
}

#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// By device, the thread that created its first stream.
    first: HashMap<usize, ThreadId>,
    apart: HashMap<ThreadId, HostId>,
}

impl Threads {
    pub(crate) fn calling(&self) -> HostId {
        if self.apart.is_empty() {
            return HostId::SHARED;
        }
        self.apart.get(&thread::current().id()).copied().unwrap_or_default()
    }

    /// True if the calling thread becomes the last host.
    pub(crate) fn creates_stream(&mut self, device: usize) -> bool {
        let this = thread::current().id();
        let is_first = *self.first.entry(device).or_insert(this) == this;
        if is_first || self.apart.contains_key(&this) {
            return false;
        }
        self.apart.insert(this, HostId(self.apart.len() + 1));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_a_host_of_its_own_once_it_creates_a_stream_beside_another_threads() {
        let mut threads = Threads::default();
        assert!(!threads.creates_stream(0) && !threads.creates_stream(1));
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert_eq!(threads.calling(), HostId::SHARED);
                assert!(
                    threads.creates_stream(0) && !threads.creates_stream(0) && !threads.creates_stream(1)
                );
                assert_eq!(threads.calling(), HostId(1));
            });
            other.join().expect("no panic");
        });
        assert_eq!(threads.calling(), HostId::SHARED);
        thread::scope(|scope| scope.spawn(|| assert!(!threads.creates_stream(2))).join().expect("no panic"));
    }
}
