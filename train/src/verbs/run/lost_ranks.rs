//! Recovery from lost ranks with state of their own: survivors resume the last checkpoint
//! (`ranks_with_own_state_restart_as_if_started_to_resume`).
//!
//! Each restart has fewer ranks, so restarts end. Only rank 0 saves; without it the run ends
//! (`a_run_ends_if_rank_0_is_lost_or_a_call_fails_without_a_loss`).

#[cfg(test)]
mod tests;

use anyhow::ensure;
use backend_offload::{Offload, Offloadable, dry_run_requested, reset_peaks, trim};
use burn::tensor::backend::Backend;
use models::Footprint;
use runs::checkpoint::{Checkpoints, Which};
use runs::config::Config;
use runs::directory::RunDirectory;

use crate::journal::Journal;
use crate::plan::{Machine, Plan};
use crate::ranks::{Loss, Ranks};
use crate::training::Failed;

#[derive(Debug, Default)]
pub(super) struct LostRanks {
    /// Whether these processes have saved; only rank 0 knows.
    saved: bool,
    /// Until the restarted run records it.
    last: Option<Loss>,
}

impl LostRanks {
    /// Returns the survivors, or the run's error if no rank is lost. The run's memory must be free.
    pub(super) fn survive<I: Offloadable>(
        &mut self,
        failed: Failed,
        device: &I::Device,
    ) -> anyhow::Result<Ranks> {
        let Failed { error, mut ranks, saved } = failed;
        self.saved |= saved;
        let loss = ranks.drop_lost_ranks().map_err(|other| other.context(format!("{error:#}")))?;
        // Without a lost rank the failure would repeat.
        let Some(loss) = loss.filter(|loss| !loss.gone.is_empty()) else { return Err(error) };
        self.last = Some(loss);
        // Rank 0 may prepare the restart for hours.
        ranks.unwatch();
        // Takes dropped operations' pending errors from the device.
        _ = Offload::<I>::sync(device);
        trim::<I>(device);
        reset_peaks::<I>(device);
        Ok(ranks)
    }

    /// `directory` then begins with the survivors' last checkpoint, or the run's start.
    pub(super) fn restart_from_checkpoint(
        &self,
        directory: &mut RunDirectory,
        planned: &mut Option<(Plan, Option<f64>)>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<()> {
        let Some(loss) = &self.last else { return Ok(()) };

        let (world, checkpoints) = (ranks.world(), Checkpoints::in_run(&directory.path));
        let mut latest = None;
        let step = ranks.led(|| {
            directory.look_again();
            if let Some((plan, _)) = planned {
                *plan = plan_for(world, &directory.config, plan)?;
            }
            if self.saved {
                latest = Some(checkpoints.find(Which::Latest)?);
            }
            Ok(latest.iter().flat_map(|latest| latest.step.to_le_bytes()).collect())
        })?;

        if let Ok(step) = <[u8; 8]>::try_from(step.as_slice()) {
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

    pub(super) fn write_down(
        &mut self,
        step: u64,
        ranks: &Ranks,
        journal: &mut Journal,
    ) -> anyhow::Result<()> {
        let Some(loss) = self.last.take() else { return Ok(()) };
        journal.write("lost", &loss.record(step, ranks.world()))
    }
}

/// A refusal is not bad input: the run had begun.
fn plan_for(ranks: usize, config: &Config, plan: &Plan) -> anyhow::Result<Plan> {
    let machine = Machine { other_ranks: ranks - 1, ..plan.machine.clone() };
    let plan = Plan::new(config, &Footprint::of(&config.model)?, &machine).over(plan.data);
    ensure!(
        plan.refusals().is_empty() || dry_run_requested(),
        "{ranks} ranks cannot go on by themselves:\n  {}",
        plan.refusals().join("\n  ")
    );
    Ok(plan)
}
