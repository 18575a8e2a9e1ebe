//! Autotune's timings: they measure kernels, never copies, and never a kernel that did not run.
//!
//! # How the runtime tunes
//!
//! For each candidate autotune flushes the stream, takes three warm-up samples, then ten recorded ones. An error loses
//! a sample. A candidate fails if all three warm-up samples are lost or none of the ten remains. If every candidate
//! fails, the tuner panics. If one succeeds, the tuner writes a line with all results to a file that the plain runtime
//! also reads, permanently.
//!
//! Under a budget a sample can contain copies, and a candidate can be unable to run: its operands exceed the budget, or
//! an operand has no contents because an earlier operation failed. Neither may cause a panic, and neither is a valid
//! time.
//!
//! # Guarantees
//!
//! - **Room first.** Before a sample, the operands of the previous one are loaded, room for its scratch memory and
//!   outputs is made, and uploads are waited for. So blocks move only in a candidate's first sample, or if the
//!   candidate's own memory exceeds the budget.
//! - **A recorded time contains no copy.** A recorded sample in which blocks moved is lost. Warm-up samples are never
//!   lost for that reason, so no candidate fails because of copies.
//! - **No panic because of offloading.** A candidate that could not run, or that moves blocks in every sample, gets
//!   the time [`UNMEASURED`], which no kernel takes: any candidate with a real time wins.
//! - **No such time is kept.** [`unmeasured`](super::unmeasured) removes its line from the file before the tuned
//!   operation is launched. The choice holds for this process, and the next one tunes again. If a process is killed
//!   in between, the next offloaded device to start removes the line.
//! - **Candidates do not disturb each other.** A failed candidate marks its output buffers as failed. The next
//!   candidate writes the same buffers, so the marks are removed at the end of the sample.
//!
//! If the runtime itself refuses a candidate, the candidate gets an error, as on the plain runtime.

use super::failures::SmallFailures;
use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use super::unmeasured::{self, UNMEASURED};
use crate::drive;
use crate::error::OffloadError;
use crate::journal::Event;
use cubecl_common::backtrace::BackTrace;
use cubecl_common::profile::{ProfileDuration, ProfileTicks};
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{ComputeServer, ProfileError, ProfilingToken, ServerError};
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use pager::BlockId;
use std::collections::HashSet;
use std::panic::catch_unwind;
use std::time::Instant;

const WARM_UPS: u32 = 3;

/// Number of recorded samples lost in a row after which the candidate counts as unmeasurable.
const MAX_LOST_SAMPLES: u32 = 5;

/// Number of launches after an unmeasured sample that look for its line. The tuner writes the line before it launches
/// its choice; a nested tuner launches more.
const MAX_CHECKS: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct ProfileWatch {
    /// Samples in progress: a candidate may tune a part of itself.
    samples: Vec<Sample>,
    /// The candidate at each depth of `samples`.
    candidates: Vec<Candidate>,
    /// The stream after whose tuning lines may have to be removed from the file, and the number of looks left.
    owed: Option<(StreamId, u32)>,
    pub(super) discards: u64,
    /// Samples that ended with [`UNMEASURED`].
    pub(super) unmeasured: u64,
}

#[derive(Debug, Default)]
struct Candidate {
    warm_ups_left: u32,
    lost_in_a_row: u32,
    /// Whether the last sample could not run; then the next one could not either.
    cannot_run: bool,
    /// Whether a recorded sample ended with [`UNMEASURED`]; one is enough.
    answered: bool,
    /// Operands of the last sample.
    operands: HashSet<BlockId>,
    /// Blocks without contents that the last sample took memory for, with their bytes.
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

/// Failures recorded before a sample, to be restored after it.
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

    /// Records that blocks moved, or that memory was returned to the driver.
    pub(super) fn moved(&mut self) {
        self.samples.iter_mut().for_each(|sample| sample.moved = true);
    }

    /// Records that a launch did not run, for lack of room or contents.
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

