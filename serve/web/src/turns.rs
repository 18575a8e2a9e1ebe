//! Waiting sequences, taken in turn over networks and their connections.
//!
//! A sequence waits for its connection's earlier ones and for one of each other network's
//! (`a_request_of_many_answers_does_not_starve_another_connection`).

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::queue::Job;

/// Lines by key, next to serve first; none is empty.
type Lines<K, T> = VecDeque<(K, T)>;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    networks: Lines<IpAddr, Lines<u64, VecDeque<Job>>>,
    count: usize,
}

impl Turns {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn push(&mut self, job: Job) {
        let connections = line_of(&mut self.networks, job.client.network);
        line_of(connections, job.client.connection).push_back(job);
        self.count += 1;
    }

    pub(crate) fn peek(&self) -> Option<&Job> {
        self.networks.front()?.1.front()?.1.front()
    }

    /// The served network and connection then come last.
    pub(crate) fn pop(&mut self) -> Option<Job> {
        let (network, mut connections) = self.networks.pop_front()?;
        let (connection, mut jobs) = connections.pop_front()?;
        let job = jobs.pop_front()?;
        self.count -= 1;
        if !jobs.is_empty() {
            connections.push_back((connection, jobs));
        }
        if !connections.is_empty() {
            self.networks.push_back((network, connections));
        }
        Some(job)
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Job) -> bool) {
        self.networks.retain_mut(|(_, connections)| {
            connections.retain_mut(|(_, jobs)| {
                jobs.retain(&keep);
                !jobs.is_empty()
            });
            !connections.is_empty()
        });
        let connections = self.networks.iter().flat_map(|(_, connections)| connections);
        self.count = connections.map(|(_, jobs)| jobs.len()).sum();
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn line_of<K: PartialEq, T: Default>(lines: &mut Lines<K, T>, key: K) -> &mut T {
    let at = lines.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
        lines.push_back((key, T::default()));
        lines.len() - 1
    });
    &mut lines[at].1
}
