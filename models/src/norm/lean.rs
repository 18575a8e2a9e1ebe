//! Normalisation as one tape node.
//!
//! With y = (x - μ) / s, s = √(mean((x - μ)²) + ε):
//!
//! ```text
//! dx = (g - mean(g) - y · mean(g ∘ y)) / s        RMSNorm: the same without μ and mean(g)
//! ```
//!
//! The node keeps y, as the next operation does, and one number per row.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::{Tensor, backend::Backend};

use super::NormKind;
use super::{Normalised, forward};
use crate::tape::{Saved, node};

pub(crate) fn lean<I: Backend, C: CheckpointStrategy, const D: usize>(
    x: Tensor<Autodiff<I, C>, D>,
    kind: NormKind,
    epsilon: f64,
) -> Tensor<Autodiff<I, C>, D> {
    node([x], |[x]| {
        let Normalised { rows, deviation } = forward(x, kind, epsilon);
        (rows.clone(), SavedRows { rows, deviation, kind })
    })
}

#[derive(Debug, Clone)]
struct SavedRows<I: Backend, const D: usize> {
    rows: Tensor<I, D>,
    deviation: Tensor<I, D>,
    kind: NormKind,
}

impl<I: Backend, const D: usize> Saved<I, D, 1> for SavedRows<I, D> {
    fn gradients(self, grad: Tensor<I, D>) -> [Tensor<I, D>; 1] {
        let last = D - 1;
        let along = (grad.clone() * self.rows.clone()).mean_dim(last);
        let grad = match self.kind {
            NormKind::LayerNorm => grad.clone() - grad.mean_dim(last),
            NormKind::RmsNorm => grad,
        };
        [(grad - self.rows * along) / self.deviation]
    }
}
