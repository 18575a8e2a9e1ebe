//! How ranks exchange gradients and weights. Only this module asks for the kind.

mod alone;
mod exact;
mod one_bit;
mod periodic;
mod pipeline;

use std::path::Path;

use anyhow::anyhow;
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

use alone::Alone;
use exact::{Exact, Wire};
use one_bit::OneBit;
use periodic::Periodic;
use pipeline::Pipeline;

pub(crate) enum Exchange {
    Alone(Alone),
    /// Exactly, or rounded to bf16 on the way.
    Exact(Exact),
    OneBit(OneBit),
    Periodic(Periodic),
    Pipeline(Pipeline),
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
            return Self::Alone(Alone);
        }
        if ranks.form_pipelines() {
            return Self::Pipeline(Pipeline);
        }
        match settings.exchange {
            ExchangeKind::Exact => Self::Exact(Exact::new(shard, Wire::F32(ranks.exact()))),
            ExchangeKind::Bf16 => Self::Exact(Exact::new(shard, Wire::Bf16)),
            ExchangeKind::OneBit => Self::OneBit(OneBit::new(settings.warm_up, ranks.exact())),
            ExchangeKind::Rarely => Self::Periodic(Periodic::new(settings)),
        }
    }

    /// An error for local steps, else a warning.
    pub(crate) fn check_shares(&self, micro_batches: usize, ranks: &Ranks) -> anyhow::Result<()> {
        let world = ranks.share(micro_batches).world;
        if world <= micro_batches {
            return Ok(());
        }
        let what = if ranks.form_pipelines() { "pipelines" } else { "ranks" };
        let text = format!(
            "{world} {what} share {micro_batches} micro-batches of a step, so some have nothing to do; raise \
             `train.accumulate` and lower `train.micro_batch`"
        );
        if matches!(self, Self::Periodic(_)) {
            return Err(
                BadInput(format!("{text}. With `ranks.exchange` = \"rarely\" every rank needs one")).into()
            );
        }
        if ranks.leads() {
            eprintln!("{text}");
        }
        Ok(())
    }

    pub(crate) fn start<B: AutodiffBackend>(&mut self, gpt: &Gpt<B>) -> anyhow::Result<()> {
        match self {
            Self::Periodic(periodic) => periodic.start(gpt),
            Self::Alone(_) | Self::Exact(_) | Self::OneBit(_) | Self::Pipeline(_) => Ok(()),
        }
    }

    /// For local steps, over this rank only. Returns gradients of parameters that this rank steps on its device.
    pub(crate) fn sum<I: Managed>(
        &mut self,
        Pass { learner, data, host, owners, passes, window }: Pass<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(GradientsParams, Report)> {
        let mut report = Report { step: data.step, ..Report::default() };
        let all = data.micro_batches.len();
        let (mut share, mut divisor) = (ranks.share(all), data.counted());
        report.gradients_leave = host.is_some() || !matches!(self, Self::Alone(_) | Self::Periodic(_));
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
            Self::Pipeline(_) => {
                Pipeline::losses(learner, data.step, (first, own), divisor, &mut sum, ranks)?
            }
            _ => learner.own_losses(data.step, (first, own), divisor, &mut sum),
        };
        let part = (divisor / data.counted()) as f32;
        let numbers = self.finish_sums(learner, losses, (part, all), &mut sum, ranks);

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
            Self::Alone(_) | Self::Periodic(_) | Self::Pipeline(_) => return Ok(()),
        };
        let in_turn = learner.gpt.learning();
        let order = ReduceOrder::of_pass(in_turn, learner.pass.recompute, ranks.world());
        sum.reduce = Some(OverlappedReduce::begin(sums, order));
        Ok(())
    }

    /// Loss and norm, equal on all ranks but for the norm of local steps. `part` is this rank's share of targets in
    /// `count` micro-batches.
    pub(super) fn finish_sums<I: Managed>(
        &mut self,
        learner: &Learner<Autodiff<I>>,
        losses: Vec<Tensor<I, 1>>,
        (part, count): (f32, usize),
        sum: &mut Sum<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(f32, f32)> {
        match self {
            Self::Alone(_) => Alone::numbers(learner, losses, sum),
            Self::Exact(exact) => exact.numbers(learner, losses, sum, ranks),
            Self::OneBit(_) => exact::numbers(learner, losses, sum, false, ranks),
            Self::Periodic(_) => Periodic::numbers(learner, losses, (part, count), sum, ranks),
            Self::Pipeline(_) => Pipeline::numbers(learner, losses, sum, ranks),
        }
    }

    /// `committed` if the step's update is made.
    pub(crate) fn settle(&mut self, committed: bool) {
        if let Self::OneBit(one_bit) = self {
            one_bit.settle(committed);
        }
    }

    /// Equalises weights after the last step and each multiple of the local steps. Returns whether weights were sent. A
    /// failure leaves the model unusable.
    pub(crate) fn synchronise<B: AutodiffBackend>(
        &mut self,
        gpt: Gpt<B>,
        (step, is_last): (u64, bool),
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<bool>) {
        match self {
            Self::Periodic(periodic) if is_last || periodic.outer_step_is_due(step) => {
                let (gpt, stepped) = periodic.outer_step(gpt, ranks);
                (gpt, stepped.map(|()| true))
            }
            _ => (gpt, Ok(false)),
        }
    }

    fn equal_every(&self) -> u64 {
        match self {
            Self::Periodic(periodic) => periodic.local_steps(),
            Self::Alone(_) | Self::Exact(_) | Self::OneBit(_) | Self::Pipeline(_) => 1,
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
        let every = self.equal_every();
        let own = Due::after(config, progress, every, stop);
        if ranks.is_alone() || !Due::can_follow(config, progress, every) {
            return Ok(own);
        }
        let all = ranks.exchange_bytes(own.to_byte())?;
        let stops = all.iter().any(|byte| Due::from_byte(*byte).stops());
        let rank_0 = Due::from_byte(all[0]);
        Ok(if stops { rank_0.with_stop() } else { rank_0 })
    }

    /// On ranks with saved state of their own; others keep `own`.
    pub(crate) fn answer_of_rank_0(&self, own: bool, ranks: &mut Ranks) -> anyhow::Result<bool> {
        match self {
            Self::Alone(_) => Ok(own),
            Self::Exact(exact) if !exact.is_sharded() => Ok(own),
            Self::Exact(_) | Self::OneBit(_) | Self::Periodic(_) | Self::Pipeline(_) => {
                Ok(ranks.led(|| Ok(vec![u8::from(own)]))? == [1])
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
            *self = Self::Alone(Alone);
        }
        Ok(loss)
    }

    pub(crate) fn save_state(
        &self,
        run: &Path,
        at: SavedAt<'_>,
        moments: Pairs<'_>,
        ranks: &Ranks,
    ) -> anyhow::Result<()> {
        match self {
            Self::Alone(_) | Self::Exact(_) | Self::Pipeline(_) => Ok(()),
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
            Self::Alone(_) | Self::Exact(_) | Self::Pipeline(_) => Ok(Restored::All),
            Self::OneBit(one_bit) => one_bit.restore_state(run, at, ranks),
            Self::Periodic(periodic) => periodic.restore_state(run, at, ranks),
        }
    }
}
