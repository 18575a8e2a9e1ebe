//! A step's gradients: those of all micro-batches together, as those of one large batch.
//!
//! Micro-batches are numbered, and their gradients added pairwise by that number: 2k and 2k + 1 first, then neighbouring pairs, as
//! a binary counter carries. So one process that computes them all and several that share them end with the same bits.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{anyhow, ensure};
use burn::backend::Autodiff;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Shape, Tensor, TensorData, backend::Backend};
use burn_train::{TrainOutput, TrainStep};
use exchange::Share;
use models::dropout::DropoutKey;
use models::{Batch, Chunks, Gpt, Lean, PassOptions, recompute, rows};

use super::Learner;
use crate::data::StepData;
use crate::optimizer::{HostPart, Passes, SquaredNorms};
use crate::progress::Report;
use crate::ranks::Ranks;

/// Lock on building a tape and walking it back. After each walk Burn sweeps the tapes of all threads, and takes nodes
/// that another thread is just adding for left-overs: its gradients are then missing, without an error.
static TAPE: Mutex<()> = Mutex::new(());

impl<I: Backend> TrainStep for Learner<Autodiff<I>> {
    type Input = StepData;
    type Output = Report;

    /// The step of Burn's own training loop. Our loop calls `gradients` itself, with gradients on the host and other ranks.
    fn step(&self, data: StepData) -> TrainOutput<Report> {
        let (grads, item) = self.gradients(&data, None, Passes::none(), &mut Ranks::alone());
        TrainOutput { grads, item }
    }
}

impl<I: Backend> Learner<Autodiff<I>> {
    /// Gradients of all micro-batches of all ranks. Those of parameters that are stepped on the host are there when this
    /// returns, the others are returned.
    pub(super) fn gradients(
        &self,
        data: &StepData,
        host: Option<&mut HostPart>,
        passes: Passes<I>,
        ranks: &mut Ranks,
    ) -> (GradientsParams, Report) {
        let gradients_leave = host.is_some() || !ranks.is_alone();
        let mut report = Report { step: data.step, gradients_leave, ..Report::default() };
        let share = ranks.share(data.micro_batches.len());
        let mut sum = Sum::new(share, host, passes);
        let losses = self.own_losses(data, &mut sum);
        let numbers = if ranks.is_alone() {
            self.numbers_alone(losses, &mut sum)
        } else {
            self.numbers_together(data.step, losses, &mut sum, ranks)
        };
        match numbers {
            Ok((loss, norm)) => (report.loss, report.gnorm) = (loss, norm),
            Err(error) => report.failure = Some(format!("{error:#}")),
        }
        // Of two failures the first is told: the second follows from it.
        report.failure = sum.failure.or(report.failure);
        (sum.grads, report)
    }

    /// Each loss of this rank's micro-batches, a share of the whole batch's. Their gradients are added to `sum`.
    fn own_losses(&self, data: &StepData, sum: &mut Sum<'_, I>) -> Vec<Tensor<I, 1>> {
        let _alone = TAPE.lock().unwrap_or_else(PoisonError::into_inner);
        let divisor = data.counted();
        let device = self.gpt.wte.lazy_device();
        let mut losses = Vec::new();
        for n in sum.share.range() {
            let key = DropoutKey { seed: self.pass.seed, step: data.step, micro_batch: n };
            let options = PassOptions {
                dropout: Some(key),
                z_loss: self.pass.z_loss,
                divisor: Some(divisor),
                inputs_in_tiles: self.pass.inputs_in_tiles,
            };
            let rows = self.gpt.rows_on_demand();
            let batch = data.micro_batches[n as usize].upload::<I>(rows, &device);
            sum.named = batch.inputs.rows.as_ref().map(|rows| Arc::clone(&rows.ids));
            losses.push(self.forward_backward(batch, &options, sum));
            sum.added += 1;
        }
        losses
    }

