//! Local steps, and periodic outer steps to equal weights on all ranks.
//!
//! Evaluation, save, stop and end follow an outer step (`a_run_evaluates_and_saves_only_common_weights`). Each rank has
//! its own moments (`a_run_resumes_with_each_ranks_moments_to_the_bits_of_an_uninterrupted_one`).

use std::collections::{HashSet, VecDeque};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{
    Tensor, TensorData,
    backend::{AutodiffBackend, Backend},
};
use exchange::{Engine, Outer, OuterStep, Share};
use models::Gpt;
use runs::config::RanksSection;

use super::super::Learner;
use super::super::gradients::{ANOTHER_FAILED, Sum};
use super::Restored;
use crate::optimizer::numbers;
use crate::ranks::{Kept, Pairs, Ranks, SavedAt};

/// In the model's order; equal on all ranks.
pub(crate) struct Periodic {
    settings: OuterStep,
    buffers: Vec<Outer>,
    /// Momentum of a checkpoint for parameters not begun.
    restored: VecDeque<Vec<f32>>,
    next: usize,
}

impl Periodic {
    pub(super) fn new(settings: &RanksSection) -> Self {
        let settings = OuterStep {
            inner: settings.local_steps,
            rate: settings.outer_rate as f32,
            momentum: settings.outer_momentum as f32,
        };
        Self { settings, buffers: Vec::new(), restored: VecDeque::new(), next: 0 }
    }

    pub(super) fn local_steps(&self) -> u64 {
        self.settings.inner
    }

    /// `step` counts from 1.
    pub(super) fn outer_step_is_due(&self, step: u64) -> bool {
        step.is_multiple_of(self.settings.inner)
    }

    pub(super) fn share(micro_batches: usize) -> Share {
        Share { count: micro_batches as u64, world: 1, rank: 0 }
    }

    /// Each loss is at its rank's weights; the norm is this rank's. NaN or infinity on one rank makes every norm NaN.
    pub(super) fn numbers<I: Managed>(
        learner: &Learner<Autodiff<I>>,
        losses: Vec<Tensor<I, 1>>,
        (part, count): (f32, usize),
        sum: &mut Sum<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(f32, f32)> {
        let own = learner.own_numbers(losses, sum);
        let all_computed = ranks.all(own.is_ok() && sum.failure.is_none())?;
        let (mut losses, norm) = own?;
        ensure!(all_computed, ANOTHER_FAILED);

        for loss in &mut losses {
            *loss *= part;
        }
        let usable = norm.is_finite() && losses.iter().all(|loss| loss.is_finite());
        let loss = ranks.losses(losses, count)?.iter().sum();
        Ok((loss, if ranks.all(usable)? { norm } else { f32::NAN }))
    }

    pub(super) fn start<B: AutodiffBackend>(&mut self, gpt: &Gpt<B>) -> anyhow::Result<()> {
        let mut start = Start { periodic: self, learning: learning(gpt), outcome: Ok(()) };
        gpt.visit(&mut start);
        start.outcome
    }

    fn start_next(&mut self, weights: Vec<f32>) -> anyhow::Result<()> {
        let momentum = self.restored.pop_front().unwrap_or_else(|| vec![0.0; weights.len()]);
        let restored = Outer::restore(self.settings, weights, momentum);
        self.buffers.push(restored.context("taking over the momentum of outer steps")?);
        Ok(())
    }

    pub(super) fn outer_step<B: AutodiffBackend>(
        &mut self,
        gpt: Gpt<B>,
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<()>) {
        let learning = learning(&gpt);
        let mut average = Average { periodic: self, ranks, learning, outcome: Ok(()) };
        let gpt = gpt.map(&mut average);
        let outcome = average.outcome;
        (gpt, outcome.and_then(|()| self.end_outer_step()))
    }

    fn step_next(&mut self, engine: &mut dyn Engine, weights: &mut [f32]) -> anyhow::Result<()> {
        let known = self.buffers.len();
        let buffer = self.buffers.get_mut(self.next);
        let buffer = buffer.with_context(|| format!("parameter {} of {known} was never begun", self.next))?;
        let average = buffer.average(engine, weights)?;
        buffer.step(&average, weights)?;
        self.next = (self.next + 1) % known;
        Ok(())
    }

    fn end_outer_step(&self) -> anyhow::Result<()> {
        let (next, all) = (self.next, self.buffers.len());
        ensure!(next == 0, "an outer step ended after {next} of {all} parameters");
        Ok(())
    }

    pub(super) fn save_state(
        &self,
        run: &Path,
        at: SavedAt<'_>,
        moments: Pairs<'_>,
        ranks: &Ranks,
    ) -> anyhow::Result<()> {
        if !ranks.leads() {
            return ranks.save_state(run, at, Kept::Moments, moments);
        }
        let momentum: Vec<&[f32]> = self.buffers.iter().map(|buffer| buffer.state().1).collect();
        let lengths = momentum.iter().map(|numbers| [numbers.len(), 0]).collect();
        let fetch = Box::new(|n: usize| Ok([momentum[n].to_vec(), Vec::new()]));
        ranks.save_state(run, at, Kept::OuterMomentum, Pairs { lengths, fetch })
    }

    pub(super) fn restore_state(
        &mut self,
        run: &Path,
        at: SavedAt<'_>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<Restored> {
        let kept = if ranks.leads() { Kept::OuterMomentum } else { Kept::Moments };
        let saved = match ranks.load_state(run, at, kept)? {
            Ok(saved) => saved,
            Err(reason) => {
                let lost = "outer steps begin without momentum, and every rank with the moments of rank 0";
                return Ok(Restored::Dropped(format!("{lost}: {reason}")));
            }
        };

        let count = ranks.broadcast(&(saved.len() as u64).to_le_bytes())?;
        let count = u64::from_le_bytes(count.try_into().map_err(|_| anyhow!("rank 0 announces no number"))?);
        let mut momentum = Vec::new();

        for n in 0..count as usize {
            let own = saved.get(n).filter(|_| ranks.leads()).map_or(&[] as &[f32], |[momentum, _]| momentum);
            let of_rank_0 = ranks.broadcast(bytemuck::cast_slice(own))?;
            momentum.push(bytemuck::pod_collect_to_vec(&of_rank_0));
        }
        self.restored = momentum.into();
        Ok(if ranks.leads() { Restored::All } else { Restored::Moments(saved) })
    }
}

/// An average of equal weights would round frozen ones.
fn learning<B: Backend>(gpt: &Gpt<B>) -> HashSet<ParamId> {
    gpt.learning().into_iter().map(|(id, _)| id).collect()
}

struct Start<'a> {
    periodic: &'a mut Periodic,
    learning: HashSet<ParamId>,
    outcome: anyhow::Result<()>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Start<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.outcome.is_ok() && self.learning.contains(&param.id) {
            let weights = numbers(param.val().inner());
            self.outcome = weights.and_then(|weights| self.periodic.start_next(weights));
        }
    }
}

