//! Ranks that are gone where the others cannot do the step again with what they have: these begin anew, in the same processes, from
//! the last checkpoint, as if they had been started to resume it.

#[cfg(test)]
mod tests;

use anyhow::ensure;
use backend_offload::{Offload, Offloadable, reset_peaks, trim};
use burn::tensor::backend::Backend;
use models::Footprint;
use runs::checkpoint::{Checkpoints, Which};
use runs::config::Config;
use runs::directory::RunDirectory;
use serde_json::json;

use crate::journal::Journal;
use crate::plan::{Machine, Plan};
use crate::ranks::{Loss, Ranks};
use crate::training::{Failed, computes_nothing};

/// The losses of a run as this process has seen them.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Whether the run has saved a checkpoint since these processes were started, which is rank 0's to know.
    saved: bool,
    /// The last loss, until the run goes on behind it.
    last: Option<Loss>,
}

impl Losses {
    /// The ranks that live, where a run has failed because others are gone; otherwise its error. Nothing may hold memory of the
    /// run any more.
    pub(super) fn survive<I: Offloadable>(
        &mut self,
        failed: Failed,
        device: &I::Device,
    ) -> anyhow::Result<Ranks> {
        let Failed { error, mut ranks, saved } = failed;
        self.saved |= saved;
        let loss = ranks.drop_lost_ranks().map_err(|other| other.context(format!("{error:#}")))?;
        // A failure that took nobody away would only come again.
        let Some(loss) = loss.filter(|loss| !loss.gone.is_empty()) else { return Err(error) };
        self.last = Some(loss);
        // Errors of what was under way concern nobody any more.
        _ = Offload::<I>::sync(device);
        trim::<I>(device);
        reset_peaks::<I>(device);
        Ok(ranks)
    }

    /// Lets `directory` begin with what the ranks that live go on from: the last checkpoint that they saved, or where they had begun.
    pub(super) fn begin_anew(
        &self,
        directory: &mut RunDirectory,
        planned: &mut Option<(Plan, Option<f64>)>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<()> {
        let Some(loss) = &self.last else { return Ok(()) };
        let (world, checkpoints) = (ranks.world(), Checkpoints::in_run(&directory.path));
        let mut latest = None;
        let told = ranks.led(|| {
            if let Some((plan, _)) = planned {
                *plan = shared_by(world, &directory.config, plan)?;
            }
            if self.saved {
                latest = Some(checkpoints.find(Which::Latest)?);
            }
            Ok(latest.iter().flat_map(|latest| latest.step.to_le_bytes()).collect())
        })?;
        if let Ok(step) = <[u8; 8]>::try_from(told.as_slice()) {
            let which = Which::Step(u64::from_le_bytes(step));
            directory.from = Some(latest.map_or_else(|| checkpoints.find(which), Ok)?);
            (directory.pretrained, directory.changes) = (None, Vec::new());
        }
        if ranks.leads() {
            let from = directory.from.as_ref();
            let place =
                from.map_or("the start".to_owned(), |from| format!("the checkpoint of step {}", from.step));
            eprintln!("{loss}: {world} of {} ranks go on from {place}", loss.before);
        }
        Ok(())
    }

    /// Writes the last loss down behind the line of the start that followed it.
    pub(super) fn write_down(
        &mut self,
        step: u64,
        ranks: &Ranks,
        journal: &mut Journal,
    ) -> anyhow::Result<()> {
        let Some(Loss { gone, before }) = self.last.take() else { return Ok(()) };
        journal
            .write("lost", &json!({ "step": step, "ranks": ranks.world(), "before": before, "gone": gone }))
    }
}

/// The plan of the same run on fewer ranks. Its refusals are no bad input: the run had begun.
fn shared_by(ranks: usize, config: &Config, plan: &Plan) -> anyhow::Result<Plan> {
    let machine = Machine { other_ranks: ranks - 1, ..plan.machine.clone() };
    let plan = Plan::new(config, &Footprint::of(&config.model)?, &machine).over(plan.data);
    ensure!(
        plan.refusals().is_empty() || computes_nothing(),
        "{ranks} ranks cannot go on by themselves:\n  {}",
        plan.refusals().join("\n  ")
    );
    Ok(plan)
}