    /// Adds a micro-batch's gradients to `sum`; returns its share of the loss.
    fn forward_backward(&self, batch: Batch<I>, options: &PassOptions, sum: &mut Sum<'_, I>) -> Tensor<I, 1> {
        let kernels = Lean(Chunks::default());
        if let Some(every) = self.pass.recompute {
            let (_, loss) =
                recompute::sweep(self.gpt.clone(), batch, options, kernels, every, |gpt, segment| {
                    sum.add(&gpt, segment);
                    gpt
                });
            return loss;
        }
        let batch = Batch::from_inner(batch);
        let named = batch.inputs.rows.clone();
        let loss = self.gpt.loss(batch, options, &kernels);
        let value = loss.clone().inner();
        sum.add(&self.gpt, rows::gradients(loss.backward(), &self.gpt, self.gpt.wte.id, named.as_ref()));
        value
    }

    /// Loss and norm, for which the device is waited for once.
    fn numbers_alone(&self, losses: Vec<Tensor<I, 1>>, sum: &mut Sum<'_, I>) -> anyhow::Result<(f32, f32)> {
        let count = losses.len();
        let mut numbers = losses;
        numbers.extend(sum.norms.take_global(&self.gpt));
        let numbers = read(numbers)?;
        Ok((numbers[..count].iter().sum(), sum.norm(numbers.get(count).copied())?))
    }

    /// The same, of all ranks. A rank that could not compute its share keeps the others from waiting for it.
    fn numbers_together(
        &self,
        step: u64,
        losses: Vec<Tensor<I, 1>>,
        sum: &mut Sum<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(f32, f32)> {
        // A rank without a micro-batch has not waited for its updates yet.
        sum.settle();
        ranks.begin_step(step);
        let own = if losses.is_empty() { Ok(Vec::new()) } else { read(losses) };
        sum.gather();
        let all_computed = ranks.all(own.is_ok() && sum.failure.is_none())?;
        let losses = own?;
        ensure!(all_computed, "another rank could not compute its micro-batches; its own messages say why");
        let losses = ranks.losses(losses, sum.share.count as usize)?;
        sum.meet(&self.gpt, ranks)?;
        let norm = sum.norms.take_global(&self.gpt).map(|norm| read(vec![norm])).transpose()?;
        // One verdict and one factor for all, however each device adds up squares.
        let norm = ranks.number(sum.norm(norm.map(|norm| norm[0]))?)?;
        Ok((losses.iter().sum(), norm))
    }
}

fn read<I: Backend>(numbers: Vec<Tensor<I, 1>>) -> anyhow::Result<Vec<f32>> {
    let numbers = Tensor::cat(numbers, 0).try_into_data().map_err(|error| anyhow!("{error}"))?;
    Ok(numbers.iter::<f32>().collect())
}

/// The gradients of all micro-batches together, as they arrive: each parameter once in every micro-batch.
struct Sum<'a, I: Backend> {
    share: Share,
    /// Micro-batches whose gradients have all arrived.
    added: u64,
    /// Sums of neighbouring micro-batches, the earlier ones first.
    parts: Vec<GradientsParams>,
    /// Complete gradients of parameters that are stepped on the device, and their norms.
    grads: GradientsParams,
    norms: SquaredNorms<I>,
    host: Option<&'a mut HostPart>,
    /// Rows of the embedding that the present micro-batch names, where it comes by rows.
    named: Option<Arc<[u32]>>,
    /// The first gradient that could not be taken to the host.
    failure: Option<String>,
}

impl<'a, I: Backend> Sum<'a, I> {
    fn new(share: Share, host: Option<&'a mut HostPart>, passes: Passes<I>) -> Self {
        Self {
            share,
            added: 0,
            parts: Vec::new(),
            grads: GradientsParams::new(),
            norms: SquaredNorms::new(passes),
            host,
            named: None,
            failure: None,
        }
    }

