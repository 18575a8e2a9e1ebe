//! A simulated clock: when copies and kernels would have started and ended on a device with one engine for copies in
//! each direction and one for kernels. It shows what could overlap, not how long a GPU takes.

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
    /// When the host makes its next call.
    host: f64,
    /// When each stream has done what it was given.
    streams: Vec<f64>,
    engines: [f64; 3],
    kernel_seconds: f64,
    bandwidth: f64,
    trace: Option<File>,
}

/// A call's own cost, and a copy's beyond its bytes.
const LATENCY: f64 = 2e-6;

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
            engines: [0.0; 3],
            kernel_seconds: settings.kernel_us * 1e-6,
            bandwidth: settings.bandwidth,
            trace,
        }
    }

    /// Books a copy of so many bytes, or a kernel, behind what its stream and its engine have to do already.
    pub(crate) fn book(&mut self, stream: StreamId, engine: Engine, name: &str, bytes: u64) {
        let seconds = match engine {
            Engine::Compute => self.kernel_seconds,
            Engine::ToDevice | Engine::ToHost => LATENCY + bytes as f64 / self.bandwidth,
        };
        self.host += LATENCY;
        let called = self.host;
        let start = called.max(self.end_of(stream)).max(self.engines[engine as usize]);
        let end = start + seconds;
        self.engines[engine as usize] = end;
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
        report::count(|counters| counters.simulated_ms = counters.simulated_ms.max(end * 1e3));
    }

    /// When the stream has done what it was given so far.
    pub(crate) fn end_of(&mut self, stream: StreamId) -> f64 {
        if self.streams.len() <= stream.index() {
            self.streams.resize(stream.index() + 1, 0.0);
        }
        self.streams[stream.index()]
    }

    pub(crate) fn stream_waits(&mut self, stream: StreamId, until: f64) {
        self.streams[stream.index()] = self.end_of(stream).max(until);
    }

    pub(crate) fn host_waits(&mut self, until: f64) {
        self.host = self.host.max(until);
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
