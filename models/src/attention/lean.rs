//! Attention as one tape node.
//!
//! Recorded operations would keep T×T numbers per head. This node saves q, k, v, the output O and each query's
//! log-sum-exp, and rebuilds a chunk's weights as `P = exp(S - lse)`:
//!
//! ```text
//! dV = Pᵀ dO          dP = dO Vᵀ         δ = rowsum(dO ∘ O)
//! dS = P ∘ (dP - δ)   dQ = scale · dS K   dK = scale · dSᵀ Q
//! ```
//!
//! δ, from O, replaces a sum over keys. A masked score has P = 0: the mask needs no gradient; the soft-cap's derivative
//! uses unmasked scores.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::{Tensor, backend::Backend};

use super::{Attended, AttentionOptions, Band, Shape, forward, joined, mask, scores, soft_cap_backward};
use crate::tape::{Saved, node};

#[derive(Debug, Clone)]
struct SavedAttention<I: Backend> {
    q: Tensor<I, 4>,
    k: Tensor<I, 4>,
    v: Tensor<I, 4>,
    output: Tensor<I, 4>,
    log_sum_exp: Tensor<I, 4>,
    options: AttentionOptions,
    chunk_size: usize,
}

pub(crate) fn lean<I: Backend, C: CheckpointStrategy>(
    q: Tensor<Autodiff<I, C>, 4>,
    k: Tensor<Autodiff<I, C>, 4>,
    v: Tensor<Autodiff<I, C>, 4>,
    options: &AttentionOptions,
    chunk_size: usize,
) -> Tensor<Autodiff<I, C>, 4> {
    node([q, k, v], |[q, k, v]| {
        let Attended { output, log_sum_exp } = forward(&q, &k, &v, options, chunk_size, None);
        let options = *options;
        (output.clone(), SavedAttention { q, k, v, output, log_sum_exp, options, chunk_size })
    })
}

impl<I: Backend> Saved<I, 4, 3> for SavedAttention<I> {
    fn gradients(self, grad: Tensor<I, 4>) -> [Tensor<I, 4>; 3] {
        let shape = Shape::new(&self.q, &self.k);
        let compute = self.options.compute;
        let band = Band::new(shape, self.chunk_size, self.options.window, &self.q.device());
        let mut dq = Vec::new();
        let keys = self.k.dims()[2];
        let (mut dk, mut dv) = (None, None);
        for chunk in shape.chunks(self.chunk_size) {
            let rows = |tensor: &Tensor<I, 4>| shape.stacked(shape.rows(tensor, chunk.queries.clone()));
            let d_output = rows(&grad);
            let delta = (d_output.clone() * rows(&self.output)).sum_dim(3);
            let d_output = compute.narrow(d_output);

            let capped = scores(shape, &chunk, &self.q, &self.k, &self.options);
            // Only the cap's derivative rereads the scores.
            let kept = self.options.soft_cap.map(|cap| (cap, capped.clone()));
            let weights = (mask(shape, &chunk, &band, capped, None) - rows(&self.log_sum_exp)).exp();
            let v = shape.prefix(&self.v, chunk.prefix);
            let d_weights = compute.product(d_output.clone(), v.swap_dims(2, 3));
            let d_scores = weights.clone() * (d_weights - delta);
            let d_scores = match kept {
                Some((cap, capped)) => soft_cap_backward(d_scores, capped, Some(cap)),
                None => d_scores,
            };
            let d_scores = compute.narrow(d_scores.mul_scalar(self.options.scale));

            let part = compute.product(compute.narrow(weights).swap_dims(2, 3), d_output);
            dv = Some(added_to_prefix(dv, part, keys));
            let part = compute.product(d_scores.clone().swap_dims(2, 3), rows(&self.q));
            dk = Some(added_to_prefix(dk, part, keys));
            let k = shape.prefix(&self.k, chunk.prefix);
            dq.push(shape.by_head(compute.product(d_scores, k)));
        }
        let [dk, dv] = [dk, dv].map(|grad| grad.expect("a sequence has at least one token"));
        [joined(dq), dk, dv].map(|grad| compute.narrow(grad))
    }
}

/// A missing total starts as `part`, zero-padded to `keys` rows.
fn added_to_prefix<I: Backend>(total: Option<Tensor<I, 4>>, part: Tensor<I, 4>, keys: usize) -> Tensor<I, 4> {
    let [batch, heads, prefix, width] = part.dims();
    let Some(total) = total else {
        if prefix == keys {
            return part;
        }
        let rest = Tensor::<I, 4>::zeros([batch, heads, keys - prefix, width], &part.device());
        let rest = rest.cast(part.dtype());
        return Tensor::cat(vec![part, rest], 2);
    };
    let region = [0..batch, 0..heads, 0..prefix, 0..width];
    let sum = total.clone().slice(region.clone()) + part;
    total.slice_assign(region, sum)
}
