//! Muon: momentum whose singular values are all made about one.
//!
//! Burn has one too. Its norm is a sum over a whole matrix, which the CPU backend adds up in an order that changes from
//! run to run; and its original learning-rate factor takes rows for outputs, while weights here are `[in, out]`.

use burn::tensor::{Tensor, backend::Backend};

/// Coefficients of the quintic iteration by Keller Jordan, chosen for speed at zero: singular values end between about
/// 0.7 and 1.2.
const QUINTIC: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);
const ITERATIONS: usize = 5;

/// How far a step goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) lr: f64,
    pub(super) momentum: f64,
    pub(super) decay: f64,
}

/// One step for a matrix `[in, out]`. Returns the matrix and its momentum.
pub(super) fn step<B: Backend>(
    weight: Tensor<B, 2>,
    gradient: Tensor<B, 2>,
    velocity: Option<Tensor<B, 2>>,
    Rates { lr, momentum, decay }: Rates,
) -> (Tensor<B, 2>, Tensor<B, 2>) {
    let velocity = match velocity {
        Some(velocity) => velocity.mul_scalar(momentum) + gradient.clone(),
        None => gradient.clone(),
    };
    let [inputs, outputs] = weight.dims();
    let update = orthogonal(gradient + velocity.clone().mul_scalar(momentum));
    let rate = lr * (outputs as f64 / inputs as f64).max(1.0).sqrt();
    (weight.mul_scalar(1.0 - lr * decay) - update.mul_scalar(rate), velocity)
}

/// Newton-Schulz towards the nearest matrix whose singular values are equal, on the side with fewer rows.
fn orthogonal<B: Backend>(matrix: Tensor<B, 2>) -> Tensor<B, 2> {
    let [rows, columns] = matrix.dims();
    let tall = rows > columns;
    let x = if tall { matrix.transpose() } else { matrix };
    let norm = x.clone().square().sum_dim(1).sum_dim(0).sqrt().clamp_min(1e-7);
    let (a, b, c) = QUINTIC;
    let x = (0..ITERATIONS).fold(x / norm, |x, _| {
        let gram = x.clone().matmul(x.clone().transpose());
        let polynomial = gram.clone().mul_scalar(b) + gram.clone().matmul(gram).mul_scalar(c);
        x.clone().mul_scalar(a) + polynomial.matmul(x)
    });
    if tall { x.transpose() } else { x }
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};
    use burn::tensor::TensorData;

    use super::*;

    fn matrix(rows: usize, columns: usize) -> Tensor<Flex, 2> {
        let value = |n: usize| ((n * 7919 + 13) % 2003) as f32 / 1001.5 - 1.0;
        let values: Vec<f32> = (0..rows * columns).map(value).collect();
        Tensor::from_data(TensorData::new(values, [rows, columns]), &FlexDevice)
    }

    #[test]
    fn an_update_has_singular_values_about_one() {
        for (rows, columns) in [(8, 24), (24, 8)] {
            let x = orthogonal(matrix(rows, columns));
            let wide = if rows > columns { x.transpose() } else { x };
            let gram = wide.clone().matmul(wide.transpose());
            let gram: Vec<f32> = gram.into_data().into_vec().expect("floats");
            for (at, value) in gram.iter().enumerate() {
                let expected = if at % 9 == 0 { 1.0 } else { 0.0 };
                assert!((value - expected).abs() < 0.5, "{value} at {at}");
            }
        }
    }

    #[test]
    fn a_wide_output_gets_the_larger_rate() {
        let moved = |rows, columns| {
            let weight = Tensor::zeros([rows, columns], &FlexDevice);
            let (after, _) =
                step(weight, matrix(rows, columns), None, Rates { lr: 1.0, momentum: 0.0, decay: 0.0 });
            after.square().sum().sqrt().into_scalar()
        };
        let ratio = moved(8, 32) / moved(32, 8);
        assert!((ratio - 2.0).abs() < 0.2, "{ratio}");
    }
}
