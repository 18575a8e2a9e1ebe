//! Mixed precision: matrix products and kept inputs in a narrow type, the rest in the parameters' own.
//!
//! Burn has no autocast. Both factors are cast where they meet; gradients are wide. [`Compute::F32`] records no cast:
//! bits are the plain path's, and f64 models stay f64.

use burn::tensor::{FloatDType, Tensor, backend::Backend};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The type of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compute {
    /// The parameters' own type, without casts.
    #[default]
    F32,
    /// f32's range, about three decimal digits.
    Bf16,
    /// Finer, but gradients below 6e-8 vanish: scale the training loss.
    F16,
}

impl Compute {
    /// Bytes per number of a factor.
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

/// Form of recomputed segments' kept inputs. A narrow one moves gradients, not the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputForm {
    /// The type they are computed in.
    #[default]
    Computed,
    /// Two bytes a number.
    Bf16,
    /// 8-bit integers and an f32 scale per 128.
    Int8,
}
