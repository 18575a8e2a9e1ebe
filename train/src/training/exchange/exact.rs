//! Sums of gradients in f32, to the bits of one process (`ranks_end_with_the_bits_of_one_process`), made during the
//! backward pass.
//!
//! With owners, a sum goes to its owner only (`a_rank_keeps_summed_gradients_of_what_it_owns_alone`). All ranks clip by
//! rank 0's norm (`all_ranks_take_the_norm_of_rank_0_though_their_own_differs`).

use anyhow::ensure;
use burn::backend::Autodiff;
use burn::tensor::{Tensor, backend::Backend};
use exchange::{Engine, Exchange as _};

use super::super::Learner;
use super::super::gradients::{ANOTHER_FAILED, Sum, read};
use crate::ranks::{Job, Ranks};

pub(crate) struct Exact {
    shard: bool,
}

impl Exact {
    pub(super) fn new(shard: bool) -> Self {
        Self { shard }
    }

    pub(super) fn is_sharded(&self) -> bool {
        self.shard
    }

    /// If ranks can repeat a step, all living ranks have its sums, or none has.
    pub(super) fn numbers<I: Backend>(
        &self,
        learner: &Learner<Autodiff<I>>,
        losses: Vec<Tensor<I, 1>>,
        sum: &mut Sum<'_, I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<(f32, f32)> {
        let numbers = numbers(learner, losses, sum, self.shard, ranks)?;
        if ranks.survive() {
            ensure!(ranks.all(true)?, "another rank withholds this step");
        }
        Ok(numbers)
    }
}

/// Empty for ranks that do not own the parameter.
pub(super) fn reduce(engine: &mut dyn Engine, Job { own, owner, .. }: Job) -> exchange::Result<Vec<f32>> {
    let Some(owner) = owner else { return exchange::Exact::default().sum(engine, own) };
    let mut parts = vec![0; engine.world()];
    parts[owner] = own.len();
    exchange::Exact::default().reduce_scatter(engine, own, &parts)
}

/// A failed rank joins every sum with zeros, so that no other hangs.
pub(super) fn numbers<I: Backend>(
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
        ranks.end_sums(reduce.sums)?;
    }

    let own = if losses.is_empty() { Ok(Vec::new()) } else { read(losses) };
    let all_computed = ranks.all(own.is_ok() && sum.failure.is_none())?;
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
