//! Mixed precision by hand: matrix products in a narrow type, everything else in the parameters' own.
//!
//! Burn has no autocast. Both factors are cast where they meet; parameters, residual stream, norms, softmax, logits and
//! loss stay wide. Gradients are wide too, as the gradient of a cast is a cast. [`Compute::F32`] records no cast:
//! results equal the plain path bit for bit, and an f64 model stays in f64.

use burn::tensor::{FloatDType, Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

/// The type matrix products are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compute {
    /// The parameters' own type; nothing is cast.
    #[default]
    F32,
    /// Eight exponent bits: f32's range, about three decimal digits.
    Bf16,
    /// Five exponent bits: gradients below 6e-8 vanish, so scale the loss in training.
    F16,
}

impl Compute {
    /// Bytes per number of a product's factor.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    pub(crate) fn narrow<B: Backend, const D: usize>(self, wide: Tensor<B, D>) -> Tensor<B, D> {
        match self {
            Self::F32 => wide,
            Self::Bf16 => wide.cast(FloatDType::BF16),
            Self::F16 => wide.cast(FloatDType::F16),
        }
    }

    /// The product of two narrow factors, wide.
    pub(crate) fn product<B: Backend, const D: usize>(
        self,
        left: Tensor<B, D>,
        right: Tensor<B, D>,
    ) -> Tensor<B, D> {
        let product = left.matmul(right);
        match self {
            Self::F32 => product,
            Self::Bf16 | Self::F16 => product.cast(FloatDType::F32),
        }
    }
}
