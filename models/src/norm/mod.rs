//! `LayerNorm` and `RMSNorm` without trained scale and offset, in primitives.

mod kind;
mod lean;

use burn::tensor::{Tensor, backend::Backend};

pub use kind::NormKind;
pub(crate) use lean::lean;

pub(crate) struct Normalised<B: Backend, const D: usize> {
    pub(crate) rows: Tensor<B, D>,
    /// The last dimension is 1.
    pub(crate) deviation: Tensor<B, D>,
}

pub(crate) fn forward<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    kind: NormKind,
    epsilon: f64,
) -> Normalised<B, D> {
    let last = D - 1;
    let centred = match kind {
        NormKind::LayerNorm => x.clone() - x.mean_dim(last),
        NormKind::RmsNorm => x,
    };
    let variance = (centred.clone() * centred.clone()).mean_dim(last);
    let deviation = variance.add_scalar(epsilon).sqrt();
    Normalised { rows: centred / deviation.clone(), deviation }
}
