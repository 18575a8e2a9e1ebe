//! A watched step: bytes on the device, copies and waits per operation.
//!
//! Stretches merge in pairs: memory is bounded, sums are exact.

use std::time::{Duration, Instant};

/// A stretch of a watched step, over one or more operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stretch {
    /// End, from the step's start.
    pub until: Duration,
    /// Operations that became ready.
    pub operations: u64,
    /// Most bytes on the device at one of these operations.
    pub resident: u64,
    /// Bytes copied from device to host by evictions.
    pub bytes_out: u64,
    /// Bytes copied from host to device by restores.
    pub bytes_in: u64,
    /// Bytes that the program read from the device.
    pub bytes_read: u64,
    /// Bytes that the program wrote to the device.
    pub bytes_written: u64,
    /// Time the program waited for blocks to move.
    pub waited: Duration,
}

impl Stretch {
    fn join(&mut self, next: &Self) {
        self.until = next.until;
        self.operations += next.operations;
        self.resident = self.resident.max(next.resident);
        self.bytes_out += next.bytes_out;
        self.bytes_in += next.bytes_in;
        self.bytes_read += next.bytes_read;
        self.bytes_written += next.bytes_written;
        self.waited += next.waited;
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reading {
    pub resident: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub stall: Duration,
}

impl Reading {
    fn since(&self, before: &Self, until: Duration) -> Stretch {
        Stretch {
            until,
            operations: 0,
            resident: self.resident,
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            bytes_read: self.bytes_read.saturating_sub(before.bytes_read),
            bytes_written: self.bytes_written.saturating_sub(before.bytes_written),
            waited: self.stall.saturating_sub(before.stall),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Watch {
    began: Instant,
    latest: Reading,
    stretches: Vec<Stretch>,
    per_stretch: u64,
}

impl Watch {
    const MOST: usize = 1024;

    pub fn begin(now: Reading) -> Self {
        Self { began: Instant::now(), latest: now, stretches: Vec::with_capacity(Self::MOST), per_stretch: 1 }
    }

    pub fn operation(&mut self, now: Reading) {
        self.operation_at(self.began.elapsed(), now);
    }

    fn operation_at(&mut self, at: Duration, now: Reading) {
        let here = Stretch { operations: 1, ..now.since(&self.latest, at) };
        self.latest = now;
        if let Some(last) = self.stretches.last_mut().filter(|last| last.operations < self.per_stretch) {
            return last.join(&here);
        }
        if self.stretches.len() == Self::MOST {
            self.halve();
        }
        self.stretches.push(here);
    }

    fn halve(&mut self) {
        for at in 0..Self::MOST / 2 {
            let mut joined = self.stretches[2 * at];
            joined.join(&self.stretches[2 * at + 1]);
            self.stretches[at] = joined;
        }
        self.stretches.truncate(Self::MOST / 2);
        self.per_stretch *= 2;
    }

    /// The last stretch follows the last operation.
    pub fn end(self, now: Reading) -> Vec<Stretch> {
        let at = self.began.elapsed();
        self.end_at(at, now)
    }

    fn end_at(mut self, at: Duration, now: Reading) -> Vec<Stretch> {
        self.stretches.push(now.since(&self.latest, at));
        self.stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each operation moved different bytes.
    fn after(operations: u64) -> Reading {
        let sum = operations * (operations + 1) / 2;
        Reading {
            resident: 1000 + operations * 7919 % 1009,
            bytes_out: 100 + sum,
            bytes_in: 2 * sum,
            bytes_read: 3 * operations,
            bytes_written: 5 * operations,
            stall: Duration::from_nanos(11 * operations),
        }
    }

    fn watched(operations: u64) -> Vec<Stretch> {
        let mut watch = Watch::begin(after(0));
        let room = watch.stretches.capacity();
        for n in 1..=operations {
            watch.operation_at(Duration::from_micros(n), after(n));
        }
        assert_eq!(watch.stretches.capacity(), room, "no memory is taken while a step is watched");
        watch.end_at(Duration::from_micros(operations + 1), after(operations + 1))
    }

    #[test]
    fn a_watched_step_of_any_length_keeps_its_sums_its_peak_and_its_end() {
        for operations in [0, 1, 1023, 1024, 1025, 5000, 100_000] {
            let stretches = watched(operations);
            assert!(stretches.len() <= Watch::MOST + 1, "{operations}: {}", stretches.len());
            assert!(stretches.len() as u64 >= operations.min(513), "{operations}: {}", stretches.len());
            let sum = |field: fn(&Stretch) -> u64| stretches.iter().map(field).sum::<u64>();

            let (begin, end) = (after(0), after(operations + 1));
            assert_eq!(sum(|stretch| stretch.operations), operations);
            assert_eq!(sum(|stretch| stretch.bytes_out), end.bytes_out - begin.bytes_out);
            assert_eq!(sum(|stretch| stretch.bytes_in), end.bytes_in);
            assert_eq!(sum(|stretch| stretch.bytes_read), end.bytes_read);
            assert_eq!(sum(|stretch| stretch.bytes_written), end.bytes_written);
            assert_eq!(stretches.iter().map(|stretch| stretch.waited).sum::<Duration>(), end.stall);
            assert!(stretches.is_sorted_by(|one, next| one.until < next.until));
            assert_eq!(stretches.last().map(|last| last.until), Some(Duration::from_micros(operations + 1)));

            let highest = (1..=operations + 1).map(|n| after(n).resident).max();
            assert_eq!(stretches.iter().map(|stretch| stretch.resident).max(), highest);
        }
    }

    #[test]
    fn a_short_step_has_a_stretch_for_each_operation() {
        let stretches = watched(3);
        let out: Vec<u64> = stretches.iter().map(|stretch| stretch.bytes_out).collect();
        assert_eq!(out, [1, 2, 3, 4]);
        assert_eq!(stretches[1].until, Duration::from_micros(2));
    }
}
