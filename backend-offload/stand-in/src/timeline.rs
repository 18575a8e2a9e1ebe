//! A simulated clock, with one engine for kernels and one for copies in each direction. Shows possible overlap, not a
//! GPU's speed.

use std::{fs::File, io::Write as _};

use crate::{report, schedule::StreamId, settings::Settings};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    ToDevice,
    ToHost,
    Compute,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    /// Time of the next call.
    host: f64,
    /// End of each stream's work.
    streams: Vec<f64>,
    engines: [Busy; 3],
    kernel_seconds: f64,
    bandwidth: f64,
    trace: Option<File>,
}

/// Seconds per call and per copy.
const LATENCY: f64 = 2e-6;

/// Smaller copies run between the pieces of larger ones.
const LARGE: u64 = 64 << 10;

/// Disjoint, ordered intervals. Other work may use the gaps.
#[derive(Debug, Default)]
struct Busy(Vec<(f64, f64)>);

impl Busy {
    /// Takes the first sufficient gap from `ready` on. No later call asks for a time before `now`.
    fn take(&mut self, now: f64, ready: f64, seconds: f64) -> f64 {
        self.0.retain(|(_, end)| *end > now);
        let mut start = ready;
        let mut place = 0;
        for (begin, end) in &self.0 {
            if start + seconds <= *begin {
                break;
            }
            start = start.max(*end);
            place += 1;
        }
        self.0.insert(place, (start, start + seconds));
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
            host: 0.0,
            streams: Vec::new(),
            engines: Default::default(),
            kernel_seconds: settings.speeds.kernel_us * 1e-6,
            bandwidth: settings.speeds.bandwidth,
            trace,
        }
    }

    pub(crate) fn book(&mut self, stream: StreamId, engine: Engine, name: &str, bytes: u64) {
        let seconds = match engine {
            Engine::Compute => self.kernel_seconds,
            Engine::ToDevice | Engine::ToHost => LATENCY + bytes as f64 / self.bandwidth,
        };
        self.host += LATENCY;
        let called = self.host;
        let ready = called.max(self.end_of(stream));
        let slips_in = engine != Engine::Compute && bytes < LARGE;
        let start = if slips_in { ready } else { self.engines[engine as usize].take(called, ready, seconds) };
        let end = start + seconds;
        self.streams[stream.index()] = end;
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

    pub(crate) fn end_of(&mut self, stream: StreamId) -> f64 {
        if self.streams.len() <= stream.index() {
            self.streams.resize(stream.index() + 1, 0.0);
        }
        self.streams[stream.index()]
    }

    pub(crate) fn stream_waits(&mut self, stream: StreamId, until: f64) {
        self.streams[stream.index()] = self.end_of(stream).max(until);
    }

    /// For `call`. Counted unless the time has passed.
    pub(crate) fn host_waits(&mut self, until: f64, call: &'static str) {
        let seconds = until - self.host;
        if seconds > 0.0 {
            report::count(|counters| counters.host.waited(call, seconds));
        }
        self.host_reaches(until);
    }

    /// No call ends before `time`, because the program knows work that ends then.
    pub(crate) fn host_reaches(&mut self, time: f64) {
        self.host = self.host.max(time);
    }

    /// Whether this call ends after `time`.
    pub(crate) fn host_asks(&mut self, time: f64) -> bool {
        self.host += LATENCY;
        self.host >= time
    }

    fn write(&mut self, line: &str) {
        if let Some(file) = &mut self.trace {
            _ = writeln!(file, "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_work_leaves_its_engine_to_others_and_small_copies_run_between() {
        let settings = Settings::parse([("STAND_IN_CACHE".to_owned(), "c".to_owned())]).unwrap();
        let (first, second) = (StreamId::from_index(0), StreamId::from_index(1));
        let mut timeline = Timeline::new(&settings);
        timeline.stream_waits(first, 5e-3);
        timeline.book(first, Engine::ToDevice, "copy", 20_000_000);
        timeline.book(second, Engine::ToDevice, "copy", 20_000_000);
        assert!(timeline.end_of(second) < 2e-3, "while the first one waits");
        timeline.book(second, Engine::ToDevice, "copy", 200_000_000);
        assert!(timeline.end_of(second) > 15e-3, "too long for the time before the first one");
        let third = StreamId::from_index(2);
        timeline.book(third, Engine::ToDevice, "copy", 48);
        assert!(timeline.end_of(third) < 1e-3);
    }

    #[test]
    fn copies_and_kernels_of_two_streams_overlap_and_those_of_one_engine_do_not() {
        let settings = Settings::parse([("STAND_IN_CACHE".to_owned(), "c".to_owned())]).unwrap();
        let (first, second) = (StreamId::from_index(0), StreamId::from_index(1));
        let mut timeline = Timeline::new(&settings);
        timeline.book(first, Engine::ToDevice, "copy", 20_000_000);
        timeline.book(second, Engine::Compute, "kernel", 0);
        assert!(timeline.end_of(second) < timeline.end_of(first));
        timeline.book(second, Engine::ToDevice, "copy", 20_000_000);
        assert!(timeline.end_of(second) > 2.0 * 1e-3);
        timeline.stream_waits(first, timeline.streams[1]);
        timeline.book(first, Engine::Compute, "kernel", 0);
        assert!(timeline.end_of(first) > timeline.end_of(second));
    }
}
