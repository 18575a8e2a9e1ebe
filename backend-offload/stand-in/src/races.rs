//! Missing waits: two unordered accesses to the same memory of a device, or copies through the same page-locked memory,
//! at least one a write. Requests reveal them in one run of any mode. A program's own accesses are unseen.
//!
//! Streams have vector clocks; events carry them, and waits merge them. What a [host](crate::threads) has waited for
//! precedes its later requests and records. A kernel's operand counts as one byte: its extent is unknown.

use std::{collections::BTreeMap, ops::Range};

use crate::{schedule::StreamId, threads::HostId};

/// For each stream, the work known to have happened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Vec<u64>);

/// Its number in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    stream: StreamId,
    count: u64,
}

impl Clock {
    fn merge(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    fn advance(&mut self, stream: StreamId) -> Moment {
        let index = stream.index();
        self.0.resize(self.0.len().max(index + 1), 0);
        self.0[index] += 1;
        Moment { stream, count: self.0[index] }
    }

    fn has(&self, moment: Moment) -> bool {
        self.0.get(moment.stream.index()).is_some_and(|count| *count >= moment.count)
    }
}

#[derive(Debug)]
pub(crate) struct KnownOrder {
    streams: Vec<Clock>,
    hosts: Vec<Clock>,
    /// The calling one.
    host: HostId,
}

impl Default for KnownOrder {
    fn default() -> Self {
        Self { streams: Vec::new(), hosts: vec![Clock::default()], host: HostId::SHARED }
    }
}

impl KnownOrder {
    pub(crate) fn host_calls(&mut self, host: HostId) {
        self.host = host;
    }

    /// With the caller's knowledge.
    pub(crate) fn begin_host(&mut self) -> HostId {
        self.hosts.push(self.hosts[self.host.index()].clone());
        HostId::from_index(self.hosts.len() - 1)
    }

    /// What an event's waiters know.
    pub(crate) fn record(&mut self, stream: StreamId) -> Clock {
        let mut clock = self.clock(stream).clone();
        clock.merge(&self.hosts[self.host.index()]);
        clock
    }

    pub(crate) fn begin_work(&mut self, stream: StreamId) -> Moment {
        let host = self.hosts[self.host.index()].clone();
        let clock = self.clock(stream);
        clock.merge(&host);
        clock.advance(stream)
    }

    pub(crate) fn clock(&mut self, stream: StreamId) -> &mut Clock {
        if self.streams.len() <= stream.index() {
            self.streams.resize(stream.index() + 1, Clock::default());
        }
        &mut self.streams[stream.index()]
    }

    pub(crate) fn stream_waits(&mut self, stream: StreamId, clock: &Clock) {
        self.clock(stream).merge(clock);
    }

    pub(crate) fn host_waits(&mut self, clock: &Clock) {
        self.hosts[self.host.index()].merge(clock);
    }

    pub(crate) fn host_has(&self, moment: Moment) -> bool {
        self.hosts[self.host.index()].has(moment)
    }

    fn any_host_has(&self, moment: Moment) -> bool {
        self.hosts.iter().any(|clock| clock.has(moment))
    }

    pub(crate) fn host_waits_for_all(&mut self) {
        for clock in &self.streams {
            self.hosts[self.host.index()].merge(clock);
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) range: Range<u64>,
    pub(crate) writes: bool,
    pub(crate) actor: String,
    /// Of page-locked memory, which a thread may hand over after its wait: one host's knowledge suffices.
    pub(crate) on_host: bool,
}

#[derive(Debug)]
struct PastAccess {
    access: Access,
    when: Moment,
}

#[derive(Debug, Default)]
pub(crate) struct Races(BTreeMap<u64, Vec<PastAccess>>);

impl Races {
    /// Returns a line for each race with an earlier access.
    pub(crate) fn touch(
        &mut self,
        block: u64,
        access: Access,
        when: Moment,
        order: &KnownOrder,
    ) -> Vec<String> {
        let clock = &order.streams[when.stream.index()];
        let handed_over = |moment| access.on_host && order.any_host_has(moment);
        let earlier = self.0.entry(block).or_default();
        let races = earlier
            .iter()
            .filter(|old| old.when.stream != when.stream && !clock.has(old.when) && !handed_over(old.when))
            .filter(|old| access.writes || old.access.writes)
            .filter_map(|old| Some((old, intersection(&old.access.range, &access.range)?)))
            .map(|(old, both)| describe(block, old, &access, when, &both))
            .collect();
        // Drops accesses that the shared host has waited for, that were handed over, or that this one covers.
        earlier.retain(|old| {
            let covered = old.when.stream == when.stream
                && access.range.start <= old.access.range.start
                && old.access.range.end <= access.range.end
                && (access.writes || !old.access.writes);
            !covered && !order.hosts[HostId::SHARED.index()].has(old.when) && !handed_over(old.when)
        });
        earlier.push(PastAccess { access, when });
        races
    }

