//! AdamW by blocks of rows, for embeddings and the head.
//!
//! A fused update needs seven tensors of a table's size at once; in blocks, it needs four and three blocks, with the
//! same bits. A block's size does not depend on the budget.

use burn::optim::{AdamW, AdamWState, AdaptiveMomentumState, SimpleOptimizer};
use burn::tensor::{Tensor, backend::Backend};

pub(crate) const BLOCK_BYTES: usize = 4 << 20;

/// Updates along the gradient times `scale`, `rows` rows at once.
pub(super) fn step<I: Backend, const D: usize>(
    rule: &AdamW,
    [lr, scale]: [f64; 2],
    weight: Tensor<I, D>,
    gradient: Tensor<I, D>,
    before: Option<AdamWState<I, D>>,
    rows: usize,
) -> (Tensor<I, D>, AdamWState<I, D>) {
    let stepped = |weight: Tensor<I, D>, gradient: Tensor<I, D>, before| {
        let gradient = if scale < 1.0 { gradient.mul_scalar(scale) } else { gradient };
        let (weight, after) = rule.step(lr, weight, gradient, before);
        (weight, after.expect("AdamW always has a state"))
    };

    let dims = weight.dims();
    if rows >= dims[0] {
        return stepped(weight, gradient, before);
    }

    let time = before.as_ref().map_or(0, |before| before.momentum.time);
    let is_first = before.is_none();
    let [mut first, mut second] = match before {
        Some(AdamWState { momentum }) => [momentum.moment_1, momentum.moment_2],
        None => [(), ()].map(|()| Tensor::zeros(dims, &weight.device())),
    };

    let mut weight = weight;
    for start in (0..dims[0]).step_by(rows) {
        let region: [_; D] = std::array::from_fn(|dimension| {
            if dimension == 0 { start..(start + rows).min(dims[0]) } else { 0..dims[dimension] }
        });
        let block = |whole: &Tensor<I, D>| whole.clone().slice(region.clone());
        let before = (!is_first).then(|| state(time, [block(&first), block(&second)]));
        let (moved, after) = stepped(block(&weight), block(&gradient), before);
        weight = weight.slice_assign(region.clone(), moved);
        first = first.slice_assign(region.clone(), after.momentum.moment_1);
        second = second.slice_assign(region, after.momentum.moment_2);
    }
    (weight, state(time + 1, [first, second]))
}

fn state<I: Backend, const D: usize>(
    time: usize,
    [moment_1, moment_2]: [Tensor<I, D>; 2],
) -> AdamWState<I, D> {
    AdamWState::new(AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2: None })
}

/// Rows per block. Matrices of transformer blocks are whole: they are smaller and many.
pub(super) fn at_once<I: Backend, const D: usize>(name: &str, weight: &Tensor<I, D>) -> usize {
    let rows = weight.dims()[0];
    if name.starts_with("blocks.") {
        return rows;
    }
    let row_bytes = size_of::<f32>() * weight.shape().num_elements() / rows;
    (BLOCK_BYTES / row_bytes).max(1)
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};
    use burn::optim::AdamWConfig;
    use burn::tensor::TensorData;

    use super::*;

    fn matrix(seed: usize) -> Tensor<Flex, 2> {
        let number = |n: usize| ((n * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0;
        Tensor::from_data(TensorData::new((0..700).map(number).collect(), [70, 10]), &FlexDevice)
    }

    #[test]
    fn steps_by_blocks_of_rows_have_the_bits_of_one_step() {
        let rule = AdamWConfig::new().with_weight_decay(0.1).build();
        let after = |rows: usize| {
            let (mut weight, mut state) = (matrix(0), None);
            for time in 1..4 {
                let scale = if time == 2 { 0.3 } else { 1.0 };
                let (moved, kept) = step(&rule, [0.01, scale], weight, matrix(time), state, rows);
                (weight, state) = (moved, Some(kept));
            }
            let momentum = state.expect("three steps").momentum;
            let bits = |tensor: Tensor<Flex, 2>| -> Vec<u32> {
                tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
            };
            (bits(weight), bits(momentum.moment_1), bits(momentum.moment_2), momentum.time)
        };
        let whole = after(70);
        assert_eq!(whole.3, 3);
        for rows in [1, 32, 35, 69] {
            assert_eq!(after(rows), whole, "{rows} rows at once");
        }
    }
}
