//! Muon: momentum with all singular values near one.
//!
//! Burn's Muon sums a whole matrix, in no fixed order on the CPU, and assumes that rows are outputs.
//! Weights here are `[in, out]`.

use burn::tensor::{FloatDType, Tensor, backend::Backend};
use models::Compute;

/// Polynomials `ax + bx³ + cx⁵`, in sequence, for singular values in 0.001 to 1, each the best after its predecessors
/// (Amsel and others, "The Polar Express", 2025). The result is within half a percent of one.
const POLYNOMIALS: [(f64, f64, f64); 6] = [
    (8.28721, -23.59589, 17.30039),
    (4.10706, -2.94785, 0.54484),
    (3.94869, -2.90890, 0.55182),
    (3.31842, -2.48849, 0.51005),
    (2.30065, -1.66890, 0.41881),
    (1.89130, -1.26800, 0.37680),
];
/// Factor by which rounding may increase a singular value. The next polynomial would decrease one above 1.
const MARGIN: f64 = 1.01;

#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) lr: f64,
    pub(super) momentum: f64,
    pub(super) decay: f64,
}

/// Updates a matrix `[in, out]`. Returns it and its momentum.
pub(super) fn step<B: Backend>(
    weight: Tensor<B, 2>,
    gradient: Tensor<B, 2>,
    velocity: Option<Tensor<B, 2>>,
    Rates { lr, momentum, decay }: Rates,
    compute: Compute,
) -> (Tensor<B, 2>, Tensor<B, 2>) {
    let velocity = match velocity {
        Some(velocity) => velocity.mul_scalar(momentum) + gradient.clone(),
        None => gradient.clone(),
    };
    let [inputs, outputs] = weight.dims();
    let update = orthogonal(gradient + velocity.clone().mul_scalar(momentum), compute);
    let rate = lr * (outputs as f64 / inputs as f64).max(1.0).sqrt();
    (weight.mul_scalar(1.0 - lr * decay) - update.mul_scalar(rate), velocity)
}

/// The nearest matrix with singular values of one.
fn orthogonal<B: Backend>(matrix: Tensor<B, 2>, compute: Compute) -> Tensor<B, 2> {
    let [rows, columns] = matrix.dims();
    let tall = rows > columns;
    let x = if tall { matrix.transpose() } else { matrix };
    let norm = x.clone().square().sum_dim(1).sum_dim(0).sqrt().clamp_min(1e-7);
    let x = x / norm;
    let narrow = compute == Compute::Bf16;
    let x = if narrow { x.cast(FloatDType::BF16) } else { x };
    let last = POLYNOMIALS.len() - 1;
    let x = POLYNOMIALS.iter().enumerate().fold(x, |x, (at, &(a, b, c))| {
        let margin: f64 = if at < last { MARGIN } else { 1.0 };
        let gram = x.clone().matmul(x.clone().transpose());
        let polynomial = gram.clone().mul_scalar(b / margin.powi(3))
            + gram.clone().matmul(gram).mul_scalar(c / margin.powi(5));
        x.clone().mul_scalar(a / margin) + polynomial.matmul(x)
    });
    let x = if narrow { x.cast(FloatDType::F32) } else { x };
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

    fn tensor(values: &[f32], shape: [usize; 2]) -> Tensor<Flex, 2> {
        Tensor::from_data(TensorData::new(values.to_vec(), shape), &FlexDevice)
    }

    fn values(tensor: Tensor<Flex, 2>) -> Vec<f32> {
        tensor.into_data().into_vec().expect("floats")
    }

    /// The first rows of a reflection along `normal`; they are orthonormal.
    fn reflection(rows: usize, size: usize, normal: impl Fn(usize) -> f32) -> Tensor<Flex, 2> {
        let square: f32 = (0..size).map(|n| normal(n).powi(2)).sum();
        let value = |row, column| f32::from(row == column) - 2.0 * normal(row) * normal(column) / square;
        let values: Vec<f32> = (0..rows)
            .flat_map(|row| (0..size).map(move |column| (row, column)))
            .map(|(r, c)| value(r, c))
            .collect();
        tensor(&values, [rows, size])
    }

    #[test]
    fn an_update_is_the_nearest_matrix_with_equal_singular_values() {
        let (left, right) = (reflection(8, 8, |n| n as f32 + 1.0), reflection(8, 24, |n| (n as f32).cos()));
        let factor = left.clone().matmul(right.clone());
        for (compute, least, tolerance) in [(Compute::F32, 0.0015f32, 4e-3), (Compute::Bf16, 0.01, 5e-2)] {
            // Singular values from `least` times 30 to 30.
            let scales: Vec<f32> = (0..8).map(|n| 30.0 * least.powf(n as f32 / 7.0)).collect();
            let matrix = left.clone().matmul(tensor(&scales, [8, 1]) * right.clone());
            let wide = orthogonal(matrix.clone(), compute);
            let tall = orthogonal(matrix.clone().transpose(), compute).transpose();
            for found in [wide, tall] {
                for (found, expected) in values(found).into_iter().zip(values(factor.clone())) {
                    assert!(
                        (found - expected).abs() < tolerance,
                        "{found} instead of {expected}, {compute:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn momentum_looks_ahead_and_decay_shrinks() {
        let rates = Rates { lr: 0.1, momentum: 0.9, decay: 0.5 };
        let diagonal = |first, second| tensor(&[first, 0.0, 0.0, second], [2, 2]);
        let (weight, velocity) = step(diagonal(4.0, 4.0), diagonal(1.0, -1.0), None, rates, Compute::F32);
        let (weight, velocity) = step(weight, diagonal(-0.5, 0.2), Some(velocity), rates, Compute::F32);
        // 0.9 · (1, -1) + (-0.5, 0.2)
        let expected = [0.4, 0.0, 0.0, -0.7];
        assert!(
            values(velocity).iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6)
        );
        // Signs of (-0.5, 0.2) + 0.9 · (0.4, -0.7) = (-0.14, -0.43).
        let expected = [(4.0 * 0.95 - 0.1) * 0.95 + 0.1, 0.0, 0.0, (4.0 * 0.95 + 0.1) * 0.95 + 0.1];
        for (found, expected) in values(weight).into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-3, "{found} instead of {expected}");
        }
    }

    #[test]
    fn a_wide_output_gets_the_larger_rate() {
        let moved = |rows, columns| {
            let weight = Tensor::zeros([rows, columns], &FlexDevice);
            let rates = Rates { lr: 1.0, momentum: 0.0, decay: 0.0 };
            let (after, _) = step(weight, matrix(rows, columns), None, rates, Compute::F32);
            after.square().sum().sqrt().into_scalar()
        };
        let ratio = moved(8, 32) / moved(32, 8);
        assert!((ratio - 2.0).abs() < 0.2, "{ratio}");
    }
}
