//! How ranks exchange gradients and weights. Only this module asks for the kind.

mod exact;
mod one_bit;
mod periodic;
mod pipeline;

use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, backend::AutodiffBackend};
use models::Gpt;
use runs::BadInput;
use runs::config::{Config, ExchangeKind, RanksSection};

use super::due::Due;
use super::gradients::{OverlappedReduce, ReduceOrder, Sum};
use super::{Learner, Progress};
use crate::data::{StepData, counted};
use crate::optimizer::{HostPart, Owners, Passes, WeightWindow};
use crate::progress::Report;
use crate::ranks::{Loss, Pair, Pairs, Ranks, SavedAt};
use crate::stages;

use exact::{Exact, Wire};
use one_bit::OneBit;
use periodic::Periodic;
pub(super) use periodic::{KIND, Met, RoundEnd};

pub(crate) enum Exchange {
    /// One process with every micro-batch of a step.
    Alone,
    /// Exactly, or rounded to bf16 on the way.
    Exact(Exact),
    OneBit(OneBit),
    Periodic(Box<Periodic>),
    Pipeline,
}

pub(crate) struct Pass<'a, I: Managed> {
    pub(crate) learner: &'a Learner<Autodiff<I>>,
    pub(crate) data: &'a StepData,
    pub(crate) host: Option<&'a mut HostPart>,
    pub(crate) owners: &'a Owners,
    pub(crate) passes: Passes<I>,
    pub(crate) window: Option<WeightWindow<I>>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Restored {
    All,
    Moments(Vec<Pair>),
    /// The reason why all ranks begin without state.
    Dropped(String),
}

impl Exchange {
    pub(crate) fn choose(settings: &RanksSection, shard: bool, ranks: &Ranks) -> Self {
        if ranks.is_alone() {
            return Self::Alone;
        }
        if ranks.form_pipelines() {
            return Self::Pipeline;
        }
        match settings.exchange {
            ExchangeKind::Exact => Self::Exact(Exact::new(shard, Wire::F32(ranks.exact()))),
            ExchangeKind::Bf16 => Self::Exact(Exact::new(shard, Wire::Bf16)),
            ExchangeKind::OneBit => Self::OneBit(OneBit::new(settings.warm_up, ranks.exact())),
            ExchangeKind::Rarely => Self::Periodic(Box::new(Periodic::new(settings))),
        }
    }

    /// An error for local steps, else a warning.
    pub(crate) fn check_shares(&self, micro_batches: usize, ranks: &Ranks) -> anyhow::Result<()> {
        let Some(text) = stages::idle_ranks(micro_batches, ranks.world(), ranks.stages()) else {
            return Ok(());
        };
        if matches!(self, Self::Periodic(_)) {
            return Err(BadInput(stages::refused(text)).into());
        }
        if ranks.leads() {
            eprintln!("{text}");
        }
        Ok(())
    }

    /// Before the first step, after `step` of `steps`. All ranks have equal weights.
    pub(crate) fn start<B: AutodiffBackend>(
        &mut self,
        gpt: &Gpt<B>,
        (step, steps): (u64, u64),
        ranks: &mut Ranks,
    ) -> anyhow::Result<()> {
        match self {
            Self::Periodic(periodic) => {
                periodic.open(step, steps, ranks)?;
                periodic.start(gpt, step)
            }
            Self::Alone | Self::Exact(_) | Self::OneBit(_) | Self::Pipeline => Ok(()),
        }
    }

