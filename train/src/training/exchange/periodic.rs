//! Local steps in rounds. What a round changed reaches the other ranks during the next one.
//!
//! Ranks meet at the end of a round: they receive the mean change of the round before and step the common weights
//! ([`exchange::Outer`]). Evaluation, save and stop follow a meeting and use the common weights
//! (`a_run_evaluates_and_saves_only_common_weights`). The run's last meeting waits for its own mean.
//!
//! With one bit per element, a change's rounding error joins the rank's next change
//! (`changes_in_one_bit_arrive_over_time`).
//!
//! Each rank saves its own weights and moments, and its errors (`a_run_resumes_with_what_each_rank_has_to_the_bits_of_an_uninterrupted_one`).

mod rounds;

use std::collections::{HashSet, VecDeque};
use std::path::Path;

use anyhow::{Context, bail};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{
    Tensor, TensorData,
    backend::{AutodiffBackend, Backend},
};
use exchange::{Outer, OuterStep, Pairwise, Share};
use models::Gpt;
use runs::config::{ChangesKind, RanksSection};
use serde_json::Value;

use super::super::gradients::{ANOTHER_FAILED, bucket_ends};
use super::Restored;
use super::exact::{Wire, reduce};
use super::one_bit::OneBit;
use crate::optimizer::numbers;
use crate::ranks::{BUCKET_BYTES, BackgroundSums, Job, Kept, Pair, Pairs, Ranks, SavedAt};

pub(crate) use rounds::KIND;
use rounds::Rounds;

pub(crate) struct Periodic {
    settings: OuterStep,
    rounds: Rounds,
    /// Sums of changes, unless they travel in f32.
    one_bit: Option<OneBit>,
    /// In the model's order.
    outers: Vec<Outer>,
    restored: VecDeque<Pair>,
    /// Between a meeting and the next round.
    met: Option<Met>,
    under_way: Option<BackgroundSums>,
    /// Until this rank has begun to meet the others.
    in_round: bool,
    /// Steps of all ranks in the last round over those that all had taken at this rank's pace.
    pace: f64,
    /// Steps of all ranks over their number, up to the last meeting.
    met_steps: f64,
}

/// The last step of a rank's round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundEnd {
    pub(crate) step: u64,
    /// Steps of the run.
    pub(crate) steps: u64,
    pub(crate) diverged: bool,
}

/// Equal on all ranks but for `share`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Met {
    /// The furthest rank's.
    pub(crate) step: u64,
    pub(crate) diverged: bool,
    pub(crate) record: Value,
    /// The step of the meeting before.
    before: u64,
    /// This rank's part of all steps of the round.
    share: f32,
}

/// Changes have no exact steps before.
const FIRST_STEP: u64 = 1;

const FAILED: u64 = 1;
const DIVERGED: u64 = 2;

impl Periodic {
    pub(super) fn new(settings: &RanksSection) -> Self {
        Self {
            settings: OuterStep {
                rate: settings.outer_rate as f32,
                momentum: settings.outer_momentum as f32,
            },
            rounds: Rounds::new(settings.round.clone()),
            one_bit: match settings.changes {
                ChangesKind::F32 => None,
                ChangesKind::OneBit => Some(OneBit::of_changes()),
            },
            outers: Vec::new(),
            restored: VecDeque::new(),
            met: None,
            under_way: None,
            in_round: false,
            pace: 1.0,
            met_steps: 0.0,
        }
    }

    /// Refuses a record of rounds that does not reach from step `after` to `until`.
    pub(super) fn open(&mut self, after: u64, until: u64, ranks: &mut Ranks) -> anyhow::Result<()> {
        self.rounds.open(after, until, ranks)
    }

    pub(super) fn share(micro_batches: usize) -> Share {
        Share { count: micro_batches as u64, world: 1, rank: 0 }
    }

    pub(super) fn pace(&self) -> f64 {
        self.pace
    }

    /// Up to `step`; within a round, an estimate by the round before.
    pub(super) fn steps_of_all(&self, step: u64) -> f64 {
        let in_round = if self.met.is_some() { 0 } else { step - self.rounds.after() };
        self.met_steps + in_round as f64 * self.pace
    }

    /// The step of the meeting before the one after `step`; `None` within a round.
    pub(super) fn met_before(&self, step: u64) -> Option<u64> {
        self.met.as_ref().filter(|met| met.step == step).map(|met| met.before)
    }

    /// Begins after `step` with the common weights `gpt`.
    pub(super) fn start<B: AutodiffBackend>(&mut self, gpt: &Gpt<B>, step: u64) -> anyhow::Result<()> {
        let mut restored = std::mem::take(&mut self.restored);
        let share = restored.pop_back().and_then(|[share, _]| share.first().copied());
        let settings = self.settings;
        self.outers = weights(gpt, |_, common| match restored.pop_front() {
            Some([own, momentum]) => Ok(Outer::restore(settings, common, momentum, own)?),
            None => Ok(Outer::new(settings, common)),
        })
        .context("taking over what this rank has of its own")?;
        self.met = share.map(|share| Met { step, diverged: false, record: Value::Null, before: step, share });
        self.rounds.begin(step);
        self.in_round = true;
        Ok(())
    }

