//! Checkpoints of a run in progress.
//!
//! Training waits until a checkpoint's files are written: the next step changes that memory. A thread then syncs,
//! digests and names files and prunes checkpoints (`training_continues_while_a_checkpoint_is_synced`). Next save,
//! evaluation and end of the run wait for it.

use std::cell::Cell;
use std::fs;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use backend_offload::{Bytes, Offloadable};
use runs::checkpoint::{CheckpointError, Checkpoints, Saved, Unsealed};
use runs::config::Config;
use serde_json::json;

use super::Trainer;
use super::parts::{self, Parts};
use super::session::{Best, Session};
use super::snapshot::{self, Contents};
use crate::figures::duration;
use crate::parameters::saved;
use crate::ranks::SavedAt;

/// Bytes per second to any disk or file system, at least.
const SLOWEST: u64 = 10_000_000;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Saves {
    pub(crate) count: u64,
    pub(crate) waited: Duration,
    pub(crate) bytes: Option<u64>,
}

pub(super) struct Saver {
    checkpoints: Checkpoints,
    sealing: Option<Sealing>,
    pub(super) saves: Saves,
}

impl Saver {
    pub(super) fn of(run: &Path) -> Self {
        Self { checkpoints: Checkpoints::in_run(run), sealing: None, saves: Saves::default() }
    }
}

struct Sealing {
    thread: JoinHandle<Sealed>,
    step: u64,
    best_before: Option<Best>,
    begun: Instant,
    written: Instant,
}

/// In order of time but for `asked`.
#[derive(Debug, Clone, Copy)]
struct Course {
    begun: Instant,
    written: Instant,
    asked: Instant,
    ended: Instant,
}

impl Course {
    fn whole(self) -> Duration {
        self.ended - self.begun
    }

    fn waited(self) -> Duration {
        (self.written - self.begun) + self.ended.saturating_duration_since(self.asked)
    }
}

struct Sealed {
    saved: Result<Saved, CheckpointError>,
    tidied: Result<(), CheckpointError>,
    ended: Instant,
}

impl<I: Offloadable> Trainer<I> {
    /// After a failure, now or later, the previous best remains.
    pub(super) fn save(&mut self, better: Option<Best>) -> anyhow::Result<()> {
        self.settle_save_or_say();
        let begun = Instant::now();
        self.optimizer.settle()?;
        self.save_own()?;
        let step = self.session.progress.step;
        let best_before = self.session.progress.best;
        let is_best = better.is_some();
        if is_best {
            self.session.progress.best = better;
        }

        let sealing = self.write().and_then(|unsealed| {
            let (checkpoints, rule) = (self.saver.checkpoints.clone(), &self.session.config.checkpoint);
            let (keep_last, keep_every) = (rule.keep_last, rule.keep_every);
            let kept_aside = self.log.journal.kept_aside();
            let seal = move || {
                let saved = unsealed.seal();
                if saved.is_ok() {
                    // The checkpoints that these lines led to are no longer the latest.
                    _ = fs::remove_file(kept_aside);
                }
                let mark = || if is_best { checkpoints.mark_best(step) } else { Ok(()) };
                let tidy = || mark().and_then(|()| checkpoints.prune(keep_last, keep_every));
                let tidied = if saved.is_ok() { tidy() } else { Ok(()) };
                Sealed { saved, tidied, ended: Instant::now() }
            };
            let thread = thread::Builder::new().name(format!("checkpoint {step}"));
            let thread = thread.spawn(seal).context("starting a thread")?;
            Ok(Sealing { thread, step, best_before, begun, written: Instant::now() })
        });

        self.saver.sealing = Some(sealing.or_else(|error| self.no_checkpoint(step, best_before, error))?);
        Ok(())
    }

