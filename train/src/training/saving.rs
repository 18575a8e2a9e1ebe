//! Checkpoints of a run in progress.

use std::cell::RefCell;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use backend_offload::Offloadable;
use runs::checkpoint::CheckpointError;
use serde_json::json;

use super::lending::Lending;
use super::session::Best;
use super::strategy::Tape;
use super::{Learner, Run, snapshot};

impl<I: Offloadable> Run<I> {
    /// Saves a checkpoint, as the best one if it is. If that fails, the one before is still the best.
    pub(super) fn save(&mut self, model: &Learner<Tape<I>>, better: Option<Best>) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.optimizer.settle()?;
        let lending = if self.optimizer.owners.are_divided() {
            Some(RefCell::new(Lending::begin(&self.optimizer, &mut self.ranks)?))
        } else {
            None
        };
        let best_before = self.session.progress.best;
        if better.is_some() {
            self.session.progress.best = better;
        }
        let session = &self.session;
        let step = session.progress.step;
        let moments =
            lending.as_ref().map_or_else(|| self.optimizer.bytes(), |lending| lending.borrow().bytes());
        let bytes = moments + session.parameters * size_of::<f32>() as u64;
        let write = |folder: &Path| {
            let (config, progress) = (&session.config, &session.progress);
            let (gpt, tokenizer) = (&model.gpt, &session.data.tokenizer);
            snapshot::save(folder, gpt, &self.optimizer, lending.as_ref(), config, progress, tokenizer)?;
            session.data.indexes.as_ref().map_or(Ok(()), |indexes| indexes.save(folder))
        };
        // What the journal tells up to this step is not to be lost once the checkpoint is there.
        let saved = self.journal.sync().and_then(|()| Ok(self.checkpoints.save(step, bytes, write)?));
        // Whatever became of the file, other ranks are not to wait.
        if let Some(lending) = lending {
            lending.into_inner().end()?;
        }
        match saved {
            Ok(saved) => {
                self.checkpoint_bytes = Some(saved.bytes);
                let ms = begun.elapsed().as_secs_f64() * 1e3;
                self.tell("checkpoint", &json!({ "step": step, "bytes": saved.bytes, "ms": ms }));
            }
            Err(error) => {
                self.session.progress.best = best_before;
                self.tell("checkpoint", &json!({ "step": step, "error": format!("{error:#}") }));
                return Err(error.context(format!("step {step}: no checkpoint was saved")));
            }
        }
        let rule = &self.session.config.checkpoint;
        let marked = if better.is_some() { self.checkpoints.mark_best(step) } else { Ok(()) };
        if let Err(error) = marked.and_then(|()| self.checkpoints.prune(rule.keep_last, rule.keep_every)) {
            self.say(&format!("step {step}: the checkpoint was saved, but then: {error}"));
        }
        Ok(())
    }

    /// What the ranks that do not save do while rank 0 does, where moments are divided among them.
    pub(super) fn lend(&mut self) -> anyhow::Result<()> {
        if !self.optimizer.owners.are_divided() {
            return Ok(());
        }
        self.optimizer.settle()?;
        Lending::begin(&self.optimizer, &mut self.ranks)?.serve(&self.optimizer)
    }

    /// As [`save`](Self::save), where the run ends.
    pub(super) fn save_or_end(
        &mut self,
        model: &Learner<Tape<I>>,
        better: Option<Best>,
    ) -> anyhow::Result<()> {
        self.save(model, better).context("the run ends without a checkpoint of its last step")
    }

    /// Lets `best` point where the checkpoint that was gone on from says: a run may have ended between a save and its
    /// mark, or go on from before what was best. In another directory than it was saved in there is nothing to mark.
    pub(crate) fn settle_best(&self) {
        let Some(best) = self.session.progress.best else { return };
        if self.checkpoints.best().ok().flatten() == Some(best.step) {
            return;
        }
        match self.checkpoints.mark_best(best.step) {
            Ok(()) | Err(CheckpointError::Absent { .. }) => {}
            Err(error) => self.say(&format!("the best checkpoint so far cannot be marked: {error}")),
        }
    }
}
