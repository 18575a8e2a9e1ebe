//! Going on with the ranks that live, where the engine can.

use anyhow::{Context, ensure};

use super::Ranks;

/// A call that has failed on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailedCall {
    /// All ranks that live know that it has.
    Vote,
    /// Others may have succeeded, and wait for this rank in their next vote.
    Other,
}

impl Ranks {
    /// Whether ranks that live can go on with what they have: exact sums are the same over any number of ranks, and nobody has
    /// anything of its own.
    pub(crate) fn survive(&self) -> bool {
        let exact = !self.have_own() && !self.sum_late();
        exact && self.engine.as_ref().is_some_and(|engine| engine.survives())
    }

    /// Remembers a failure.
    pub(super) fn heard<T>(&mut self, outcome: exchange::Result<T>) -> exchange::Result<T> {
        if outcome.is_err() {
            self.failed = Some(FailedCall::Other);
        }
        outcome
    }

    /// Remembers the failure of a vote.
    pub(super) fn agreed<T>(&mut self, outcome: exchange::Result<T>) -> exchange::Result<T> {
        if outcome.is_err() {
            self.failed = Some(FailedCall::Vote);
        }
        outcome
    }

    /// Whether weights may change by what this step has summed: where ranks survive others, all have to have it.
    pub(crate) fn commit_step(&mut self) -> anyhow::Result<()> {
        if !self.survive() {
            return Ok(());
        }
        ensure!(self.all(true)?, "another rank withholds this step");
        Ok(())
    }

    /// Goes on without ranks that are gone, after a call has failed; `false` where none has, or nobody can. What the failed step
    /// has summed is to be forgotten.
    pub(crate) fn go_on(&mut self) -> anyhow::Result<bool> {
        if !self.survive() {
            return Ok(false);
        }
        let Some(failed) = self.failed.take() else { return Ok(false) };
        let led = self.leads();
        let engine = self.engine()?;
        if failed == FailedCall::Other {
            // Whoever has succeeded hears of the failure in a vote.
            _ = engine.commit(false);
        }
        engine.shrink().context("going on with the ranks that live")?;
        let place = (engine.rank(), engine.world());
        (self.rank, self.world) = place;
        self.failed = None;
        let mut leader_lives = [u8::from(led)];
        self.hear(0, &mut leader_lives)?;
        ensure!(leader_lives == [1], "rank 0 is gone, which alone saves checkpoints");
        Ok(true)
    }
}
