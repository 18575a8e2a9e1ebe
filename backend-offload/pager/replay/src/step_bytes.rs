//! Bytes by step.

use pager::Counters;

/// Bytes moved in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Onto the device.
    pub bytes_in: u64,
    /// Off the device.
    pub bytes_out: u64,
}

impl Moved {
    /// Both directions together.
    pub fn total(self) -> u64 {
        self.bytes_in + self.bytes_out
    }
}

#[derive(Debug, Default)]
pub(crate) struct StepBytes {
    pub device: Meter,
    pub disk: Meter,
    pub read: Tally,
    pub given: Tally,
    /// Counts, not bytes.
    pub trims: Tally,
}

impl StepBytes {
    pub fn end_step(&mut self, counters: &Counters) {
        self.device.end_step(Moved { bytes_in: counters.link.bytes_in, bytes_out: counters.link.bytes_out });
        self.disk.end_step(Moved {
            bytes_in: counters.disk.bytes_from_disk,
            bytes_out: counters.disk.bytes_to_disk,
        });
        self.read.end_step();
        self.given.end_step();
        self.trims.end_step();
    }
}

#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub steps: Vec<Moved>,
    before: Moved,
}

impl Meter {
    fn end_step(&mut self, now: Moved) {
        let before = std::mem::replace(&mut self.before, now);
        self.steps.push(Moved {
            bytes_in: now.bytes_in - before.bytes_in,
            bytes_out: now.bytes_out - before.bytes_out,
        });
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub steps: Vec<u64>,
    open: u64,
}

impl Tally {
    pub fn add(&mut self, bytes: u64) {
        self.open += bytes;
    }

    fn end_step(&mut self) {
        self.steps.push(std::mem::take(&mut self.open));
    }
}
