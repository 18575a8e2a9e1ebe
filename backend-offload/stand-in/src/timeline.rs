//! A simulated clock of host and streams, with one engine for kernels and one per copy direction.
//!
//! Calls advance the time of their [host](crate::threads) by their [`Prices`]; work starts no earlier than its call.

use std::{collections::VecDeque, fs::File, io::Write as _};

use crate::{
    prices::{CallKind, Memory, Price, Prices},
    report,
    schedule::StreamId,
    settings::Settings,
    threads::HostId,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    ToDevice,
    ToHost,
    Compute,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) call: &'static str,
    pub(crate) name: &'a str,
    pub(crate) engine: Engine,
    pub(crate) bytes: u64,
    /// Bytes of device memory that the compute engine touches.
    pub(crate) touched: u64,
    pub(crate) pageable: bool,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    prices: Prices,
    /// Times of the next calls, by host.
    hosts: Vec<f64>,
    /// The calling one.
    host: HostId,
    streams: Vec<StreamTime>,
    engines: [Busy; 3],
    trace: Option<File>,
}

#[derive(Debug, Default, Clone)]
struct StreamTime {
    /// End of its work.
    end: f64,
    /// Ends of its work not yet seen, unless its queue is unlimited.
    queued: VecDeque<f64>,
}

/// Bytes. Smaller copies run between the pieces of larger ones. Smaller pageable uploads leave the host free once
/// staged.
const LARGE: u64 = 64 << 10;

/// Intervals kept for hosts that fall behind.
const REMEMBERED: usize = 4096;

/// Disjoint, ordered intervals with usable gaps.
#[derive(Debug, Default)]
struct Busy {
    intervals: Vec<(f64, f64)>,
    /// Nothing starts earlier.
    forgotten: f64,
}

impl Busy {
    /// Takes the first sufficient gap from `ready` on. Later calls ask for no time before `now`.
    fn take(&mut self, now: f64, ready: f64, seconds: f64) -> f64 {
        let passed = self.intervals.partition_point(|(_, end)| *end <= now);
        let excess = self.intervals.len().saturating_sub(REMEMBERED);
        if let Some((_, end)) = self.intervals.drain(..passed.max(excess)).next_back() {
            self.forgotten = self.forgotten.max(end);
        }

        let mut start = ready.max(self.forgotten);
        let mut place = self.intervals.partition_point(|(_, end)| *end <= start);
        for (begin, end) in &self.intervals[place..] {
            if start + seconds <= *begin {
                break;
            }
            start = start.max(*end);
            place += 1;
        }
        self.intervals.insert(place, (start, start + seconds));
        start
    }
}

impl Timeline {
    pub(crate) fn new(settings: &Settings) -> Self {
        let trace = settings.trace.as_ref().and_then(|path| {
            let file = File::create(path);
            if let Err(error) = &file {
                eprintln!("stand-in: the trace {} could not be made: {error}", path.display());
            }
            file.ok()
        });
        Self {
            prices: settings.prices,
            hosts: vec![0.0],
            host: HostId::SHARED,
            streams: Vec::new(),
            engines: Default::default(),
            trace,
        }
    }

    pub(crate) fn host_calls(&mut self, host: HostId) {
        self.host = host;
    }

    /// At the caller's time.
    pub(crate) fn begin_host(&mut self) -> HostId {
        self.add_host(self.now())
    }

    /// At the shared time, or later if its name has waited.
    pub(crate) fn begin_waiter(&mut self, known: Option<HostId>) -> HostId {
        let shared = self.hosts[HostId::SHARED.index()];
        let Some(known) = known else { return self.add_host(shared) };
        let time = &mut self.hosts[known.index()];
        *time = time.max(shared);
        known
    }

    fn add_host(&mut self, time: f64) -> HostId {
        self.hosts.push(time);
        HostId::from_index(self.hosts.len() - 1)
    }

    pub(crate) fn host_meets(&mut self, others: impl Iterator<Item = HostId>) {
        let latest = others.map(|host| self.hosts[host.index()]).fold(0.0, f64::max);
        self.host_reaches(latest);
    }

    pub(crate) fn now(&self) -> f64 {
        self.hosts[self.host.index()]
    }