    fn write(&mut self) -> anyhow::Result<Unsealed> {
        let parts = Parts::list(&mut self.optimizer, &mut self.ranks)?;

        let (session, optimizer) = (&self.session, &self.optimizer);
        let remote = parts.as_ref().map_or(0, Parts::bytes);
        let bytes = optimizer.bytes() + remote + saved(&session.config) * size_of::<f32>() as u64;
        let (ranks, are_announced) = (&mut self.ranks, Cell::new(false));
        let write = |folder: &Path| {
            let Session { config, progress, data, .. } = session;
            let (gpt, tokenizer) = (&self.model.gpt, &data.tokenizer);
            let contents = Contents { gpt, optimizer, config, progress, tokenizer };
            let announce = |places: &[u64]| {
                are_announced.set(true);
                parts::announce(Some(places), ranks)
            };
            let own = contents
                .save_except(folder, parts.as_ref(), announce)
                .and_then(|()| data.indexes.as_ref().map_or(Ok(()), |indexes| indexes.save(folder)));
            if !are_announced.get() {
                return own;
            }
            ranks.expect_work(time_to_write(config));
            let all_wrote = ranks.all_succeeded(own.is_ok())?;
            own?;
            ensure!(all_wrote, "another rank could not write its part; its own messages say why");
            Ok(())
        };

        // The journal must last as long as the checkpoint.
        let synced = self.log.journal.sync();
        let written =
            synced.and_then(|()| Ok(self.saver.checkpoints.write(session.progress.step, bytes, write)?));
        if parts.is_some() && !are_announced.get() {
            parts::announce(None, ranks)?;
        }
        written
    }

    /// Writes what only this rank has into the checkpoint that rank 0 saves.
    pub(super) fn write_parts(&mut self) -> anyhow::Result<()> {
        self.save_own()?;
        let Some(parts) = Parts::list(&mut self.optimizer, &mut self.ranks)? else { return Ok(()) };
        self.ranks.expect_work_of_lead();
        let Some(places) = parts::announced(&mut self.ranks)? else { return Ok(()) };

        let checkpoints = Checkpoints::in_run(self.run_of_lead());
        let folder = checkpoints.partial_path_of(self.session.progress.step);
        let own = (&self.optimizer, &self.model.gpt);
        let here = (self.ranks.rank(), !self.ranks.is_beside_lead());
        let written = parts.write(own, (&folder, &places), here);
        self.ranks.expect_work(time_to_write(&self.session.config));
        let voted = self.ranks.all_succeeded(written.is_ok());
        // Rank 0 seals the checkpoint.
        self.ranks.expect_work_of_lead();
        if let Err(error) = written {
            eprintln!("rank {}: {error:#}; training continues", self.ranks.rank());
        }
        voted.map(drop)
    }

    /// Other ranks' directories are two levels within rank 0's, the run's.
    fn run_of_lead(&self) -> &Path {
        let own = &self.session.run;
        let above = if self.ranks.leads() { None } else { own.ancestors().nth(2) };
        above.unwrap_or(own)
    }

    pub(super) fn settle_save(&mut self) -> anyhow::Result<()> {
        let Some(Sealing { thread, step, best_before, begun, written }) = self.saver.sealing.take() else {
            return Ok(());
        };

        let asked = Instant::now();
        let Sealed { saved, tidied, ended } = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        let course = Course { begun, written, asked, ended };
        let saved = match saved {
            Ok(saved) => saved,
            Err(error) => return self.no_checkpoint(step, best_before, error.into()),
        };

        self.saver.saves.count += 1;
        self.saver.saves.waited += course.waited();
        self.saver.saves.bytes = Some(saved.bytes);
        let [took, waited] = [course.whole(), course.waited()].map(|time| time.as_secs_f64());
        let [ms, waited_ms] = [took, waited].map(|seconds| seconds * 1e3);
        let record = json!({ "step": step, "bytes": saved.bytes, "ms": ms, "waited_ms": waited_ms });
        self.tell("checkpoint", &record);
        let (bytes, took, waited) = (Bytes(saved.bytes), duration(took), duration(waited));
        self.say(&format!("step {step}: saved {bytes} in {took}; training waited {waited}"));
        if let Err(error) = tidied {
            self.say(&format!("step {step}: the checkpoint was saved, but then: {error}"));
        }
        Ok(())
    }

