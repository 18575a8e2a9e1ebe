//! One process with every micro-batch of a step.

use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::tensor::Tensor;

use super::super::Learner;
use super::super::gradients::Sum;

pub(crate) struct Alone;

impl Alone {
    /// Waits once for the device.
    pub(super) fn numbers<I: Managed>(
        learner: &Learner<Autodiff<I>>,
        losses: Vec<Tensor<I, 1>>,
        sum: &mut Sum<'_, I>,
    ) -> anyhow::Result<(f32, f32)> {
        let (losses, norm) = learner.own_numbers(losses, sum)?;
        Ok((losses.iter().sum(), norm))
    }
}
