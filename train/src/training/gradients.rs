//! A step's gradients: the sum over all micro-batches, as for one large batch.
//!
//! Gradients are added pairwise by micro-batch number ([`exchange::Pairwise`]), so any number of processes ends with
//! the same bits.
//!
//! One thread of a process walks a tape at a time (`ranks_have_the_bits_of_one_process_however_many_they_are`).

mod overlapped;
mod sharded_norm;
mod sum;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::ensure;
use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::tensor::Tensor;
use exchange::{Share, groups};
use models::dropout::DropoutKey;
use models::{Batch, Chunks, Gpt, Lean, PassOptions, recompute, rows};

use super::Learner;
use crate::data::MicroBatch;
use crate::optimizer;
pub(super) use overlapped::{OverlappedReduce, ReduceOrder, bucket_ends};
pub(super) use sum::Sum;

/// Lock on building and walking a tape. Burn's sweep after a walk removes nodes that other threads are adding;
/// gradients are then missing without an error (Burn's issue 5573).
static TAPE: Mutex<()> = Mutex::new(());

pub(super) struct TapeLock(Option<MutexGuard<'static, ()>>);

impl TapeLock {
    pub(super) fn hold() -> Self {
        Self(Some(TAPE.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// `work` may wait for another thread's tape.
    pub(super) fn without(&mut self, work: impl FnOnce()) {
        self.0 = None;
        work();
        *self = Self::hold();
    }
}

pub(super) const ANOTHER_FAILED: &str =
    "another rank could not compute its micro-batches; its own messages say why";

impl<I: Managed> Learner<Autodiff<I>> {
    /// Micro-batches from number `first` on. Losses are divided by `divisor` targets.
    pub(super) fn own_losses(
        &self,
        step: u64,
        (first, own): (u64, &[MicroBatch]),
        divisor: f64,
        sum: &mut Sum<'_, I>,
    ) -> Vec<Tensor<I, 1>> {
        let mut losses = Vec::new();
        let own_groups = groups([first, sum.share.range().start], own.len(), self.pass.together);
        // For ranks with more groups.
        let idle = vec![0..0; self.idle_passes(own_groups.len(), sum)];
        for places in idle.into_iter().chain(own_groups) {
            let begin = |place: usize| {
                let (batch, options, named) =
                    self.prepare((step, first + place as u64), &own[place], divisor);
                ((batch, options), named)
            };
            let (group, named) = places.map(begin).unzip();
            sum.begin_group(named);
            losses.extend(self.forward_backward(group, sum));
            sum.end_group();
        }
        losses
    }

    /// Micro-batch number `micro_batch` of `step` on the device, its options, and the embedding rows that it names.
    pub(super) fn prepare(
        &self,
        (step, micro_batch): (u64, u64),
        data: &MicroBatch,
        divisor: f64,
    ) -> (Batch<I>, PassOptions, Option<Arc<[u32]>>) {
        let options = PassOptions {
            dropout: Some(DropoutKey { seed: self.pass.seed, step, micro_batch }),
            z_loss: self.pass.z_loss,
            divisor: Some(divisor),
            kept_inputs: self.pass.kept_inputs,
        };
        let batch = data.upload::<I>(self.gpt.rows_on_demand(), &self.gpt.wte.lazy_device());
        let named = batch.inputs.rows.as_ref().map(|rows| Arc::clone(&rows.ids));
        (batch, options, named)
    }

    fn idle_passes(&self, own: usize, sum: &Sum<'_, I>) -> usize {
        if sum.window().is_none() {
            return 0;
        }
        let of_rank = |rank| Share { rank, ..sum.share }.groups(self.pass.together).len();
        (0..sum.share.world).map(of_rank).max().unwrap_or(own) - own
    }

    /// Returns each micro-batch's share of the loss.
    fn forward_backward(
        &self,
        group: Vec<(Batch<I>, PassOptions)>,
        sum: &mut Sum<'_, I>,
    ) -> Vec<Tensor<I, 1>> {
        let kernels = Lean(Chunks::default());
        if let Some(every) = self.pass.recompute {
            return self.sweep(group, kernels, every, sum);
        }
        let mut tape = TapeLock::hold();

        let whole = |(place, (batch, options)): (usize, (Batch<I>, PassOptions))| {
            let batch = Batch::from_inner(batch);
            let named = batch.inputs.rows.clone();
            let loss = self.gpt.loss(batch, &options, &kernels);
            let value = loss.clone().inner();
            let arrived = rows::gradients(loss.backward(), &self.gpt, self.gpt.wte.id, named.as_ref());
            tape.without(|| sum.add(&self.gpt, place, arrived));
            value
        };
        group.into_iter().enumerate().map(whole).collect()
    }

    fn sweep(
        &self,
        group: Vec<(Batch<I>, PassOptions)>,
        kernels: Lean,
        every: usize,
        sum: &mut Sum<'_, I>,
    ) -> Vec<Tensor<I, 1>> {
        let window = sum.window();
        if let Some(window) = &window {
            window.begin_pass();
        }
        let (segments, mut entered) = (self.gpt.config().n_layer.div_ceil(every), 0);
        let held = RefCell::new((TapeLock::hold(), sum));
        let before = |blocks: Range<usize>| {
            let Some(window) = &window else { return };
            let (segment, is_back) = (blocks.start / every, entered >= segments);
            entered += 1;
            let (tape, sum) = &mut *held.borrow_mut();
            tape.without(|| {
                if is_back && sum.has_no_micro_batch() {
                    sum.submit_down_to(segment, &self.gpt);
                }
                window.enter(segment);
            });
        };
        let add = |gpt: Gpt<Autodiff<I>>, place, segment| {
            let (tape, sum) = &mut *held.borrow_mut();
            tape.without(|| sum.add(&gpt, place, segment));
            gpt
        };
        let swept = recompute::sweep_together(self.gpt.clone(), group, kernels, every, before, add);
        let (_, sum) = held.into_inner();
        sum.keeps(swept.kept_bytes);
        swept.losses
    }

    /// Loss and norm of this rank alone. Waits once for the device.
    pub(super) fn own_numbers(
        &self,
        losses: Vec<Tensor<I, 1>>,
        sum: &mut Sum<'_, I>,
    ) -> anyhow::Result<(f32, f32)> {
        // Gradients of a parameter with lost state are in no sum.
        ensure!(sum.failure.is_none(), "gradients could not be added up");
        let count = losses.len();
        let mut numbers = losses;
        numbers.extend(sum.norms.take_global(&self.gpt));
        let numbers = read(numbers)?;
        let norm = sum.norm(numbers.get(count).copied())?;
        Ok((numbers[..count].iter().sum(), norm))
    }
}

pub(super) fn read<I: Managed>(numbers: Vec<Tensor<I, 1>>) -> anyhow::Result<Vec<f32>> {
    optimizer::numbers(Tensor::cat(numbers, 0))
}