    /// Before a call to which rank 0 comes once its last checkpoint is sealed.
    pub(super) fn expect_seal(&self) {
        if !self.ranks.leads() {
            self.ranks.expect_work(time_to_write(&self.session.config));
        }
    }

    pub(super) fn settle_save_or_say(&mut self) {
        if let Err(error) = self.settle_save() {
            self.say(&format!("{error:#}; training continues"));
        }
    }

    /// Never waits.
    pub(super) fn look_after_save(&mut self) {
        if self.saver.sealing.as_ref().is_some_and(|sealing| sealing.thread.is_finished()) {
            self.settle_save_or_say();
        }
    }

    fn no_checkpoint<T>(
        &mut self,
        step: u64,
        best_before: Option<Best>,
        error: anyhow::Error,
    ) -> anyhow::Result<T> {
        self.session.progress.best = best_before;
        self.tell("checkpoint", &json!({ "step": step, "error": format!("{error:#}") }));
        Err(error.context(format!("step {step}: no checkpoint was saved")))
    }

    /// Before the checkpoint has its name: a run that loses a rank meanwhile resumes from the one before, with all files.
    /// A checkpoint is whole without a file that could not be written.
    fn save_own(&mut self) -> anyhow::Result<()> {
        if !self.exchange.keeps_own() {
            return Ok(());
        }
        let Session { progress, config, .. } = &self.session;
        let at = SavedAt { step: progress.step, losses: &progress.losses };
        let moments = snapshot::moments(&self.optimizer);
        let saved = self.exchange.save_state(self.run_of_lead(), at, moments, &self.ranks);
        if let Err(error) = saved {
            eprintln!("rank {}: {error:#}; training continues", self.ranks.rank());
        }
        // Rank 0 may sample before it writes.
        self.ranks.expect_work(time_to_write(config));
        self.ranks.expect_work_of_lead();
        self.ranks.all_succeeded(true)?;
        self.ranks.expect_work_of_lead();
        Ok(())
    }

    pub(super) fn save_or_end(&mut self, better: Option<Best>) -> anyhow::Result<()> {
        let saved = self.save(better).and_then(|()| self.settle_save());
        saved.context("the run ends without a checkpoint of its last step")
    }

    /// The run may have ended before the mark, or resume from an earlier step.
    pub(crate) fn settle_best(&mut self) {
        let checkpoints = &self.saver.checkpoints;
        let progress = &mut self.session.progress;
        let marked = checkpoints.best().ok().flatten();
        if progress.best.is_some_and(|best| marked == Some(best.step)) {
            return;
        }
        let settled = match progress.best.map(|best| checkpoints.mark_best(best.step)) {
            // Other weights will have the marked step.
            None | Some(Err(CheckpointError::Absent { .. })) if marked > Some(progress.step) => {
                progress.best = None;
                checkpoints.unmark_best()
            }
            None | Some(Err(CheckpointError::Absent { .. })) => Ok(()),
            Some(settled) => settled,
        };
        if let Err(error) = settled {
            self.say(&format!("the best checkpoint so far cannot be marked: {error}"));
        }
    }
}

/// Of weights and two moments, at most.
fn time_to_write(config: &Config) -> Duration {
    Duration::from_secs(3 * size_of::<f32>() as u64 * saved(config) / SLOWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_waits_for_the_writing_and_for_what_is_left_when_it_asks() {
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let course = Course { begun, written: after(30), asked: after(500), ended: after(200) };
        assert_eq!(course.whole(), Duration::from_millis(200));
        assert_eq!(course.waited(), Duration::from_millis(30), "it had ended when training asked");
        let early = Course { asked: after(150), ..course };
        assert_eq!(early.waited(), Duration::from_millis(30 + 50));
        let at_once = Course { asked: after(30), ..course };
        assert_eq!(at_once.waited(), at_once.whole(), "the last save of a run");
    }
}