struct Average<'a> {
    periodic: &'a mut Periodic,
    ranks: &'a mut Ranks,
    learning: HashSet<ParamId>,
    outcome: anyhow::Result<()>,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Average<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, weight, mapper) = param.consume();
        if self.outcome.is_err() || !self.learning.contains(&id) {
            return Param::from_mapped_value(id, weight, mapper);
        }

        let (shape, device) = (weight.shape(), weight.device());
        let stepped = numbers(weight.clone().inner()).and_then(|mut weights| {
            let stepped = self.ranks.call(|engine| self.periodic.step_next(engine, &mut weights));
            stepped.context("averaging weights over the ranks")?;
            Ok(weights)
        });

        let weight = match stepped {
            Ok(weights) => {
                drop(weight);
                let inner = Tensor::from_data(TensorData::new(weights, shape), &device);
                Tensor::from_inner(inner).require_grad()
            }
            Err(error) => {
                self.outcome = Err(error);
                weight
            }
        };
        Param::from_mapped_value(id, weight, mapper)
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};
    use models::ParameterGroup;
    use runs::config::{Config, ExchangeKind, RanksSection};

    use super::*;
    use crate::ranks::tests::on_each;

    type B = Autodiff<Flex>;

    fn model(seed: u64) -> Gpt<B> {
        let text = r#"{"model": {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 264},
                       "tokenizer": {"kind": "bytes"}}"#;
        let config = Config::from_text(text, "a tiny run", &[]).expect("valid");
        Gpt::new(&config.model, seed, &FlexDevice).expect("valid")
    }

    #[derive(Default)]
    struct All(Vec<f32>);

    impl ModuleVisitor<B> for All {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0.extend(numbers(param.val().inner()).expect("on the CPU"));
        }
    }

    fn all(gpt: &Gpt<B>) -> Vec<f32> {
        let mut all = All::default();
        gpt.visit(&mut all);
        all.0
    }

    #[test]
    fn a_plain_outer_step_leads_all_ranks_to_the_average_to_the_bit() {
        let settings = RanksSection {
            exchange: ExchangeKind::Rarely,
            outer_rate: 1.0,
            outer_momentum: 0.0,
            ..RanksSection::default()
        };
        let ends = on_each(2, |ranks| {
            let mut periodic = Periodic::new(&settings);
            periodic.start(&model(1)).expect("begun");
            let (gpt, stepped) = periodic.outer_step(model(2 + ranks.rank() as u64), ranks);
            stepped.expect("no fault");
            all(&gpt)
        });
        let average: Vec<f32> =
            all(&model(2)).iter().zip(all(&model(3))).map(|(a, b)| (a + b) / 2.0).collect();
        assert!(ends.iter().all(|end| *end == average));
    }

    #[test]
    fn an_outer_step_leaves_frozen_weights_as_they_were() {
        let settings = RanksSection { exchange: ExchangeKind::Rarely, ..RanksSection::default() };
        let frozen = |seed| model(seed).with_frozen(&[ParameterGroup::Embedding, ParameterGroup::Blocks]);
        let ends = on_each(3, |ranks| {
            let mut periodic = Periodic::new(&settings);
            periodic.start(&frozen(1)).expect("begun");
            let (gpt, stepped) = periodic.outer_step(frozen(1), ranks);
            stepped.expect("no fault");
            (periodic.buffers.len(), all(&gpt))
        });
        assert!(ends.iter().all(|end| *end == (2, all(&model(1)))), "two vectors of the last norm learn");
    }

    #[test]
    fn an_outer_step_without_a_beginning_is_an_error_and_no_panic() {
        let settings = RanksSection { exchange: ExchangeKind::Rarely, ..RanksSection::default() };
        let stepped = on_each(2, |ranks| {
            let (_, stepped) = Periodic::new(&settings).outer_step(model(1), ranks);
            stepped.map_err(|error| format!("{error:#}")).expect_err("never begun")
        });
        assert!(stepped.iter().all(|error| error.contains("never begun")), "{stepped:?}");
    }
}
