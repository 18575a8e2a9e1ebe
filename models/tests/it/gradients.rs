//! Hand-written backward passes against finite differences, in f64.

use burn::tensor::{DType, Int, Tensor, TensorData};
use models::NormKind;
use models::activation::Pointwise;
use models::attention::AttentionOptions;
use models::loss::{LossOptions, Targets};
use models::{Chunks, Compute, Kernels, Lean};

use crate::alone::is_alone;
use crate::fixtures::{DEVICE, Tape, normal, numbers};

const STEP: f64 = 1e-5;

/// Central differences of `sum(f(x) · weights)` in every coordinate.
fn check<const D: usize>(inputs: &[Tensor<Tape, D>], scalar: impl Fn(&[Tensor<Tape, D>]) -> Tensor<Tape, 1>) {
    let leaves: Vec<_> = inputs.iter().map(|input| input.clone().require_grad()).collect();
    let grads = scalar(&leaves).backward();
    for (index, leaf) in leaves.iter().enumerate() {
        let analytic = numbers(&leaf.grad(&grads).expect("every input has a gradient"));
        let at = numbers(leaf);
        let moved = |coordinate: usize, by: f64| {
            let mut values = at.clone();
            values[coordinate] += by;
            let mut inputs = inputs.to_vec();
            inputs[index] = Tensor::from_data(TensorData::new(values, leaf.dims()), (&DEVICE, DType::F64));
            numbers(&scalar(&inputs))[0]
        };
        for (coordinate, analytic) in analytic.into_iter().enumerate() {
            let numeric = (moved(coordinate, STEP) - moved(coordinate, -STEP)) / (2.0 * STEP);
            assert!(
                (analytic - numeric).abs() <= 1e-7 * (1.0 + numeric.abs()),
                "input {index}, coordinate {coordinate}: {analytic} by hand, {numeric} by differences"
            );
        }
    }
}

#[test]
fn attention_backward_agrees_with_finite_differences() {
    if !is_alone() {
        return;
    }
    for (soft_cap, window) in [(None, None), (Some(1.5), None), (None, Some(2)), (Some(1.5), Some(3))] {
        let options = AttentionOptions { scale: 0.5, soft_cap, window, compute: Compute::F32 };
        let inputs = [([1, 4, 5, 3], 1), ([1, 2, 5, 3], 2), ([1, 2, 5, 3], 3)]
            .map(|(shape, seed)| normal::<Tape, 4>(shape, seed, DType::F64));
        let weights = normal::<Tape, 4>([1, 4, 5, 3], 4, DType::F64);
        check(&inputs, |inputs| {
            let [q, k, v] = [0, 1, 2].map(|i: usize| inputs[i].clone());
            let kernels = Lean(Chunks::of(2, 1));
            (kernels.attention(q, k, v, &options) * weights.clone()).sum()
        });
    }
}

#[test]
fn cross_entropy_backward_agrees_with_finite_differences() {
    if !is_alone() {
        return;
    }
    for (soft_cap, z_loss, divisor) in [(None, 0.0, None), (Some(2.0), 0.05, None), (None, 0.1, Some(11.0))] {
        let options = LossOptions { soft_cap, z_loss, divisor, compute: Compute::F32 };
        let inputs =
            [([5, 4], 1), ([7, 4], 2)].map(|(shape, seed)| normal::<Tape, 2>(shape, seed, DType::F64));
        let ids = Tensor::<Tape, 1, Int>::from_ints([3, 0, 6, 2, 3], &DEVICE);
        let mask = Tensor::<Tape, 1>::from_data(
            TensorData::from([1.0_f64, 0.0, 0.5, 1.0, 1.0]),
            (&DEVICE, DType::F64),
        );
        check(&inputs, |inputs| {
            let targets = Targets { ids: ids.clone(), mask: Some(mask.clone()) };
            let kernels = Lean(Chunks::of(1, 2));
            kernels.loss(inputs[0].clone(), inputs[1].clone(), targets, &options).mul_scalar(1.7)
        });
    }
}

#[test]
fn backward_passes_of_activations_agree_with_finite_differences() {
    if !is_alone() {
        return;
    }
    let weights = normal::<Tape, 3>([2, 3, 7], 4, DType::F64);
    let [gate, up] = [1, 2].map(|seed| normal::<Tape, 3>([2, 3, 7], seed, DType::F64).mul_scalar(2.0));
    for function in [Pointwise::GeluTanh, Pointwise::GeluErf, Pointwise::ReluSquared] {
        check(std::slice::from_ref(&up), |inputs| {
            (Lean::default().pointwise(inputs[0].clone(), function) * weights.clone()).sum()
        });
    }
    check(&[gate, up], |inputs| {
        (Lean::default().swiglu(inputs[0].clone(), inputs[1].clone()) * weights.clone()).sum()
    });
}

#[test]
fn backward_passes_of_norms_agree_with_finite_differences() {
    if !is_alone() {
        return;
    }
    let x = normal::<Tape, 3>([2, 3, 5], 1, DType::F64).mul_scalar(3.0).add_scalar(1.0);
    let weights = normal::<Tape, 3>([2, 3, 5], 2, DType::F64);
    for kind in [NormKind::LayerNorm, NormKind::RmsNorm] {
        check(std::slice::from_ref(&x), |inputs| {
            (Lean::default().normalise(inputs[0].clone(), kind, 1e-2) * weights.clone()).sum()
        });
    }
}
