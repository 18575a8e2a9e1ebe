//! Autotune's timings: never of copies, nor of a kernel that did not run.
//!
//! # How the runtime tunes
//!
//! For each candidate, autotune flushes the stream, takes three warm-up samples, then ten recorded ones. An error loses
//! a sample; a candidate fails without warm-up or recorded samples; if every candidate fails, the tuner panics.
//! Otherwise a permanent file, shared with the plain runtime, gets one line of results.
//!
//! # Guarantees
//!
//! - **Room first.** Before a sample, the previous one's operands are loaded, its other memory gets room, and uploads
//!   end. So blocks move only in a candidate's first sample, or beyond the budget.
//! - **A recorded time contains no copy.** A recorded sample in which blocks moved is lost. A warm-up sample is not:
//!   copies fail no candidate.
//! - **No panic because of offloading.** A candidate that could not run, or moves blocks in every sample, gets the time
//!   [`UNMEASURED`](super::unmeasured::UNMEASURED), longer than any real one.
//! - **No such time is kept.** [`unmeasured`](super::unmeasured) removes its line before the tuned operation's launch;
//!   after a kill, at the next start of an offloaded device.
//! - **Candidates do not disturb each other.** A failed candidate's marks on its outputs end with the sample: the next
//!   one writes the same buffers.

mod sampling;

use super::failures::SmallFailures;
use cubecl_common::stream_id::StreamId;
use pager::BlockId;
use std::collections::HashSet;

const WARM_UPS: u32 = 3;

const MAX_LOST_SAMPLES: u32 = 5;

/// Launches that look for an unmeasured sample's line: a nested tuner launches some first.
const MAX_CHECKS: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct ProfileWatch {
    /// A stack: a candidate may tune a part of itself.
    samples: Vec<Sample>,
    candidates: Vec<Candidate>,
    /// The stream whose tuning may have left lines, and its remaining checks.
    owed: Option<(StreamId, u32)>,
    discards: u64,
    unmeasured: u64,
}

#[derive(Debug, Default)]
struct Candidate {
    warm_ups_left: u32,
    lost_in_a_row: u32,
    /// Nor can the next sample.
    cannot_run: bool,
    /// One recorded sample without a time suffices.
    answered: bool,
    operands: HashSet<BlockId>,
    /// New blocks of the last sample, and their bytes.
    took: Vec<(BlockId, u64)>,
}

#[derive(Debug, Default)]
struct Sample {
    moved: bool,
    not_run: bool,
    operands: HashSet<BlockId>,
    took: Vec<(BlockId, u64)>,
    before: Before,
}

#[derive(Debug, Default)]
struct Before {
    failed: HashSet<BlockId>,
    small: SmallFailures,
    failures: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Counts,
    Lost,
    Unmeasured,
}

impl ProfileWatch {
    /// The tuner flushes before each candidate.
    pub(super) fn candidate_begins(&mut self) {
        self.candidates.truncate(self.samples.len());
        self.candidate().warm_ups_left = WARM_UPS;
    }

    fn candidate(&mut self) -> &mut Candidate {
        let depth = self.samples.len();
        if self.candidates.len() <= depth {
            self.candidates.resize_with(depth + 1, Candidate::default);
        }
        &mut self.candidates[depth]
    }

    pub(super) fn moved(&mut self) {
        self.samples.iter_mut().for_each(|sample| sample.moved = true);
    }

    pub(super) fn not_run(&mut self) {
        if let Some(sample) = self.samples.last_mut() {
            sample.not_run = true;
        }
    }

    pub(super) fn used(&mut self, operands: &[BlockId]) {
        if let Some(sample) = self.samples.last_mut() {
            sample.operands.extend(operands);
        }
    }

    pub(super) fn discards(&self) -> u64 {
        self.discards
    }

    pub(super) fn unmeasured(&self) -> u64 {
        self.unmeasured
    }

    pub(super) fn is_sampling(&self) -> bool {
        !self.samples.is_empty()
    }

    pub(super) fn took(&mut self, block: BlockId, bytes: u64) {
        if let Some(sample) = self.samples.last_mut() {
            sample.took.push((block, bytes));
        }
    }

    /// The tuner needs one warm-up and one recorded sample.
    fn needs_no_sample(&mut self) -> bool {
        let candidate = self.candidate();
        if candidate.cannot_run && candidate.warm_ups_left > 0 {
            candidate.warm_ups_left -= 1;
            return true;
        }
        candidate.answered
    }

    fn judge(&mut self, sample: Sample) -> Verdict {
        let candidate = self.candidate();
        candidate.operands = sample.operands;
        candidate.took = sample.took;
        candidate.cannot_run = sample.not_run;
        if candidate.warm_ups_left > 0 {
            candidate.warm_ups_left -= 1;
            return if sample.not_run { Verdict::Unmeasured } else { Verdict::Counts };
        }
        if sample.not_run || (sample.moved && candidate.lost_in_a_row >= MAX_LOST_SAMPLES) {
            candidate.answered = true;
            return Verdict::Unmeasured;
        }
        if sample.moved {
            candidate.lost_in_a_row += 1;
            return Verdict::Lost;
        }
        candidate.lost_in_a_row = 0;
        Verdict::Counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `m`: blocks moved; `n`: not run; `.`: neither. `-` in the result: skipped.
    fn verdicts(samples: &str) -> String {
        let mut watch = ProfileWatch::default();
        watch.candidate_begins();
        let judged = samples.chars().map(|sample| {
            if watch.needs_no_sample() {
                return '-';
            }
            let sample = Sample { moved: sample == 'm', not_run: sample == 'n', ..Sample::default() };
            match watch.judge(sample) {
                Verdict::Counts => 'c',
                Verdict::Lost => 'l',
                Verdict::Unmeasured => 'u',
            }
        });
        judged.collect()
    }

    #[test]
    fn a_warm_up_is_never_lost() {
        assert_eq!(verdicts("mmm.........."), "ccccccccccccc");
    }

    #[test]
    fn a_sample_with_copies_is_never_recorded() {
        assert_eq!(verdicts("m..m.mm......"), "ccclcllcccccc");
    }

    #[test]
    fn a_candidate_that_always_moves_blocks_ends_without_a_time_and_without_a_panic() {
        assert_eq!(verdicts("mmmmmmmmmmmmm"), "ccclllllu----");
    }

    #[test]
    fn a_candidate_that_cannot_run_ends_without_a_time_and_without_a_panic() {
        assert_eq!(verdicts("nnnnnnnnnnnnn"), "u--u---------");
    }

    #[test]
    fn a_nested_candidate_keeps_the_outer_warm_ups() {
        let mut watch = ProfileWatch::default();
        watch.candidate_begins();
        watch.samples.push(Sample::default());
        watch.candidate_begins();
        for _ in 0..13 {
            watch.judge(Sample::default());
        }
        watch.samples.pop();
        for _ in 0..3 {
            assert_eq!(watch.judge(Sample { moved: true, ..Sample::default() }), Verdict::Counts);
        }
    }
}
