//! Activations as one tape node each.
//!
//! Recorded GELU leaves four MLP-wide tensors on the tape; a node keeps its input (squared `ReLU`: clamped; SwiGLU:
//! both):
//!
//! ```text
//! GELU, tanh   t = tanh(c (x + a x³))   dx = g · ½ (1 + t + x (1 - t²) c (1 + 3 a x²))     c = √(2/π), a = 0.044715
//! GELU, erf    dx = g · (½ (1 + erf(x / √2)) + x exp(-x² / 2) / √(2π))
//! ReLU²        dx = g · 2 max(x, 0)
//! SwiGLU       σ = sigmoid(gate)        d_up = g · gate σ        d_gate = g · up · σ (1 + gate (1 - σ))
//! ```

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, TAU};

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::{Tensor, activation::sigmoid, backend::Backend};

use super::{CUBIC, Pointwise, forward, gelu_tanh, square, swiglu};
use crate::tape::{Saved, node};

pub(crate) fn lean<I: Backend, C: CheckpointStrategy, const D: usize>(
    x: Tensor<Autodiff<I, C>, D>,
    function: Pointwise,
) -> Tensor<Autodiff<I, C>, D> {
    node([x], |[x]| match function {
        Pointwise::GeluTanh | Pointwise::GeluErf => {
            (forward(x.clone(), function), SavedInput { kept: x, function })
        }
        Pointwise::ReluSquared => {
            let positive = x.clamp_min(0.0);
            (square(positive.clone()), SavedInput { kept: positive, function })
        }
    })
}

pub(crate) fn lean_swiglu<I: Backend, C: CheckpointStrategy, const D: usize>(
    gate: Tensor<Autodiff<I, C>, D>,
    up: Tensor<Autodiff<I, C>, D>,
) -> Tensor<Autodiff<I, C>, D> {
    node([gate, up], |[gate, up]| (swiglu(gate.clone(), up.clone()), SavedGate { gate, up }))
}

#[derive(Debug, Clone)]
struct SavedInput<I: Backend, const D: usize> {
    kept: Tensor<I, D>,
    function: Pointwise,
}

impl<I: Backend, const D: usize> Saved<I, D, 1> for SavedInput<I, D> {
    fn gradients(self, grad: Tensor<I, D>) -> [Tensor<I, D>; 1] {
        let x = self.kept;
        [match self.function {
            Pointwise::GeluTanh => {
                let t = gelu_tanh(&x);
                let c = FRAC_2_PI.sqrt();
                let inner = square(x.clone()).mul_scalar(3.0 * CUBIC * c).add_scalar(c) * x;
                let slope = square(t.clone()).neg().add_scalar(1.0) * inner;
                (slope + t).add_scalar(1.0) * grad.mul_scalar(0.5)
            }
            Pointwise::GeluErf => {
                let below = x.clone().mul_scalar(FRAC_1_SQRT_2).erf().add_scalar(1.0).mul_scalar(0.5);
                let density = square(x.clone()).mul_scalar(-0.5).exp().mul_scalar(1.0 / TAU.sqrt());
                (density * x + below) * grad
            }
            Pointwise::ReluSquared => x.mul_scalar(2.0) * grad,
        }]
    }
}

#[derive(Debug, Clone)]
struct SavedGate<I: Backend, const D: usize> {
    gate: Tensor<I, D>,
    up: Tensor<I, D>,
}

impl<I: Backend, const D: usize> Saved<I, D, 2> for SavedGate<I, D> {
    fn gradients(self, grad: Tensor<I, D>) -> [Tensor<I, D>; 2] {
        let Self { gate, up } = self;
        let sigma = sigmoid(gate.clone());
        let d_up = gate.clone() * sigma.clone() * grad.clone();
        let slope = (sigma.clone().neg().add_scalar(1.0) * gate).add_scalar(1.0) * sigma;
        [slope * up * grad, d_up]
    }
}
