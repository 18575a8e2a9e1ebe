//! The MLP's non-linearities: forward passes for every backend.
//!
//! Primitive operations only: backends fuse their own activations only in inference, so a recomputed block would differ
//! in the last bits. `CubeCL`'s backward GELU has a truncated tanh.

mod lean;

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

use burn::tensor::{Tensor, activation::sigmoid, backend::Backend};

pub(crate) use lean::{lean, lean_swiglu};

/// A function of one feature at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointwise {
    /// `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
    /// `0.5 x (1 + erf(x / √2))`.
    GeluErf,
    /// `max(x, 0)²`.
    ReluSquared,
}

const CUBIC: f64 = 0.044_715;

pub(crate) fn forward<B: Backend, const D: usize>(x: Tensor<B, D>, function: Pointwise) -> Tensor<B, D> {
    match function {
        Pointwise::GeluTanh => {
            let gate = gelu_tanh(&x).add_scalar(1.0);
            (x * gate).mul_scalar(0.5)
        }
        Pointwise::GeluErf => {
            let gate = x.clone().mul_scalar(FRAC_1_SQRT_2).erf().add_scalar(1.0);
            (x * gate).mul_scalar(0.5)
        }
        Pointwise::ReluSquared => square(x.clamp_min(0.0)),
    }
}

fn gelu_tanh<B: Backend, const D: usize>(x: &Tensor<B, D>) -> Tensor<B, D> {
    let cubic = square(x.clone()).mul_scalar(CUBIC).add_scalar(1.0) * x.clone();
    cubic.mul_scalar(FRAC_2_PI.sqrt()).tanh()
}

fn square<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    x.clone() * x
}

pub(crate) fn swiglu<B: Backend, const D: usize>(gate: Tensor<B, D>, up: Tensor<B, D>) -> Tensor<B, D> {
    gate.clone() * sigmoid(gate) * up
}