    pub(super) fn is_sampling(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Records that a block without contents took memory.
    pub(super) fn took(&mut self, block: BlockId, bytes: u64) {
        if let Some(sample) = self.samples.last_mut() {
            sample.took.push((block, bytes));
        }
    }

    /// Whether the next sample would only repeat that the candidate has no time. The tuner tolerates the loss of all
    /// warm-up samples but one, and of all recorded samples but one.
    fn needs_no_sample(&mut self) -> bool {
        let candidate = self.candidate();
        if candidate.cannot_run && candidate.warm_ups_left > 0 {
            candidate.warm_ups_left -= 1;
            return true;
        }
        candidate.answered
    }

    /// Decides the verdict on a finished sample.
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

impl<R: InnerRuntime> OffloadServer<R> {
    pub(super) fn begin_sample(&mut self, stream: StreamId) -> Result<ProfilingToken, ServerError> {
        if self.profile.needs_no_sample() {
            let reason = "the candidate cannot be timed within the device budget".to_owned();
            return Err(ServerError::Generic { reason, backtrace: BackTrace::default() });
        }
        self.prepare_sample(stream);
        self.copies.wait_for_all();
        let token = self.inner.start_profile(stream)?;
        let failed = self.table.rows_mut().filter(|row| row.failed.is_some()).map(|row| row.block).collect();
        let before = Before { failed, small: self.failures.small.clone(), failures: self.counts.failures };
        self.profile.samples.push(Sample { before, ..Sample::default() });
        Ok(token)
    }

    /// Makes the surviving operands of the candidate's last sample resident, and makes room for the memory that the
    /// sample took and released.
    fn prepare_sample(&mut self, stream: StreamId) {
        let candidate = self.profile.candidate();
        let named = std::mem::take(&mut candidate.operands);
        let took = std::mem::take(&mut candidate.took);
        if named.is_empty() {
            return;
        }
        self.sweep();
        let mut operands: Vec<_> = named.into_iter().filter(|id| self.table.holds(*id)).collect();
        operands.sort_unstable();
        let bytes: u64 = took.iter().filter(|(id, _)| !self.table.holds(*id)).map(|(_, bytes)| bytes).sum();
        let arrived = self.pager.counters().bytes_in;
        // Released memory is spare in the same sizes and is reused.
        let ledger = self.pager.ledger();
        let short = bytes > ledger.spare() && ledger.budget().allows(bytes);
        drive::bring_ahead(self, &operands);
        if short {
            drive::make_room(self, bytes, self.streams.arena(stream));
        }
        if self.pager.counters().bytes_in != arrived {
            let mut streams: Vec<_> = operands.iter().map(|id| self.table.get(*id).stream).collect();
            streams.sort_unstable();
            streams.dedup();
            for stream in streams {
                self.wait_for_stream(stream);
            }
        }
    }

    pub(super) fn end_sample(
        &mut self,
        stream: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        let timed = self.inner.end_profile(stream, token);
        let mut sample = self.profile.samples.pop().unwrap_or_default();
        self.undo_failures(std::mem::take(&mut sample.before));

        let reported = self.errors_at_sync(stream, Ok(()));
        let not_run = sample.not_run;
        let verdict = self.profile.judge(sample);
        if let (Err(error), false) = (reported, not_run) {
            return Err(ProfileError::Server(Box::new(error)));
        }

        match verdict {
            Verdict::Counts => timed,
            Verdict::Lost => {
                self.profile.discards += 1;
                self.journal.record(Event::SampleDiscarded);
                Err(ProfileError::Unknown {
                    reason: "blocks moved while the sample was timed".to_owned(),
                    backtrace: BackTrace::default(),
                })
            }
            Verdict::Unmeasured => {
                self.profile.unmeasured += 1;
                self.profile.owed = Some((stream, MAX_CHECKS));
                let start = Instant::now();
                Ok(ProfileDuration::new(
                    Box::pin(async move { ProfileTicks::from_start_end(start, start + UNMEASURED) }),
                    self.utilities.properties.timing_method,
                ))
            }
        }
    }

    /// Removes the failures of a candidate: the tuner handles them, and the next candidate writes the same buffers.
    fn undo_failures(&mut self, before: Before) {
        for row in self.table.rows_mut() {
            let too_large = matches!(row.failed.as_deref(), Some(OffloadError::BufferTooLarge { .. }));
            if !too_large && !before.failed.contains(&row.block) {
                row.failed = None;
            }
        }
        self.failures.small = before.small;
        self.counts.failures = before.failures;
    }

    /// Keeps [`UNMEASURED`] times out of the tuner's file. Called before each launch; costs one comparison.
    pub(super) fn remove_unmeasured_times(&mut self, stream: StreamId) {
        let Some((owing, looks)) = self.profile.owed else { return };
        if owing == stream && self.profile.samples.is_empty() {
            self.profile.owed = (looks > 1).then_some((owing, looks - 1));
            self.remove_unmeasured();
        }
    }

    pub(super) fn remove_unmeasured(&self) {
        // CubeCL panics if the user has no folder for its files.
        let root = catch_unwind(|| CubeClRuntimeConfig::get().autotune.cache.root());
        if let Ok(root) = root {
            unmeasured::remove_lines(&root, self.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdicts on one candidate's samples: `m` moved blocks, `n` did not run, `.` neither; `-` in the result is a
    /// skipped sample.
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