    /// Ends the round if it is over. The model then has the common weights.
    pub(super) fn meet<B: AutodiffBackend>(
        &mut self,
        gpt: Gpt<B>,
        at: RoundEnd,
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<Option<Met>>) {
        let is_over = at.step >= at.steps || at.diverged;
        if !is_over && !self.rounds.is_over(at.step) {
            return (gpt, Ok(None));
        }
        match self.end_round(&gpt, at, ranks) {
            Ok(met) => {
                let gpt = load(gpt, self.outers.iter().map(Outer::common));
                (gpt, Ok(Some(self.met.insert(met).clone())))
            }
            Err(error) => (gpt, Err(error)),
        }
    }

    fn end_round<B: AutodiffBackend>(
        &mut self,
        gpt: &Gpt<B>,
        at: RoundEnd,
        ranks: &mut Ranks,
    ) -> anyhow::Result<Met> {
        self.in_round = false;
        self.receive(ranks)?;
        let after = self.rounds.after();
        let own = [at.step - after, if at.diverged { DIVERGED } else { 0 }];
        let all = ranks.gathered_alike(own)?;
        if all.iter().any(|[_, flags]| flags & FAILED != 0) {
            // After a vote that says no, the others end after rank 0.
            ranks.all_succeeded(false)?;
            bail!(ANOTHER_FAILED);
        }

        let outers = &mut self.outers;
        weights(gpt, |n, weights| {
            Ok(outers.get_mut(n).context("a parameter was never begun")?.end_round(&weights)?)
        })?;

        let counts: Vec<u64> = all.iter().map(|[count, _]| *count).collect();
        let (sum, most) = (counts.iter().sum::<u64>(), counts.iter().max().copied().unwrap_or(0));
        self.pace = sum as f64 / (own[0] * counts.len() as u64) as f64;
        self.met_steps += sum as f64 / counts.len() as f64;
        let step = after + most;
        let met = Met {
            step,
            diverged: all.iter().any(|[_, flags]| flags & DIVERGED != 0),
            record: rounds::record(after, step, &counts, self.rounds.seconds()),
            before: after,
            share: own[0] as f32 / sum as f32,
        };
        if met.diverged || step >= at.steps {
            self.send(met.share, ranks)?;
            self.receive(ranks)?;
            self.outers.iter_mut().for_each(Outer::take_common);
        }
        Ok(met)
    }

    /// After a meeting: this rank's own weights, whose change goes to the others meanwhile.
    pub(super) fn begin_round<B: AutodiffBackend>(
        &mut self,
        gpt: Gpt<B>,
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<()>) {
        let Some(met) = self.met.take() else { return (gpt, Ok(())) };
        let sent = self.send(met.share, ranks);
        self.rounds.begin(met.step);
        self.in_round = true;
        (load(gpt, self.outers.iter().map(Outer::own)), sent)
    }

    fn send(&mut self, share: f32, ranks: &mut Ranks) -> anyhow::Result<()> {
        let wire = Wire::F32(ranks.exact());
        let sums = match &mut self.one_bit {
            Some(one_bit) => ranks.begin_sums(one_bit.begin(FIRST_STEP))?,
            None => ranks.begin_sums(move |engine, bucket| reduce(wire, engine, bucket))?,
        };
        let of_rank = Share { count: ranks.world() as u64, world: ranks.world(), rank: ranks.rank() };
        let lens: Vec<usize> = self.outers.iter().map(|outer| outer.own().len()).collect();
        let ends = bucket_ends(&lens, BUCKET_BYTES / size_of::<f32>() * ranks.world());
        for (place, (outer, ends_bucket)) in self.outers.iter().zip(ends).enumerate() {
            let part = outer.part_of_mean(share);
            let mut own = Pairwise::new(of_rank, part.len());
            own.push(part)?;
            sums.submit(Job { own, place, owner: None, ends_bucket });
        }
        self.under_way = Some(sums);
        Ok(())
    }

    fn receive(&mut self, ranks: &mut Ranks) -> anyhow::Result<()> {
        let Some(sums) = self.under_way.take() else { return Ok(()) };
        let means: Vec<_> = self.outers.iter().map_while(|_| sums.take()).collect();
        ranks.end_sums(sums).context("averaging what the ranks have changed")?;
        self.one_bit.iter_mut().for_each(|one_bit| one_bit.settle(true));
        for (outer, mean) in self.outers.iter_mut().zip(means) {
            outer.step(&mean)?;
        }
        Ok(())
    }

    /// Announces this rank's failure to the others at the end of their round.
    pub(super) fn fail(&mut self, ranks: &mut Ranks) {
        if self.in_round && self.receive(ranks).is_ok() && ranks.gathered_alike([0, FAILED]).is_ok() {
            _ = ranks.all_succeeded(false);
        }
    }