    pub(crate) fn book(&mut self, stream: StreamId, task: Task<'_>) {
        let Task { call, name, engine, bytes, touched, pageable } = task;
        self.wait_for_a_place(stream, call);
        let seconds = match engine {
            Engine::Compute => self.prices.kernels.seconds(touched),
            Engine::ToDevice | Engine::ToHost => self.prices.link.seconds(bytes, pageable),
        };
        let called = self.now();
        let earliest = self.hosts.iter().copied().fold(called, f64::min);
        let ready = called.max(self.end_of(stream));
        let slips_in = engine != Engine::Compute && bytes < LARGE;
        let start =
            if slips_in { ready } else { self.engines[engine as usize].take(earliest, ready, seconds) };
        let end = start + seconds;

        let times = &mut self.streams[stream.index()];
        times.end = end;
        if self.prices.queue_depth < usize::MAX {
            times.queued.push_back(end);
        }
        if engine == Engine::ToDevice && pageable {
            self.stage(bytes, end, call);
        }

        self.write(&format!(
            "{{\"stream\":{},\"kind\":\"{}\",\"name\":\"{name}\",\"bytes\":{bytes},\"called_us\":{:.2},\
             \"start_us\":{:.2},\"end_us\":{:.2}}}",
            stream.index(),
            ["to device", "to host", "compute"][engine as usize],
            called * 1e6,
            start * 1e6,
            end * 1e6,
        ));
        report::count(|counters| counters.host.simulated_ms = counters.host.simulated_ms.max(end * 1e3));
    }

    /// A full queue holds up the host until its oldest work ends.
    fn wait_for_a_place(&mut self, stream: StreamId, call: &'static str) {
        self.end_of(stream);
        let (host, depth) = (self.now(), self.prices.queue_depth);
        let queued = &mut self.streams[stream.index()].queued;
        while queued.front().is_some_and(|end| *end <= host) {
            queued.pop_front();
        }
        if queued.len() >= depth
            && let Some(oldest) = queued.pop_front()
        {
            self.host_waits(oldest, call);
        }
    }

    /// The host is free when a pageable upload's last piece is staged: here, at the copy's end.
    fn stage(&mut self, bytes: u64, end: f64, call: &'static str) {
        let Some(speed) = self.prices.link.pageable else { return };
        if bytes < LARGE {
            self.charge(bytes as f64 / speed);
        } else {
            self.host_waits(end, call);
        }
    }

    pub(crate) fn end_of(&mut self, stream: StreamId) -> f64 {
        if self.streams.len() <= stream.index() {
            self.streams.resize(stream.index() + 1, StreamTime::default());
        }
        self.streams[stream.index()].end
    }

    pub(crate) fn record(&mut self, stream: StreamId) -> f64 {
        self.end_of(stream).max(self.now())
    }

    pub(crate) fn stream_waits(&mut self, stream: StreamId, until: f64) {
        self.streams[stream.index()].end = self.end_of(stream).max(until);
    }

    pub(crate) fn prices(&self) -> &Prices {
        &self.prices
    }

    pub(crate) fn charge_call(&mut self, kind: CallKind) {
        self.charge(self.prices.calls.of(kind));
    }

    pub(crate) fn charge_bytes(&mut self, bytes: u64, price: fn(&Memory) -> Price) {
        self.charge(price(&self.prices.memory).of(bytes));
    }

    fn charge(&mut self, seconds: f64) {
        self.host_reaches(self.now() + seconds);
    }

    /// For `call`. Counted unless the time has passed.
    pub(crate) fn host_waits(&mut self, until: f64, call: &'static str) {
        let seconds = until - self.now();
        if seconds > 0.0 {
            let shared = self.host == HostId::SHARED;
            report::count(|counters| counters.host.waited(call, seconds, shared));
        }
        self.host_reaches(until);
    }

    /// No later call precedes `time`.
    pub(crate) fn host_reaches(&mut self, time: f64) {
        if time > self.now() {
            self.hosts[self.host.index()] = time;
            if self.host == HostId::SHARED {
                report::count(|counters| counters.host.host_ms = time * 1e3);
            }
        }
    }

    pub(crate) fn has_passed(&self, time: f64) -> bool {
        self.now() >= time
    }

    fn write(&mut self, line: &str) {
        if let Some(file) = &mut self.trace {
            _ = writeln!(file, "{line}");
        }
    }
}

#[cfg(test)]
mod tests;
