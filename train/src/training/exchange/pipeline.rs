//! Pipelines that share a step's micro-batches
//! (`pipelines_beside_each_other_have_the_bits_of_one_process`).
//!
//! Gradients of a stage are summed over its replicas after the passes.

use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::tensor::Tensor;
use exchange::Group;

use super::super::Learner;
use super::super::gradients::{OverlappedReduce, ReduceOrder, Sum};
use super::super::pipeline::{Line, Passes};
use super::exact::{self, Wire};
use crate::data::MicroBatch;
use crate::ranks::Ranks;

pub(super) fn losses<I: Managed>(
    learner: &Learner<Autodiff<I>>,
    step: u64,
    own: (u64, &[MicroBatch]),
    divisor: f64,
    sum: &mut Sum<'_, I>,
    ranks: &mut Ranks,
) -> anyhow::Result<Vec<Tensor<I, 1>>> {
    let line = Line::new(learner, ranks);
    let mut pipe = ranks.begin_pipe()?;
    let losses = Passes { learner, line: &line, step, own, divisor, pipe: &mut pipe }.run(sum);
    ranks.end_pipe(pipe)?;
    Ok(losses)
}

pub(super) fn numbers<I: Managed>(
    learner: &Learner<Autodiff<I>>,
    losses: Vec<Tensor<I, 1>>,
    sum: &mut Sum<'_, I>,
    ranks: &mut Ranks,
) -> anyhow::Result<(f32, f32)> {
    if sum.share.world > 1 {
        let (members, wire) = (ranks.of_same_stage(), Wire::F32(exchange::Exact::default()));
        let sums = ranks.begin_sums(move |engine, bucket| {
            exact::reduce(wire, &mut Group::new(engine, members.clone()), bucket)
        })?;
        let owners = sum.owners;
        let own = learner.gpt.learning().into_iter().filter(|(_, parameter)| owners.has(&parameter.name));
        let order = ReduceOrder::of_pass(own.collect(), None, sum.share.world);
        sum.reduce = Some(OverlappedReduce::begin(sums, order));
    }
    exact::numbers(learner, losses, sum, true, ranks)
}