    /// Own weights, rank 0 with the momentum of all, and last this rank's share; for other ranks also moments.
    pub(super) fn save_state(
        &self,
        run: &Path,
        at: SavedAt<'_>,
        moments: Pairs<'_>,
        ranks: &Ranks,
    ) -> anyhow::Result<()> {
        if !ranks.leads() {
            ranks.save_state(run, at, Kept::Moments, moments)?;
        }
        let share = self.met.as_ref().map_or(0.0, |met| met.share);
        let momentum = |outer: &Outer| if ranks.leads() { outer.momentum().to_vec() } else { Vec::new() };
        let fetch = |n: usize| {
            let pair = |outer: &Outer| [outer.own().to_vec(), momentum(outer)];
            Ok(self.outers.get(n).map_or_else(|| [vec![share], Vec::new()], pair))
        };
        let lengths = (0..=self.outers.len()).map(|n| match self.outers.get(n) {
            Some(outer) => [outer.own().len(), if ranks.leads() { outer.own().len() } else { 0 }],
            None => [1, 0],
        });
        let lengths = lengths.collect();
        ranks.save_state(run, at, Kept::OwnWeights, Pairs { lengths, fetch: Box::new(fetch) })?;
        self.one_bit.as_ref().map_or(Ok(()), |one_bit| one_bit.save_state(run, at, ranks))
    }

    pub(super) fn restore_state(
        &mut self,
        run: &Path,
        at: SavedAt<'_>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<Restored> {
        let kept: &[Kept] =
            if ranks.leads() { &[Kept::OwnWeights] } else { &[Kept::OwnWeights, Kept::Moments] };
        let mut saved = match ranks.load_states(run, at, kept)? {
            Ok(saved) => saved,
            Err(reason) => {
                let lost = "every rank begins with the common weights and the moments of rank 0, outer steps without momentum";
                return Ok(Restored::Dropped(format!("{lost}: {reason}")));
            }
        };
        let moments = if ranks.leads() { None } else { saved.pop() };
        let mut own = saved.pop().unwrap_or_default();
        let last = own.len().saturating_sub(1);
        for [_, momentum] in &mut own[..last] {
            let of_rank_0 = ranks.broadcast(bytemuck::cast_slice(momentum))?;
            *momentum = bytemuck::pod_collect_to_vec(&of_rank_0);
        }
        self.restored = own.into();
        if let Some(one_bit) = &mut self.one_bit
            && let Restored::Dropped(note) = one_bit.restore_state(run, at, ranks)?
            && ranks.leads()
        {
            eprintln!("{note}");
        }
        Ok(moments.map_or(Restored::All, Restored::Moments))
    }
}

/// Frozen weights are equal anyway.
fn learning<B: Backend>(gpt: &Gpt<B>) -> HashSet<ParamId> {
    gpt.learning().into_iter().map(|(id, _)| id).collect()
}

/// Reads each parameter that learns, in the model's order.
fn weights<B: AutodiffBackend, T>(
    gpt: &Gpt<B>,
    each: impl FnMut(usize, Vec<f32>) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let mut reading = Reading { learning: learning(gpt), each, results: Ok(Vec::new()) };
    gpt.visit(&mut reading);
    reading.results
}

struct Reading<F, T> {
    learning: HashSet<ParamId>,
    each: F,
    results: anyhow::Result<Vec<T>>,
}

impl<B, F, T> ModuleVisitor<B> for Reading<F, T>
where
    B: AutodiffBackend,
    F: FnMut(usize, Vec<f32>) -> anyhow::Result<T>,
{
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Ok(results) = &mut self.results else { return };
        if self.learning.contains(&param.id) {
            match numbers(param.val().inner()).and_then(|numbers| (self.each)(results.len(), numbers)) {
                Ok(result) => results.push(result),
                Err(error) => self.results = Err(error),
            }
        }
    }
}

/// Replaces each parameter that learns, in the model's order.
fn load<'a, B: AutodiffBackend>(gpt: Gpt<B>, weights: impl Iterator<Item = &'a [f32]>) -> Gpt<B> {
    let learning = learning(&gpt);
    gpt.map(&mut Loading { learning, weights })
}

struct Loading<W> {
    learning: HashSet<ParamId>,
    weights: W,
}

impl<'a, B: AutodiffBackend, W: Iterator<Item = &'a [f32]>> ModuleMapper<B> for Loading<W> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, weight, mapper) = param.consume();
        let new = if self.learning.contains(&id) { self.weights.next() } else { None };
        let Some(new) = new else { return Param::from_mapped_value(id, weight, mapper) };
        let (shape, device) = (weight.shape(), weight.device());
        drop(weight);
        let inner = Tensor::from_data(TensorData::new(new.to_vec(), shape), &device);
        Param::from_mapped_value(id, Tensor::from_inner(inner).require_grad(), mapper)
    }
}

#[cfg(test)]
mod tests;
