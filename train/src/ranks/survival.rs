//! Continues with the living ranks, if the engine can.
//!
//! A vote ends a step before any weight changes. After a loss, all survivors repeat the step, or none
//! (`a_step_is_done_again_by_all_that_live_whichever_call_fails`), with the same final bits
//! (`survivors_end_with_the_bits_of_an_undisturbed_run`).

use std::fmt;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::Ranks;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailedCall {
    /// All living ranks know the failure.
    Vote,
    /// Others may have succeeded; they wait for this rank's vote.
    Other,
    /// The last vote said no, so all ranks fail, but no call has.
    Refused,
}

/// What has failed lately.
#[derive(Debug, Default)]
pub(super) struct Failures {
    last: Option<FailedCall>,
    /// Failed calls since a step ended, though all ranks lived.
    without_loss: u32,
}

/// Calls of one step that may fail though all ranks live: a launcher may notice a loss later than a call does.
const WITHOUT_LOSS: u32 = 20;

/// Ranks lost at once, by their old numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Empty if a call failed and all ranks live.
    pub(crate) gone: Vec<usize>,
    /// Ranks before the loss.
    pub(crate) before: usize,
}

impl Loss {
    /// The journal's record `lost`, where `ranks` are left after `step`.
    pub(crate) fn record(&self, step: u64, ranks: usize) -> Value {
        let Self { gone, before } = self;
        json!({ "step": step, "ranks": ranks, "before": before, "gone": gone })
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gone, before } = self;
        match gone.as_slice() {
            [] => f.write_str("a call failed, but no rank is gone"),
            [rank] => write!(f, "rank {rank} of {before} is gone"),
            ranks => write!(f, "ranks {ranks:?} of {before} are gone"),
        }
    }
}

impl Ranks {
    pub(crate) fn note_whole_step(&mut self) {
        self.failures.without_loss = 0;
    }

    /// Whether the others continue after a loss.
    pub(crate) fn survive(&self) -> bool {
        self.survives
    }

    pub(super) fn note_failed_call<T, E>(&mut self, outcome: Result<T, E>) -> Result<T, E> {
        if outcome.is_err() {
            self.failures.last = Some(FailedCall::Other);
        }
        outcome
    }

    /// Whether a call has failed since ranks were last dropped.
    pub(crate) fn have_failed(&self) -> bool {
        matches!(self.failures.last, Some(FailedCall::Vote | FailedCall::Other))
    }

    /// Whether the last vote said no: each rank knows that all fail.
    pub(crate) fn all_know_failure(&self) -> bool {
        self.failures.last == Some(FailedCall::Refused)
    }

    /// Remembers a vote that failed or said no.
    pub(super) fn note_failed_vote(&mut self, outcome: exchange::Result<bool>) -> exchange::Result<bool> {
        match outcome {
            Err(_) => self.failures.last = Some(FailedCall::Vote),
            Ok(all) if !self.have_failed() => self.failures.last = (!all).then_some(FailedCall::Refused),
            Ok(_) => {}
        }
        outcome
    }

    /// Waits until rank 0 calls it, too, after a failure that all ranks know. Without survivors, the launcher ends rank 0
    /// with the first rank that ends, even while it saves.
    pub(crate) fn wait_for_lead(&mut self) {
        if self.survives {
            return;
        }
        self.expect_work_of_lead();
        // A failed vote ends the wait, too.
        _ = self.all_succeeded(false);
    }

    fn count_failure(&mut self, all_live: bool) -> anyhow::Result<()> {
        let times = if all_live { self.failures.without_loss + 1 } else { 0 };
        self.failures.without_loss = times;
        ensure!(times <= WITHOUT_LOSS, "{times} calls of a step have failed, though all ranks live");
        Ok(())
    }

    /// Drops lost ranks after a failed call. `None` if no call failed, or the engine cannot. The work must be repeated
    /// from a state that all living ranks share.
    pub(crate) fn drop_lost_ranks(&mut self) -> anyhow::Result<Option<Loss>> {
        if !self.survives {
            return Ok(None);
        }

        let (own, before) = (self.rank(), self.world());
        while let Some(failed) = self.failures.last.take_if(|failed| *failed != FailedCall::Refused) {
            let world = self.world;
            let engine = self.engine()?;
            if failed == FailedCall::Other {
                // Ranks whose call succeeded see the failure in a vote.
                _ = engine.commit(false);
            }
            engine.shrink().context("going on with the ranks that live")?;
            let place = (engine.rank(), engine.world());
            (self.rank, self.world) = place;
            // Hosts no longer have equally many.
            self.layout.of_each = 1;
            let alive = match self.gathered(&(own as u64).to_le_bytes()) {
                Ok(alive) => alive,
                // Another rank was lost, or this call failed, too.
                Err(_) if self.have_failed() => {
                    self.count_failure(self.world == world)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let lives = |rank: usize| alive.iter().any(|number| *number == (rank as u64).to_le_bytes());
            ensure!(lives(0), "rank 0 is gone, which alone saves checkpoints");
            let gone: Vec<usize> = (0..before).filter(|rank| !lives(*rank)).collect();
            self.count_failure(gone.is_empty())?;
            return Ok(Some(Loss { gone, before }));
        }
        Ok(None)
    }
}
