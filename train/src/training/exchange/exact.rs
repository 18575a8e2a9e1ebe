//! Sums of gradients in f32, to the bits of one process (`ranks_end_with_the_bits_of_one_process`), made during the
//! backward pass.
//!
//! With owners, a sum goes to its owner only (`a_rank_keeps_summed_gradients_of_what_it_owns_alone`). All ranks clip by
//! rank 0's norm (`all_ranks_take_the_norm_of_rank_0_though_their_own_differs`).

use anyhow::ensure;
use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::tensor::Tensor;
use exchange::Engine;

use super::super::Learner;
use super::super::gradients::{ANOTHER_FAILED, Sum, read};
use crate::ranks::{Job, Ranks, Summed};

pub(crate) struct Exact {
    shard: bool,
    wire: Wire,
}

/// How numbers travel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wire {
    /// Exactly, with this many ranks on each host.
    F32(exchange::Exact),
    Bf16,
}

impl Exact {
    pub(super) fn new(shard: bool, wire: Wire) -> Self {
        Self { shard, wire }
    }

    pub(super) fn begin(&self) -> impl FnMut(&mut dyn Engine, Vec<Job>) -> Summed + Send + 'static {
        let wire = self.wire;
        move |engine, bucket| reduce(wire, engine, bucket)
    }

    pub(super) fn is_sharded(&self) -> bool {
        self.shard
    }

    pub(super) fn numbers<I: Managed>(
        &self,
        learner: &Learner<Autodiff<I>>,
        losses: Vec<Tensor<I, 1>>,
        sum: &mut Sum<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(f32, f32)> {
        let numbers = numbers(learner, losses, sum, self.shard, ranks)?;
        if ranks.survive() {
            ensure!(ranks.all_succeeded(true)?, "another rank withholds this step");
        }
        Ok(numbers)
    }
}

pub(super) fn reduce(wire: Wire, engine: &mut dyn Engine, bucket: Vec<Job>) -> Summed {
    let owners: Option<Vec<usize>> = bucket.iter().map(|job| job.owner).collect();
    let own = bucket.into_iter().map(|job| job.own).collect();
    match wire {
        Wire::F32(exact) => exact.sum_all(engine, own, owners.as_deref()),
        Wire::Bf16 => exchange::Bf16.sum_all(engine, own, owners.as_deref()),
    }
}

pub(super) fn numbers<I: Managed>(
    learner: &Learner<Autodiff<I>>,
    losses: Vec<Tensor<I, 1>>,
    sum: &mut Sum<'_, I>,
    shard: bool,
    ranks: &mut Ranks,
) -> anyhow::Result<(f32, f32)> {
    // A rank without a micro-batch has not waited for its updates.
    sum.settle();
    sum.submit_all(&learner.gpt);
    sum.gather();
    if let Some(reduce) = sum.reduce.take() {
        let failure = reduce.window.and_then(|window| window.end());
        sum.failure = sum.failure.take().or(failure);
        ranks.end_sums(reduce.sums)?;
    }

    let own = if losses.is_empty() { Ok(Vec::new()) } else { read(losses) };
    let all_computed = ranks.all_succeeded(own.is_ok() && sum.failure.is_none())?;
    let losses = own?;
    ensure!(all_computed, ANOTHER_FAILED);
    let losses = ranks.losses(losses, sum.share.count as usize)?;

    let norm = if shard {
        sum.sharded_norm(&learner.gpt, ranks)?
    } else {
        let norm = sum.norms.take_global(&learner.gpt).map(|norm| read(vec![norm])).transpose()?;
        sum.norm(norm.map(|norm| norm[0]))?
    };
    // Devices add squares in different orders.
    let norm = ranks.number(norm)?;
    Ok((losses.iter().sum(), norm))
}
