//! The order of queued work: a pure function of work, mode and seed. The caller executes it.
//!
//! As in CUDA, a stream's work happens in order, and work after a wait follows the wait's target. All else is free.
//! `Random` runs some streams far ahead, others only when forced.
//!
//! An event is a [`Mark`], a position in a stream. Marks refer to earlier work, so waits form no cycle.

use std::collections::VecDeque;

use crate::{random::Random, settings::Mode};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StreamId(usize);

impl StreamId {
    #[cfg(test)]
    pub(crate) const fn from_index(index: usize) -> Self {
        Self(index)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) stream: StreamId,
    position: u64,
    /// Whether the stream had work besides waits.
    pub(crate) after_work: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// Nothing must happen; the mode decides.
    Optional,
    Progress(StreamId),
    Mark(Mark),
    Stream(StreamId),
    Everything,
}

#[derive(Debug)]
enum Entry<W> {
    Work(W),
    Wait(Mark),
}

#[derive(Debug)]
struct Stream<W> {
    queue: VecDeque<Entry<W>>,
    done: u64,
    worked: bool,
    /// Probability of running when not forced.
    eagerness: f64,
}

#[derive(Debug)]
pub(crate) struct Schedule<W> {
    mode: Mode,
    random: Random,
    streams: Vec<Stream<W>>,
}

/// In `Random`: the chance that an unrelated stream is drawn first, and the least that it then runs.
const UNRELATED_CHANCE: f64 = 0.5;
const LEAST_EAGERNESS: f64 = 0.05;

impl<W> Schedule<W> {
    pub(crate) fn new(mode: Mode, seed: u64) -> Self {
        Self { mode, random: Random::new(seed), streams: Vec::new() }
    }

    pub(crate) fn create_stream(&mut self) -> StreamId {
        let eagerness = match self.random.fraction() {
            roll if roll < 0.35 => 0.0,
            roll if roll < 0.65 => 1.0,
            _ => self.random.fraction(),
        };
        self.streams.push(Stream { queue: VecDeque::new(), done: 0, worked: false, eagerness });
        StreamId(self.streams.len() - 1)
    }

    pub(crate) fn push(&mut self, stream: StreamId, work: W) {
        let stream = &mut self.streams[stream.0];
        stream.worked = true;
        stream.queue.push_back(Entry::Work(work));
    }

    pub(crate) fn mark(&self, id: StreamId) -> Mark {
        let stream = &self.streams[id.0];
        Mark { stream: id, position: stream.done + stream.queue.len() as u64, after_work: stream.worked }
    }

    pub(crate) fn wait(&mut self, stream: StreamId, mark: Mark) {
        if !self.is_done(mark) {
            self.streams[stream.0].queue.push_back(Entry::Wait(mark));
        }
    }

    pub(crate) fn is_done(&self, mark: Mark) -> bool {
        self.streams[mark.stream.0].done >= mark.position
    }

    pub(crate) fn is_idle(&self, stream: StreamId) -> bool {
        self.streams[stream.0].queue.is_empty()
    }

    pub(crate) fn pending(&self) -> impl Iterator<Item = &W> {
        self.streams.iter().flat_map(|stream| &stream.queue).filter_map(|entry| match entry {
            Entry::Work(work) => Some(work),
            Entry::Wait(_) => None,
        })
    }

    /// For each stream with such work, the mark right after its last.
    pub(crate) fn last_pending(&self, is_such: impl Fn(&W) -> bool) -> Vec<Mark> {
        let last = |id: StreamId| {
            let stream = &self.streams[id.0];
            let is_such = |entry: &Entry<W>| matches!(entry, Entry::Work(work) if is_such(work));
            let index = stream.queue.iter().rposition(is_such)?;
            Some(Mark { stream: id, position: stream.done + index as u64 + 1, after_work: true })
        };
        self.ids().filter_map(last).collect()
    }

    /// The work to execute before the next call; `None` at the goal.
    pub(crate) fn next(&mut self, goal: Goal) -> Option<W> {
        loop {
            let stream = self.choose(goal)?;
            if let Entry::Work(work) = self.take(stream) {
                return Some(work);
            }
        }
    }

    fn take(&mut self, stream: StreamId) -> Entry<W> {
        let stream = &mut self.streams[stream.0];
        stream.done += 1;
        stream.queue.pop_front().expect("only a stream with a front is chosen")
    }

    fn choose(&mut self, goal: Goal) -> Option<StreamId> {
        let stream = match goal {
            Goal::Optional => return self.choose_optional(),
            Goal::Mark(mark) if self.is_done(mark) => return None,
            Goal::Mark(Mark { stream, .. }) | Goal::Stream(stream) | Goal::Progress(stream) => stream,
            Goal::Everything => self.ids().find(|id| !self.is_idle(*id))?,
        };
        if self.is_idle(stream) {
            return None;
        }
        Some(self.unrelated_stream().unwrap_or_else(|| self.stream_to_run_for(stream)))
    }

    fn choose_optional(&mut self) -> Option<StreamId> {
        match self.mode {
            Mode::Eager => self.ids().find(|id| self.is_ready(*id)),
            Mode::Lazy => None,
            Mode::Random => {
                let ready: Vec<StreamId> = self.ids().filter(|id| self.is_ready(*id)).collect();
                let willing: Vec<StreamId> = ready
                    .into_iter()
                    .filter(|id| self.random.fraction() < self.streams[id.0].eagerness)
                    .collect();
                (!willing.is_empty()).then(|| willing[self.random.below(willing.len())])
            }
        }
    }

    fn unrelated_stream(&mut self) -> Option<StreamId> {
        if self.mode != Mode::Random || self.random.fraction() >= UNRELATED_CHANCE {
            return None;
        }
        let id = StreamId(self.random.below(self.streams.len()));
        let chance = self.streams[id.0].eagerness.max(LEAST_EAGERNESS);
        (self.is_ready(id) && self.random.fraction() < chance).then_some(id)
    }

    /// `stream` itself, or the end of its chain of waits.
    fn stream_to_run_for(&self, mut stream: StreamId) -> StreamId {
        while let Some(Entry::Wait(mark)) = self.streams[stream.0].queue.front() {
            if self.is_done(*mark) {
                break;
            }
            stream = mark.stream;
        }
        stream
    }

    fn is_ready(&self, id: StreamId) -> bool {
        match self.streams[id.0].queue.front() {
            Some(Entry::Work(_)) => true,
            Some(Entry::Wait(mark)) => self.is_done(*mark),
            None => false,
        }
    }

    fn ids(&self) -> impl Iterator<Item = StreamId> + use<W> {
        (0..self.streams.len()).map(StreamId)
    }
}

#[cfg(test)]
mod tests;
