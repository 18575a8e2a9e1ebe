//! Cross-entropy as one tape node.
//!
//! A logit's gradient, `softmax - onehot`, is known with the logits. So the forward pass computes all gradients, held
//! one step later anyway; the backward pass scales them. Three products per chunk, not four.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::{IndexingUpdateOp, Tensor, TensorPrimitive, backend::Backend};

use super::{LossOptions, Targets, TokenLoss, chunks, logits, plain, token_loss};
use crate::attention::soft_cap_backward;

#[derive(Debug)]
struct ChunkedCrossEntropy;

#[derive(Debug, Clone)]
struct Saved<I: Backend> {
    d_hidden: Tensor<I, 2>,
    /// `None` for a frozen head.
    d_head: Option<Tensor<I, 2>>,
}

pub(crate) fn lean<I: Backend, C: CheckpointStrategy>(
    hidden: Tensor<Autodiff<I, C>, 2>,
    head: Tensor<Autodiff<I, C>, 2>,
    targets: Targets<Autodiff<I, C>>,
    options: &LossOptions,
    chunk_size: usize,
) -> Tensor<Autodiff<I, C>, 1> {
    let [hidden, head] = [hidden, head].map(|tensor| tensor.into_primitive().tensor());
    let nodes = [hidden.node.clone(), head.node.clone()];
    let learns = !head.node.requirement.is_none();
    let [hidden, head] =
        [hidden, head].map(|tensor| Tensor::<I, 2>::from_primitive(TensorPrimitive::Float(tensor.primitive)));
    let targets = Targets { ids: targets.ids.inner(), mask: targets.mask.map(Tensor::inner) };
    let tracked = match ChunkedCrossEntropy.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let (loss, saved) = loss_and_gradients(&hidden, (&head, learns), &targets, options, chunk_size);
            prep.finish(saved, loss.into_primitive().tensor())
        }
        OpsKind::UnTracked(prep) => {
            prep.finish(plain(hidden, head, &targets, options, chunk_size).into_primitive().tensor())
        }
    };
    Tensor::from_primitive(TensorPrimitive::Float(tracked))
}

fn loss_and_gradients<I: Backend>(
    hidden: &Tensor<I, 2>,
    (head, learns): (&Tensor<I, 2>, bool),
    targets: &Targets<I>,
    options: &LossOptions,
    chunk_size: usize,
) -> (Tensor<I, 1>, Saved<I>) {
    let compute = options.compute;
    let weight = targets.weight(options, hidden);
    let head_narrow = compute.narrow(head.clone());
    let mut total = weight.zeros_like();
    let mut d_hidden = Vec::new();
    // Not zeros: the head's gradient is the largest tensor.
    let mut d_head: Option<Tensor<I, 2>> = None;
    for rows in chunks(hidden.dims()[0], chunk_size) {
        let (ids, mask) = targets.rows(rows.clone());
        let hidden = compute.narrow(hidden.clone().slice_dim(0, rows));
        let logits = logits(hidden.clone(), head_narrow.clone(), options);
        // Only the cap's derivative rereads the logits.
        let capped = options.soft_cap.map(|cap| (cap, logits.clone()));
        let TokenLoss { mut loss, log_sum, exponentials, total: sum } =
            token_loss(logits, ids.clone(), options);

        let mut share = weight.clone().reshape([1, 1]).expand(loss.dims());
        if let Some(mask) = mask {
            loss = loss * mask.clone();
            share = share * mask;
        }
        total = total + loss.sum();

        let mut scaled = share.clone();
        if options.z_loss != 0.0 {
            scaled = scaled * log_sum.mul_scalar(2.0 * options.z_loss).add_scalar(1.0);
        }
        let d_logits = (exponentials * (scaled / sum)).scatter(1, ids, share.neg(), IndexingUpdateOp::Add);
        let d_logits = match capped {
            Some((cap, logits)) => soft_cap_backward(d_logits, logits, Some(cap)),
            None => d_logits,
        };
        let d_logits = compute.narrow(d_logits);
        if learns {
            let part = compute.product(d_logits.clone().transpose(), hidden);
            d_head = Some(match d_head {
                Some(sum) => sum + part,
                None => part,
            });
        }
        d_hidden.push(compute.product(d_logits, head_narrow.clone()));
    }
    let d_hidden = if d_hidden.len() == 1 { d_hidden.remove(0) } else { Tensor::cat(d_hidden, 0) };
    (total * weight, Saved { d_hidden, d_head })
}

impl<I: Backend> Backward<I, 2> for ChunkedCrossEntropy {
    type State = Saved<I>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let upstream = Tensor::<I, 1>::from_primitive(TensorPrimitive::Float(grads.consume::<I>(&ops.node)));
        let upstream = upstream.reshape([1, 1]);
        let saved = [Some(ops.state.d_hidden), ops.state.d_head];
        for (parent, grad) in ops.parents.into_iter().zip(saved) {
            if let (Some(parent), Some(grad)) = (parent, grad) {
                grads.register::<I>(parent.id, (grad * upstream.clone()).into_primitive().tensor());
            }
        }
    }
}
