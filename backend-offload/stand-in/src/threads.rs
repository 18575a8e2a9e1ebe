//! Hosts: threads that share time and knowledge.
//!
//! Handovers are invisible, so one thread's wait may precede any other's next call: all are one host. A thread that
//! creates a stream where another thread created one is a host of its own. Hosts meet at events: their record precedes
//! waits.
//!
//! A thread that `STAND_IN_WAITERS` names only waits. It has a time of its own, which others reach at the next wait of
//! a thread that submits nothing either: by then they may have what it waited for.

use std::{
    collections::{HashMap, HashSet},
    thread::{self, ThreadId},
};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostId(usize);

impl HostId {
    pub(crate) const SHARED: Self = Self(0);

    pub(crate) const fn from_index(index: usize) -> Self {
        Self(index)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// A thread's knowledge and time.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hosts {
    pub(crate) order: HostId,
    pub(crate) time: HostId,
}

#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// By device, the thread that created its first stream.
    first: HashMap<usize, ThreadId>,
    apart: HashMap<ThreadId, Hosts>,
    /// Threads that only wait, by name as far as the system keeps it. Those of one name share a time.
    waiters: Vec<(String, Option<HostId>)>,
    /// Threads whose name is known.
    known: HashSet<ThreadId>,
}

/// Bytes of a thread's name that Linux keeps.
const NAME: usize = 15;

impl Threads {
    pub(crate) fn named(waiters: &[String]) -> Self {
        let kept = |name: &String| (name.chars().take(NAME).collect(), None);
        Self { waiters: waiters.iter().map(kept).collect(), ..Self::default() }
    }

    pub(crate) fn calling(&self) -> Hosts {
        if self.apart.is_empty() {
            return Hosts::default();
        }
        self.apart.get(&thread::current().id()).copied().unwrap_or_default()
    }

    /// True if the calling thread needs hosts of its own.
    pub(crate) fn creates_stream(&mut self, device: usize) -> bool {
        let this = thread::current().id();
        let is_first = *self.first.entry(device).or_insert(this) == this;
        !is_first && self.apart.get(&this).is_none_or(|hosts| hosts.order == HostId::SHARED)
    }

    /// At the first call of a thread that only waits. `time` makes a time, or begins anew with that of its name.
    pub(crate) fn begin_to_wait(&mut self, time: impl FnOnce(Option<HostId>) -> HostId) -> bool {
        if self.waiters.is_empty() || !self.known.insert(thread::current().id()) {
            return false;
        }
        let name = own_name();
        let Some((_, waits)) = self.waiters.iter_mut().find(|(waiter, _)| *waiter == name) else {
            return false;
        };
        let time = time(*waits);
        *waits = Some(time);
        self.set_apart(Hosts { time, ..Hosts::default() });
        true
    }

    pub(crate) fn set_apart(&mut self, hosts: Hosts) {
        self.apart.insert(thread::current().id(), hosts);
    }

    /// Whether the calling thread shares its time, and created no stream.
    pub(crate) fn only_asks(&self) -> bool {
        let this = thread::current().id();
        !self.apart.contains_key(&this) && !self.first.values().any(|first| *first == this)
    }

    /// Times of the threads that only wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = HostId> + use<'_> {
        self.waiters.iter().filter_map(|(_, time)| *time)
    }
}

fn own_name() -> String {
    let mut name = [0_u8; NAME + 1];
    // SAFETY: the buffer has room for the longest name and its end.
    let code = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    if code == 0 { String::from_utf8_lossy(&name[..end]).into_owned() } else { String::new() }
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
                assert_eq!(threads.calling(), Hosts::default());
                assert!(threads.creates_stream(0));
                let own = Hosts { order: HostId(1), time: HostId(1) };
                threads.set_apart(own);
                assert!(!threads.creates_stream(0) && !threads.creates_stream(1));
                assert_eq!(threads.calling(), own);
            });
            other.join().expect("no panic");
        });
        assert_eq!(threads.calling(), Hosts::default());
        thread::scope(|scope| scope.spawn(|| assert!(!threads.creates_stream(2))).join().expect("no panic"));
    }

    #[test]
    fn a_named_thread_waits_on_its_own_time_and_knows_what_all_know() {
        let mut threads = Threads::named(&["a name longer than fifteen".to_owned()]);
        let own = |_| -> HostId { unreachable!("it is named") };
        assert!(!threads.creates_stream(0) && !threads.begin_to_wait(own) && !threads.only_asks());
        let run = |name: &str, body: &mut (dyn FnMut() + Send)| {
            thread::scope(|scope| {
                let thread = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, body);
                thread.expect("spawned").join().expect("no panic");
            });
        };
        for before in [None, Some(HostId(1))] {
            run("a name longer than others", &mut || {
                let time = |known| {
                    assert_eq!(known, before);
                    HostId(1)
                };
                assert!(threads.begin_to_wait(time) && !threads.begin_to_wait(own));
                assert_eq!(threads.calling(), Hosts { time: HostId(1), order: HostId::SHARED });
                assert!(!threads.only_asks());
            });
        }
        assert_eq!(threads.waiting().collect::<Vec<_>>(), [HostId(1)]);
        run("another", &mut || assert!(!threads.begin_to_wait(own) && threads.only_asks()));
    }
}
