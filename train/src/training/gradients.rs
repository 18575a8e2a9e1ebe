//! A step's gradients: those of all micro-batches together, as those of one large batch.
//!
//! Micro-batches are numbered, and their gradients added pairwise by that number: 2k and 2k + 1 first, then neighbouring pairs, as
//! a binary counter carries. So one process that computes them all and several that share them end with the same bits.

mod departing;
mod divided;
mod sum;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::ensure;
use burn::backend::Autodiff;
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, backend::Backend};
use burn_train::{TrainOutput, TrainStep};
use exchange::Share;
use models::dropout::DropoutKey;
use models::{Batch, Chunks, Lean, PassOptions, recompute, rows};

use super::Learner;
use crate::data::{MicroBatch, StepData, counted};
use crate::optimizer::{self, HostPart, Owners, Passes};
use crate::progress::Report;
use crate::ranks::Ranks;
use departing::{Departing, Turns};
use sum::Sum;

/// Lock on building a tape and walking it back. After each walk Burn sweeps the tapes of all threads, and takes nodes
/// that another thread is just adding for left-overs: its gradients are then missing, without an error.
static TAPE: Mutex<()> = Mutex::new(());

/// The lock while it is held.
struct TapeLock(Option<MutexGuard<'static, ()>>);

impl TapeLock {
    fn hold() -> Self {
        Self(Some(TAPE.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Runs `work` between two tapes without the lock: it may wait for another thread's.
    fn without(&mut self, work: impl FnOnce()) {
        self.0 = None;
        work();
        *self = Self::hold();
    }
}

const ANOTHER_FAILED: &str = "another rank could not compute its micro-batches; its own messages say why";

impl<I: Backend> TrainStep for Learner<Autodiff<I>> {
    type Input = StepData;
    type Output = Report;

    /// The step of Burn's own training loop. Our loop calls `gradients` itself, with gradients on the host and other ranks.
    fn step(&self, data: StepData) -> TrainOutput<Report> {
        let owners = Owners::default();
        let (grads, item) = self.gradients(&data, None, &owners, Passes::none(), &mut Ranks::alone());
        TrainOutput { grads, item }
    }
}

impl<I: Backend> Learner<Autodiff<I>> {
    /// Gradients of all micro-batches of all ranks, as far as this rank steps their parameters. Those of parameters that are stepped on
    /// the host are there when this returns, the others are returned.
    pub(super) fn gradients(
        &self,
        data: &StepData,
        host: Option<&mut HostPart>,
        owners: &Owners,
        passes: Passes<I>,
        ranks: &mut Ranks,
    ) -> (GradientsParams, Report) {
        let summed = !ranks.is_alone() && !ranks.step_apart();
        let gradients_leave = host.is_some() || summed;
        let mut report = Report { step: data.step, gradients_leave, ..Report::default() };
        let share = ranks.share(data.micro_batches.len());
        let (first, end) = (share.range().start, share.range().end);
        let own = &data.micro_batches[first as usize..end as usize];
        // Ranks that step apart divide by their own targets.
        let (share, divisor) = if ranks.step_apart() {
            (Share { count: own.len() as u64, world: 1, rank: 0 }, counted(own))
        } else {
            (share, data.counted())
        };
        let mut sum = Sum::new(share, host, owners, passes);
        if summed && let Err(error) = self.begin_sums(data.step, &mut sum, ranks) {
            report.failure = Some(format!("{error:#}"));
            return (sum.grads, report);
        }
        let losses = self.own_losses(data.step, (first, own), divisor, &mut sum);
        let numbers = if ranks.step_apart() {
            let part = divisor / data.counted();
            self.numbers_apart(losses, part as f32, data.micro_batches.len(), &mut sum, ranks)
        } else if summed {
            self.numbers_together(losses, &mut sum, ranks)
        } else {
            self.numbers_alone(losses, &mut sum)
        };
        match numbers {
            Ok((loss, norm)) => (report.loss, report.gnorm) = (loss, norm),
            Err(error) => report.failure = Some(format!("{error:#}")),
        }
        report.gradients_held = (!ranks.is_alone()).then_some(sum.held.peak);
        // Of two failures the first is told: the second follows from it.
        report.failure = sum.failure.or(report.failure);
        (sum.grads, report)
    }

    /// Begins the exchange of a step, whose gradients leave as they come.
    fn begin_sums(&self, step: u64, sum: &mut Sum<'_, I>, ranks: &mut Ranks) -> anyhow::Result<()> {
        ranks.begin_step(step);
        let turns = Turns::of_pass(&self.gpt, self.pass.recompute);
        sum.departing = Some(Departing::begin(ranks.begin_sums()?, turns));
        Ok(())
    }

    /// Each loss of this rank's micro-batches, which are numbered from the first's on, by `divisor` targets. Their gradients are
    /// added to `sum`.
    fn own_losses(
        &self,
        step: u64,
        (first, own): (u64, &[MicroBatch]),
        divisor: f64,
        sum: &mut Sum<'_, I>,
    ) -> Vec<Tensor<I, 1>> {
        let device = self.gpt.wte.lazy_device();
        let mut losses = Vec::new();
        for (n, micro_batch) in (first..).zip(own) {
            let key = DropoutKey { seed: self.pass.seed, step, micro_batch: n };
            let options = PassOptions {
                dropout: Some(key),
                z_loss: self.pass.z_loss,
                divisor: Some(divisor),
                inputs_in_tiles: self.pass.inputs_in_tiles,
            };
            let batch = micro_batch.upload::<I>(self.gpt.rows_on_demand(), &device);
            sum.named = batch.inputs.rows.as_ref().map(|rows| Arc::clone(&rows.ids));
            losses.push(self.forward_backward(batch, &options, sum));
            sum.added += 1;
        }
        losses
    }

    /// Adds a micro-batch's gradients to `sum`; returns its share of the loss.
    fn forward_backward(&self, batch: Batch<I>, options: &PassOptions, sum: &mut Sum<'_, I>) -> Tensor<I, 1> {
        let kernels = Lean(Chunks::default());
        let mut tape = TapeLock::hold();
        if let Some(every) = self.pass.recompute {
            let (_, loss) =
                recompute::sweep(self.gpt.clone(), batch, options, kernels, every, |gpt, segment| {
                    tape.without(|| sum.add(&gpt, segment));
                    gpt
                });
            return loss;
        }
        let batch = Batch::from_inner(batch);
        let named = batch.inputs.rows.clone();
        let loss = self.gpt.loss(batch, options, &kernels);
        let value = loss.clone().inner();
        let arrived = rows::gradients(loss.backward(), &self.gpt, self.gpt.wte.id, named.as_ref());
        tape.without(|| sum.add(&self.gpt, arrived));
        value
    }

    /// Loss and norm, for which the device is waited for once.
    fn numbers_alone(&self, losses: Vec<Tensor<I, 1>>, sum: &mut Sum<'_, I>) -> anyhow::Result<(f32, f32)> {
        let (losses, norm) = self.own_numbers(losses, sum)?;
        Ok((losses.iter().sum(), norm))
    }

    fn own_numbers(
        &self,
        losses: Vec<Tensor<I, 1>>,
        sum: &mut Sum<'_, I>,
    ) -> anyhow::Result<(Vec<f32>, f32)> {
        // Those of a parameter whose state is lost have come to no sum.
        ensure!(sum.failure.is_none(), "gradients could not be added up");
        let count = losses.len();
        let mut numbers = losses;
        numbers.extend(sum.norms.take_global(&self.gpt));
        let mut numbers = read(numbers)?;
        let norm = sum.norm(numbers.get(count).copied())?;
        numbers.truncate(count);
        Ok((numbers, norm))
    }

    /// The loss of all ranks' micro-batches, each at its rank's own weights, of which this rank has `part`, and the norm of this rank's
    /// gradients. Where any rank has numbers that are not finite, every rank's norm is NaN.
    fn numbers_apart(
        &self,
        losses: Vec<Tensor<I, 1>>,
        part: f32,
        count: usize,
        sum: &mut Sum<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(f32, f32)> {
        let own = self.own_numbers(losses, sum);
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

    /// The same, of all ranks. A rank that could not compute its share has taken part in all sums nevertheless, so that no other waits for
    /// it.
    fn numbers_together(
        &self,
        losses: Vec<Tensor<I, 1>>,
        sum: &mut Sum<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(f32, f32)> {
        // A rank without a micro-batch has not waited for its updates yet.
        sum.settle();
        sum.depart_all(&self.gpt);
        sum.gather();
        if let Some(departing) = sum.departing.take() {
            ranks.end_sums(departing.sums)?;
        }
        let own = if losses.is_empty() { Ok(Vec::new()) } else { read(losses) };
        let all_computed = ranks.all(own.is_ok() && sum.failure.is_none())?;
        let losses = own?;
        ensure!(all_computed, ANOTHER_FAILED);
        let losses = ranks.losses(losses, sum.share.count as usize)?;
        let norm = if sum.owners.are_divided() {
            sum.divided_norm(&self.gpt, ranks)?
        } else {
            let norm = sum.norms.take_global(&self.gpt).map(|norm| read(vec![norm])).transpose()?;
            sum.norm(norm.map(|norm| norm[0]))?
        };
        // One verdict and one factor for all, however each device adds up squares.
        let norm = ranks.number(norm)?;
        ranks.commit_step()?;
        Ok((losses.iter().sum(), norm))
    }
}

fn read<I: Backend>(numbers: Vec<Tensor<I, 1>>) -> anyhow::Result<Vec<f32>> {
    optimizer::numbers(Tensor::cat(numbers, 0))
}
