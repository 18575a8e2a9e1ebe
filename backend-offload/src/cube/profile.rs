//! Autotune's timings: of kernels, never of copies, and none for a kernel that did not run.
//!
//! # How the runtime tunes
//!
//! For each candidate autotune flushes the stream, then takes three samples to warm up and ten for the record. An
//! error loses a sample; a candidate fails if all three warm-up samples are lost or none of the ten remains. When
//! every candidate fails, the tuner panics. When one succeeds, it writes a line with the results of all of them to
//! a file that the plain runtime reads too, for good.
//!
//! Under a budget a sample can contain copies, and a candidate can be unable to run: its operands exceed the
//! budget, or one of them has no contents because the operation before failed. Neither is a reason to panic, and
//! neither is a time.
//!
//! # Guarantees
//!
//! - **Room first.** Before a sample, the operands of the one before are brought back together with room for the
//!   scratch and outputs it took, and the uploads are waited for. So a sample moves blocks only if it is the first
//!   of its candidate, or if the candidate's own memory does not fit the budget at once.
//! - **A recorded time contains no copy.** A recorded sample during which blocks moved is lost. Warm-up samples are
//!   never lost on our account, so no candidate fails for it.
//! - **No panic on our account.** A candidate that could not run, or that moves blocks in every sample, ends with
//!   the time [`UNMEASURED`], which no kernel takes: any candidate with a time wins against it.
//! - **No such time is kept.** [`unmeasured`](super::unmeasured) takes lines that hold it out of the file, before
//!   the tuned operation itself is launched: the choice holds for this process, and the next one tunes again. A
//!   process killed in between leaves the line to the next offloaded device that starts.
//! - **Candidates do not disturb each other.** A candidate that fails marks the buffers it should have written. The
//!   next one writes the same buffers, so the marks go when the sample ends.
//!
//! A candidate that the runtime itself refuses gets an error, as on the plain runtime.

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

/// Samples the tuner takes of a candidate before those it records.
const WARM_UPS: u32 = 3;

/// Recorded samples lost in a row before moving blocks are taken as a property of the candidate.
const PATIENCE: u32 = 5;

/// Launches after an unmeasured sample that look for its line. The tuner writes it before it launches what it chose;
/// a tuner within a tuner launches more.
const LOOKS: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct ProfileWatch {
    /// Samples under way: a candidate may tune a part of itself.
    samples: Vec<Sample>,
    /// The candidate at each depth of `samples`.
    candidates: Vec<Candidate>,
    /// Where lines may have to be struck from the file, and how often to look.
    owed: Option<(StreamId, u32)>,
    pub(super) discards: u64,
    /// Samples that ended with [`UNMEASURED`].
    pub(super) unmeasured: u64,
}

#[derive(Debug, Default)]
struct Candidate {
    warm_ups_left: u32,
    lost_in_a_row: u32,
    /// Whether the last sample could not run, and the next would not either.
    cannot_run: bool,
    /// A recorded sample ended with [`UNMEASURED`]; one says it all.
    answered: bool,
    /// Operands of the last sample, and blocks without contents that it took memory for, with their bytes.
    operands: HashSet<BlockId>,
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

    /// Blocks moved, or memory went back to the driver.
    pub(super) fn moved(&mut self) {
        self.samples.iter_mut().for_each(|sample| sample.moved = true);
    }

    /// A launch was not carried out, for lack of room or contents.
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

    /// A sample is under way.
    pub(super) fn is_sampling(&self) -> bool {
        !self.samples.is_empty()
    }

    /// A block without contents took memory.
    pub(super) fn took(&mut self, block: BlockId, bytes: u64) {
        if let Some(sample) = self.samples.last_mut() {
            sample.took.push((block, bytes));
        }
    }

    /// Whether the next sample would only repeat that the candidate has no time. The tuner bears the loss of all but one
    /// warm-up sample and all but one of the others.
    fn needs_no_sample(&mut self) -> bool {
        let candidate = self.candidate();
        if candidate.cannot_run && candidate.warm_ups_left > 0 {
            candidate.warm_ups_left -= 1;
            return true;
        }
        candidate.answered
    }

    /// Ends the sample that was taken off last.
    fn judge(&mut self, sample: Sample) -> Verdict {
        let candidate = self.candidate();
        candidate.operands = sample.operands;
        candidate.took = sample.took;
        candidate.cannot_run = sample.not_run;
        if candidate.warm_ups_left > 0 {
            candidate.warm_ups_left -= 1;
            return if sample.not_run { Verdict::Unmeasured } else { Verdict::Counts };
        }
        if sample.not_run || (sample.moved && candidate.lost_in_a_row >= PATIENCE) {
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

    /// Makes resident what the candidate's last sample named and is still there, and room for what it took and has
    /// given back since.
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
        // What was given back lies spare in its sizes and serves again.
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
                self.profile.owed = Some((stream, LOOKS));
                let start = Instant::now();
                Ok(ProfileDuration::new(
                    Box::pin(async move { ProfileTicks::from_start_end(start, start + UNMEASURED) }),
                    self.utilities.properties.timing_method,
                ))
            }
        }
    }

    /// Failures of candidates are the tuner's; its buffers are written again by the next one.
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

    /// Keeps [`UNMEASURED`] times out of the tuner's file. Called before each launch; costs a comparison.
    pub(super) fn strike_what_was_not_measured(&mut self, stream: StreamId) {
        let Some((owing, looks)) = self.profile.owed else { return };
        if owing == stream && self.profile.samples.is_empty() {
            self.profile.owed = (looks > 1).then_some((owing, looks - 1));
            self.strike();
        }
    }

    pub(super) fn strike(&self) {
        // CubeCL looks for the folder of its files, and panics where a user has none.
        let root = catch_unwind(|| CubeClRuntimeConfig::get().autotune.cache.root());
        if let Ok(root) = root {
            unmeasured::strike(&root, self.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How samples of one candidate end that are `m`oved, `n`ot run, or neither; `-` for those that are not taken.
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
    fn a_candidate_within_a_sample_of_another_leaves_that_its_warm_ups() {
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