    fn add(&mut self, gpt: &Gpt<Autodiff<I>>, mut arrived: GradientsParams) {
        // Every weight has been used by now.
        self.settle();
        gpt.visit(&mut Arrival { arrived: &mut arrived, sum: self });
    }

    /// Waits for the last update. A failure in making a weight is told before anything that follows from it.
    fn settle(&mut self) {
        if let Some(host) = &mut self.host
            && let Err(error) = host.settle()
        {
            self.failure.get_or_insert(format!("{error:#}"));
        }
    }

    /// Waits until what was read of gradients is taken in on the host.
    fn gather(&mut self) {
        if let Some(host) = &mut self.host
            && let Err(error) = host.gather()
        {
            self.failure.get_or_insert(error.to_string());
        }
    }

    /// Whether no other micro-batch's gradients are added to those that arrive now.
    fn is_last(&self) -> bool {
        let range = self.share.range();
        self.share.world == 1 && self.added + 1 == range.end - range.start
    }

    /// Adds one parameter's gradient of the present micro-batch to what neighbours left.
    fn add_one<const D: usize>(&mut self, id: ParamId, arrived: Tensor<I, D>) {
        let [before, after] = [self.added, self.added + 1].map(|added| self.share.held(added));
        let is_last = self.is_last();
        // What is left over at the end is added from the right.
        let place = if is_last { 0 } else { after - 1 };
        let left = (place..before).rev().map(|part| self.parts[part].remove::<I, D>(id));
        let sum = left.fold(arrived, |sum, left| left.expect("each micro-batch has every gradient") + sum);
        if is_last {
            return self.complete(id, sum);
        }
        if self.parts.len() == place {
            self.parts.push(GradientsParams::new());
        }
        self.parts[place].register(id, sum);
    }

    fn complete<const D: usize>(&mut self, id: ParamId, sum: Tensor<I, D>) {
        let sum = self.norms.add(id, sum);
        self.grads.register(id, sum);
    }

    /// Adds up what all ranks have.
    fn meet(&mut self, gpt: &Gpt<Autodiff<I>>, ranks: &mut Ranks) -> anyhow::Result<()> {
        let mut meeting = Meeting { sum: self, ranks, outcome: Ok(()) };
        gpt.visit(&mut meeting);
        meeting.outcome
    }

    /// The norm of all gradients, those on the host included, as one vector.
    fn norm(&mut self, on_device: Option<f32>) -> anyhow::Result<f32> {
        let on_device = on_device.unwrap_or_default();
        match &mut self.host {
            None => Ok(on_device),
            Some(host) => Ok((f64::from(on_device) * f64::from(on_device) + host.squares()?).sqrt() as f32),
        }
    }
}

struct Arrival<'a, 's, I: Backend> {
    arrived: &'a mut GradientsParams,
    sum: &'a mut Sum<'s, I>,
}

impl<I: Backend> ModuleVisitor<Autodiff<I>> for Arrival<'_, '_, I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Autodiff<I>, D>>) {
        let Some(arrived) = self.arrived.remove::<I, D>(param.id) else { return };
        let is_last = self.sum.is_last();
        if let Some(host) = self.sum.host.as_mut().filter(|host| host.has(param.id)) {
            if self.sum.failure.is_none() {
                let taken = match &self.sum.named {
                    Some(rows) if host.has_rows_of(param.id) => host.arrive_rows(rows, arrived),
                    _ => host.arrive(param.id, arrived, param.val().dtype(), is_last),
                };
                self.sum.failure = taken.err().map(|error| error.to_string());
            }
            return;
        }
        self.sum.add_one(param.id, arrived);
    }
}

/// Gradients of all ranks, parameter by parameter, in the model's order.
struct Meeting<'m, 's, I: Backend> {
    sum: &'m mut Sum<'s, I>,
    ranks: &'m mut Ranks,
    outcome: anyhow::Result<()>,
}

