//! The optimizer's moments of one parameter, whatever its rank.

use anyhow::ensure;
use burn::optim::{AdamWState, AdaptiveMomentumState};
use burn::tensor::{Tensor, TensorData, TensorMetadata, TensorPrimitive, backend::Backend, ops::FloatTensor};

use crate::ranks::Pair;

/// One or two tensors of the parameter's shape.
#[derive(Debug, Clone)]
pub(crate) struct Moments<I: Backend> {
    /// Steps taken; what AdamW corrects its bias by.
    pub(crate) time: usize,
    pub(crate) first: FloatTensor<I>,
    pub(crate) second: Option<FloatTensor<I>>,
}

impl<I: Backend> Moments<I> {
    /// Bytes of the moments as they are stored.
    pub(super) fn bytes(&self) -> u64 {
        let tensors = 1 + u64::from(self.second.is_some());
        tensors * (self.first.shape().num_elements() * size_of::<f32>()) as u64
    }

    /// Numbers in each moment, 0 for one that there is not.
    pub(crate) fn lengths(&self) -> [usize; 2] {
        let length = |tensor: &FloatTensor<I>| tensor.shape().num_elements();
        [length(&self.first), self.second.as_ref().map_or(0, length)]
    }

    /// Takes other numbers for the same tensors.
    pub(super) fn replace(&mut self, numbers: Pair, device: &I::Device) -> anyhow::Result<()> {
        let found = numbers.each_ref().map(Vec::len);
        ensure!(found == self.lengths(), "{found:?} numbers were saved, of {:?}", self.lengths());
        for (tensor, numbers) in [Some(&mut self.first), self.second.as_mut()].into_iter().zip(numbers) {
            if let Some(tensor) = tensor {
                let data = TensorData::new(numbers, tensor.shape());
                *tensor = I::float_from_data(data, device);
            }
        }
        Ok(())
    }

    pub(super) fn of_adamw<const D: usize>(state: AdamWState<I, D>) -> Self {
        let momentum = state.momentum;
        Self {
            time: momentum.time,
            first: erased(momentum.moment_1),
            second: Some(erased(momentum.moment_2)),
        }
    }

    /// Panics where a checkpoint of another optimizer was not refused on loading.
    pub(super) fn into_adamw<const D: usize>(self) -> AdamWState<I, D> {
        let second = self.second.expect("AdamW's state has two moments");
        AdamWState::new(AdaptiveMomentumState {
            time: self.time,
            moment_1: ranked(self.first),
            moment_2: ranked(second),
            max_moment_2: None,
        })
    }

    pub(super) fn of_velocity<const D: usize>(velocity: Tensor<I, D>) -> Self {
        Self { time: 0, first: erased(velocity), second: None }
    }

    pub(super) fn into_velocity<const D: usize>(self) -> Tensor<I, D> {
        ranked(self.first)
    }
}

fn erased<I: Backend, const D: usize>(tensor: Tensor<I, D>) -> FloatTensor<I> {
    tensor.into_primitive().tensor()
}

fn ranked<I: Backend, const D: usize>(tensor: FloatTensor<I>) -> Tensor<I, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}