    pub(crate) fn forget(&mut self, block: u64) {
        self.0.remove(&block);
    }
}

fn intersection(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

fn describe(block: u64, old: &PastAccess, access: &Access, when: Moment, both: &Range<u64>) -> String {
    let verb = |access: &Access| if access.writes { "writes" } else { "reads" };
    format!(
        "stream {} {} ({}) what stream {} {} ({}), and nothing orders the two: {} bytes at offset {}",
        when.stream.index(),
        verb(access),
        access.actor,
        old.when.stream.index(),
        verb(&old.access),
        old.access.actor,
        both.end - both.start,
        both.start - block,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId::from_index(0);
    const B: StreamId = StreamId::from_index(1);

    #[derive(Default)]
    struct Program {
        order: KnownOrder,
        races: Races,
    }

    impl Program {
        fn touch(&mut self, stream: StreamId, range: Range<u64>, writes: bool) -> usize {
            self.access(stream, range, writes, false)
        }

        fn access(&mut self, stream: StreamId, range: Range<u64>, writes: bool, on_host: bool) -> usize {
            let when = self.order.begin_work(stream);
            let access = Access { range, writes, actor: "test".into(), on_host };
            self.races.touch(0, access, when, &self.order).len()
        }

        fn wait(&mut self, stream: StreamId, on: StreamId) {
            let clock = self.order.clock(on).clone();
            self.order.stream_waits(stream, &clock);
        }
    }

    #[test]
    fn a_write_races_with_another_streams_access_and_reads_do_not_race() {
        let mut program = Program::default();
        assert_eq!(program.touch(A, 0..8, false), 0);
        assert_eq!(program.touch(B, 0..8, false), 0);
        assert_eq!(program.touch(B, 4..6, true), 1);
        assert_eq!(program.touch(A, 5..9, false), 1);
    }

    #[test]
    fn disjoint_accesses_do_not_race() {
        let mut program = Program::default();
        assert_eq!(program.touch(A, 0..8, true), 0);
        assert_eq!(program.touch(B, 8..16, true), 0);
    }

    #[test]
    fn a_wait_orders_earlier_work_and_no_later_work() {
        let mut program = Program::default();
        program.touch(A, 0..8, true);
        program.wait(B, A);
        assert_eq!(program.touch(B, 0..8, true), 0);
        program.wait(A, B);
        program.touch(A, 0..8, true);
        assert_eq!(program.touch(B, 0..8, true), 1);
    }

    #[test]
    fn waits_are_transitive() {
        let c = StreamId::from_index(2);
        let mut program = Program::default();
        program.touch(A, 0..8, true);
        program.wait(B, A);
        program.wait(c, B);
        assert_eq!(program.touch(c, 0..8, true), 0);
    }

    #[test]
    fn work_the_host_waited_for_precedes_all_later_work_and_is_forgotten() {
        let mut program = Program::default();
        program.touch(A, 0..8, true);
        let clock = program.order.clock(A).clone();
        program.order.host_waits(&clock);
        assert_eq!(program.touch(B, 0..8, true), 0);
        assert_eq!(program.races.0[&0].len(), 1);
    }

    #[test]
    fn what_one_host_waited_for_is_known_to_another_only_by_an_event() {
        let mut program = Program::default();
        program.touch(A, 0..8, true);
        program.order.begin_host();
        program.order.host_calls(HostId::from_index(1));
        let clock = program.order.clock(A).clone();
        program.order.host_waits(&clock);
        let event = program.order.record(StreamId::from_index(2));
        program.order.host_calls(HostId::SHARED);
        assert_eq!(program.touch(B, 0..8, true), 1);
        program.order.stream_waits(B, &event);
        assert_eq!(program.touch(B, 0..8, true), 0);
    }

    #[test]
    fn page_locked_memory_may_be_handed_over_by_any_host_that_waited() {
        let mut program = Program::default();
        program.access(A, 0..8, true, true);
        assert_eq!(program.access(B, 0..8, false, true), 1);
        program.order.begin_host();
        program.order.host_calls(HostId::from_index(1));
        let clock = program.order.clock(A).clone();
        program.order.host_waits(&clock);
        program.order.host_calls(HostId::SHARED);
        assert_eq!(program.access(StreamId::from_index(2), 0..8, false, true), 0);
    }

    #[test]
    fn an_earlier_access_stays_known_where_a_later_one_covers_part_of_it() {
        let mut program = Program::default();
        program.touch(A, 0..8, true);
        program.touch(A, 0..4, true);
        assert_eq!(program.touch(B, 6..8, false), 1);
        assert_eq!(program.touch(B, 0..8, true), 2);
    }
}