    /// For local steps, over this rank only. Returns gradients of parameters that this rank steps on its device.
    pub(crate) fn sum<I: Managed>(
        &mut self,
        Pass { learner, data, host, owners, passes, window }: Pass<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(GradientsParams, Report)> {
        let mut report = Report { step: data.step, ..Report::default() };
        let (mut share, mut divisor) = (ranks.share(data.micro_batches.len()), data.counted());
        report.gradients_leave = host.is_some() || !matches!(self, Self::Alone | Self::Periodic(_));
        let (first, end) = (share.range().start, share.range().end);
        let own = &data.micro_batches[first as usize..end as usize];
        if matches!(self, Self::Periodic(_)) {
            (share, divisor) = (Periodic::share(own.len()), counted(own));
        }

        let mut sum = Sum::new(share, host, owners, passes);
        self.begin_sums(learner, data.step, &mut sum, ranks)?;
        if let (Some(window), Some(reduce)) = (window, &mut sum.reduce) {
            reduce.gather_for(window);
        }
        let losses = match self {
            Self::Pipeline => pipeline::losses(learner, data.step, (first, own), divisor, &mut sum, ranks)?,
            _ => learner.own_losses(data.step, (first, own), divisor, &mut sum),
        };
        let numbers = self.finish_sums(learner, losses, &mut sum, ranks);

        // The second failure follows from the first.
        let numbers = sum.failure.take().map_or(numbers, |failure| Err(anyhow!(failure)));
        (report.loss, report.gnorm) = numbers?;
        report.kept_inputs = sum.kept_inputs();
        report.gradients_held = (!ranks.is_alone()).then_some(sum.held.peak);
        Ok((sum.grads, report))
    }

    /// Gradients of step `step`, from 1, then leave as they arrive.
    pub(super) fn begin_sums<I: Managed>(
        &mut self,
        learner: &Learner<Autodiff<I>>,
        step: u64,
        sum: &mut Sum<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<()> {
        let sums = match self {
            Self::Exact(exact) => ranks.begin_sums(exact.begin())?,
            Self::OneBit(one_bit) => ranks.begin_sums(one_bit.begin(step))?,
            Self::Alone | Self::Periodic(_) | Self::Pipeline => return Ok(()),
        };
        let in_turn = learner.gpt.learning();
        let order = ReduceOrder::of_pass(in_turn, learner.pass.recompute, ranks.world());
        sum.reduce = Some(OverlappedReduce::begin(sums, order));
        Ok(())
    }

    /// Loss and norm, equal on all ranks but for those of local steps.
    pub(super) fn finish_sums<I: Managed>(
        &mut self,
        learner: &Learner<Autodiff<I>>,
        losses: Vec<Tensor<I, 1>>,
        sum: &mut Sum<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(f32, f32)> {
        match self {
            Self::Alone | Self::Periodic(_) => learner.own_numbers(losses, sum),
            Self::Exact(exact) => exact.numbers(learner, losses, sum, ranks),
            Self::OneBit(_) => exact::numbers(learner, losses, sum, false, ranks),
            Self::Pipeline => pipeline::numbers(learner, losses, sum, ranks),
        }
    }

    /// `committed` if the step's update is made.
    pub(crate) fn settle(&mut self, committed: bool) {
        if let Self::OneBit(one_bit) = self {
            one_bit.settle(committed);
        }
    }

    /// Ends a round of local steps if it is over: all ranks then have equal weights. A failure leaves the model
    /// unusable.
    pub(crate) fn meet<B: AutodiffBackend>(
        &mut self,
        gpt: Gpt<B>,
        at: RoundEnd,
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<Option<Met>>) {
        match self {
            Self::Periodic(periodic) => periodic.meet(gpt, at, ranks),
            Self::Alone | Self::Exact(_) | Self::OneBit(_) | Self::Pipeline => (gpt, Ok(None)),
        }
    }

    /// Before a step: begins a round if ranks have met.
    pub(crate) fn begin_round<B: AutodiffBackend>(
        &mut self,
        gpt: Gpt<B>,
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<()>) {
        match self {
            Self::Periodic(periodic) => periodic.begin_round(gpt, ranks),
            Self::Alone | Self::Exact(_) | Self::OneBit(_) | Self::Pipeline => (gpt, Ok(())),
        }
    }

    /// This rank fails within a round.
    pub(super) fn fail(&mut self, ranks: &mut Ranks) {
        if let Self::Periodic(periodic) = self {
            periodic.fail(ranks);
        }
    }

    /// This rank's update failed: the others hear of it as they agree on what follows the step, unless they survive it.
    pub(super) fn fail_update(&self, ranks: &mut Ranks) {
        // Within a round ranks agree on nothing.
        if !ranks.survive() && !matches!(self, Self::Alone | Self::Periodic(_)) {
            _ = agreed(Due::default(), false, ranks);
        }
    }

    /// Whether all ranks lack the data of a step, as is usual: each reads all of it.
    pub(super) fn all_lack_data(&self, ranks: &mut Ranks) -> bool {
        match self {
            Self::Alone => true,
            // Within a round ranks agree on nothing.
            Self::Periodic(_) => false,
            Self::Exact(_) | Self::OneBit(_) | Self::Pipeline => {
                ranks.all_succeeded(false).is_ok_and(|all| !all)
            }
        }
    }

    /// Tokens of all ranks over those at this rank's pace.
    pub(super) fn pace(&self) -> f64 {
        match self {
            Self::Periodic(periodic) => periodic.pace(),
            Self::Alone | Self::Exact(_) | Self::OneBit(_) | Self::Pipeline => 1.0,
        }
    }

    /// Steps of all ranks over their number, from the one after `after`, where this process began, to `step`.
    pub(super) fn steps_of_all(&self, after: u64, step: u64) -> f64 {
        match self {
            Self::Periodic(periodic) => periodic.steps_of_all(step),
            Self::Alone | Self::Exact(_) | Self::OneBit(_) | Self::Pipeline => (step - after) as f64,
        }
    }

    /// The step before `step` with equal weights on all ranks, if they are equal now.
    fn equal_before(&self, step: u64) -> Option<u64> {
        match self {
            Self::Periodic(periodic) => periodic.met_before(step),
            Self::Alone | Self::Exact(_) | Self::OneBit(_) | Self::Pipeline => Some(step.saturating_sub(1)),
        }
    }

    /// Any rank's `stop` ends the run. All living ranks get rank 0's answer, or all an error.
    pub(crate) fn agree(
        &self,
        config: &Config,
        progress: &Progress,
        stop: bool,
        ranks: &mut Ranks,
    ) -> anyhow::Result<Due> {
        let Some(before) = self.equal_before(progress.step) else { return Ok(Due::default()) };
        let own = Due::after(config, progress, before, stop);
        if ranks.is_alone() {
            return Ok(own);
        }
        let all = agreed(own, true, ranks)?;
        let stops = all.iter().any(|byte| Due::from_byte(*byte).stops());
        let rank_0 = Due::from_byte(all[0]);
        Ok(if stops { rank_0.with_stop() } else { rank_0 })
    }

    /// On ranks with saved state of their own; others keep `own`.
    pub(crate) fn answer_of_rank_0(&self, own: bool, ranks: &mut Ranks) -> anyhow::Result<bool> {
        match self {
            Self::Alone => Ok(own),
            Self::Exact(exact) if !exact.is_sharded() => Ok(own),
            Self::Exact(_) | Self::OneBit(_) | Self::Periodic(_) | Self::Pipeline => {
                Ok(ranks.number(u8::from(own))? == 1)
            }
        }
    }

    /// `None` if the others cannot repeat the step. Only exact sums without shards can: all else loses state with a
    /// rank.
    pub(crate) fn drop_lost_ranks(&mut self, ranks: &mut Ranks) -> anyhow::Result<Option<Loss>> {
        match self {
            Self::Exact(exact) if !exact.is_sharded() => {}
            _ => return Ok(None),
        }
        let loss = ranks.drop_lost_ranks()?;
        if loss.is_some() && ranks.is_alone() {
            *self = Self::Alone;
        }
        Ok(loss)
    }

    /// Whether each rank has a state of its own to save.
    pub(super) fn keeps_own(&self) -> bool {
        matches!(self, Self::OneBit(_) | Self::Periodic(_))
    }

    pub(crate) fn save_state(
        &self,
        run: &Path,
        at: SavedAt<'_>,
        moments: Pairs<'_>,
        ranks: &Ranks,
    ) -> anyhow::Result<()> {
        match self {
            Self::Alone | Self::Exact(_) | Self::Pipeline => Ok(()),
            Self::OneBit(one_bit) => one_bit.save_state(run, at, ranks),
            Self::Periodic(periodic) => periodic.save_state(run, at, moments, ranks),
        }
    }

    /// All ranks restore, or none.
    pub(crate) fn restore_state(
        &mut self,
        run: &Path,
        at: SavedAt<'_>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<Restored> {
        match self {
            Self::Alone | Self::Exact(_) | Self::Pipeline => Ok(Restored::All),
            Self::OneBit(one_bit) => one_bit.restore_state(run, at, ranks),
            Self::Periodic(periodic) => periodic.restore_state(run, at, ranks),
        }
    }
}

/// Each rank's byte. All living ranks succeed, or all fail.
fn agreed(own: Due, succeeded: bool, ranks: &mut Ranks) -> anyhow::Result<Vec<u8>> {
    let all = ranks.gathered_alike(own.to_byte()).context("agreeing on what follows a step")?;
    let all_succeeded = ranks.all_succeeded(succeeded)?;
    ensure!(all_succeeded, "another rank could not update its weights; its own messages say why");
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::tests::on_each;

    #[test]
    fn ranks_hear_of_an_update_that_failed_on_one_before_they_take_another_step() {
        let config = Config::load("toy", &[]).expect("a preset");
        let all_know = on_each(3, |ranks| {
            ranks.without_survivors();
            let exchange = Exchange::choose(&config.ranks, false, ranks);
            if ranks.rank() == 1 {
                exchange.fail_update(ranks);
            } else {
                let due = exchange.agree(&config, &Progress::default(), false, ranks);
                let said = due.expect_err("rank 1 has failed").to_string();
                assert!(said.contains("another rank could not update its weights"), "{said}");
            }
            ranks.all_know_failure() && !ranks.have_failed()
        });
        assert_eq!(all_know, [true; 3]);
    }
}