impl<I: Backend> Meeting<'_, '_, I> {
    fn meet<const D: usize>(&mut self, id: ParamId, shape: Shape, device: &I::Device) -> anyhow::Result<()> {
        let share = self.sum.share;
        if let Some(host) = self.sum.host.as_mut().filter(|host| host.has(id)) {
            return host.meet(id, |len, own| self.ranks.sum(share, len, own));
        }
        let range = share.range();
        let parts = self.sum.parts[..share.held(range.end - range.start)].iter_mut();
        let own = parts.map(|part| {
            let part = part.remove::<I, D>(id).expect("each micro-batch has every gradient");
            let part = part.try_into_data().map_err(|error| anyhow!("{error}"))?;
            Ok(part.iter::<f32>().collect())
        });
        let own = own.collect::<anyhow::Result<Vec<Vec<f32>>>>()?;
        let sum = self.ranks.sum(share, shape.num_elements(), own)?;
        self.sum.complete(id, Tensor::<I, D>::from_data(TensorData::new(sum, shape), device));
        Ok(())
    }
}

impl<I: Backend> ModuleVisitor<Autodiff<I>> for Meeting<'_, '_, I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Autodiff<I>, D>>) {
        if self.outcome.is_ok() {
            self.outcome = self.meet::<D>(param.id, param.lazy_shape(), &param.lazy_device());
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};
    use runs::config::Config;

    use super::*;
    use crate::data::MicroBatch;
    use crate::optimizer::tests::{norm_of, values_of};
    use crate::ranks::tests::on_each;

    fn data(micro_batches: i32) -> StepData {
        let micro_batch = |first: i32| MicroBatch {
            rows: 1,
            inputs: vec![first, 1, 2, 3],
            targets: vec![1, 2, 3, first],
            followers: Some(vec![2, 264, first, 264]),
            // Unequal counts of targets: one in two here, and all of them there.
            mask: (first % 2 == 0).then(|| vec![1.0, 0.0, 1.0, 0.0]),
        };
        StepData { step: 1, micro_batches: (5..5 + micro_batches).map(micro_batch).collect() }
    }

    fn learner(recompute: &str) -> Learner<Autodiff<Flex>> {
        let text = format!(
            r#"{{"model": {{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 264,
                           "longest_match": true}},
                "tokenizer": {{"kind": "bytes"}}, "train": {{"recompute": {recompute}}}}}"#
        );
        let config = Config::from_text(&text, "a tiny run", &[]).expect("valid");
        let gpt = Gpt::<Autodiff<Flex>>::new(&config.model, 3, &FlexDevice).expect("valid");
        Learner::new(gpt, &config)
    }

    #[test]
    fn a_steps_norm_is_that_of_the_gradients_it_returns() {
        for recompute in ["null", "1"] {
            let learner = learner(recompute);
            let TrainOutput { grads, item } = TrainStep::step(&learner, data(3));
            let all_at_once = norm_of(&learner.gpt, &grads);
            assert_eq!(item.gnorm.to_bits(), all_at_once.to_bits(), "recompute {recompute}");
            assert!(item.gnorm > 0.0);
        }
    }

    #[test]
    fn ranks_have_the_bits_of_one_process_however_many_they_are() {
        for (count, recompute) in [(1, "null"), (4, "1"), (7, "null"), (8, "1")] {
            let one = learner(recompute);
            let TrainOutput { grads, item } = TrainStep::step(&one, data(count));
            let expected = (item.loss.to_bits(), item.gnorm.to_bits(), values_of(&one.gpt, &grads));
            for world in [2, 3, 4] {
                let each = on_each(world, |ranks| {
                    let learner = learner(recompute);
                    let (grads, report) = learner.gradients(&data(count), None, Passes::none(), ranks);
                    assert_eq!(report.failure, None);
                    (report.loss.to_bits(), report.gnorm.to_bits(), values_of(&learner.gpt, &grads))
                });
                assert!(each.iter().all(|rank| *rank == expected), "{count} over {world}: {each:?}");
            }
        }
    }
}
