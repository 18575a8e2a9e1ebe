//! One parameter's moments, in any number of dimensions.

use anyhow::ensure;
use burn::optim::{AdamWState, AdaptiveMomentumState};
use burn::tensor::{Tensor, TensorData, TensorMetadata, TensorPrimitive, backend::Backend, ops::FloatTensor};

use crate::ranks::Pair;

/// f32 counts to 2²⁴.
const LOW: usize = 1 << 24;

#[derive(Debug, Clone)]
pub(crate) struct Moments<I: Backend> {
    /// Steps taken, for AdamW's bias correction.
    pub(crate) time: usize,
    pub(crate) first: FloatTensor<I>,
    pub(crate) second: Option<FloatTensor<I>>,
}

impl<I: Backend> Moments<I> {
    pub(super) fn bytes(&self) -> u64 {
        let tensors = 1 + u64::from(self.second.is_some());
        tensors * (self.first.shape().num_elements() * size_of::<f32>()) as u64
    }

    /// The steps, exactly.
    pub(crate) fn time_in_two(&self) -> [f32; 2] {
        [self.time % LOW, self.time / LOW].map(|part| part as f32)
    }

    pub(super) fn set_time(&mut self, [low, high]: [f32; 2]) {
        self.time = low as usize + LOW * high as usize;
    }

    /// Numbers per moment; 0 for an absent one.
    pub(crate) fn lengths(&self) -> [usize; 2] {
        let length = |tensor: &FloatTensor<I>| tensor.shape().num_elements();
        [length(&self.first), self.second.as_ref().map_or(0, length)]
    }

    pub(super) fn zeros(shape: &[usize], second: bool, device: &I::Device) -> Self {
        let zeros = || I::float_from_data(TensorData::zeros::<f32, _>(shape.to_vec()), device);
        Self { time: 0, first: zeros(), second: second.then(zeros) }
    }

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

    pub(super) fn from_adamw<const D: usize>(state: AdamWState<I, D>) -> Self {
        let momentum = state.momentum;
        Self {
            time: momentum.time,
            first: without_dims(momentum.moment_1),
            second: Some(without_dims(momentum.moment_2)),
        }
    }

    /// Panics on another optimizer's state, which loading refuses.
    pub(super) fn into_adamw<const D: usize>(self) -> AdamWState<I, D> {
        let second = self.second.expect("AdamW's state has two moments");
        AdamWState::new(AdaptiveMomentumState {
            time: self.time,
            moment_1: with_dims(self.first),
            moment_2: with_dims(second),
            max_moment_2: None,
        })
    }

    pub(super) fn from_velocity<const D: usize>(velocity: Tensor<I, D>) -> Self {
        Self { time: 0, first: without_dims(velocity), second: None }
    }

    pub(super) fn into_velocity<const D: usize>(self) -> Tensor<I, D> {
        with_dims(self.first)
    }
}

fn without_dims<I: Backend, const D: usize>(tensor: Tensor<I, D>) -> FloatTensor<I> {
    tensor.into_primitive().tensor()
}

fn with_dims<I: Backend, const D: usize>(tensor: FloatTensor<I>) -> Tensor<I, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}
