//! An image classifier whose rounding shows fusion's cuts: batch norm, leaky ReLU, `SiLU`, SGD with momentum.

use super::{Run, Size, run_with};
use crate::numbers::Series;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::prelude::*;
use burn::tensor::activation::{leaky_relu, silu};
use burn::tensor::backend::AutodiffBackend;

#[derive(Module, Debug)]
struct Normalised<B: Backend> {
    first: Conv2d<B>,
    first_norm: BatchNorm<B>,
    second: Conv2d<B>,
    second_norm: BatchNorm<B>,
    output: Linear<B>,
}

impl<B: Backend> Normalised<B> {
    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = leaky_relu(self.first_norm.forward(self.first.forward(x)), 0.01);
        let x = silu(self.second_norm.forward(self.second.forward(x)));
        self.output.forward(x.mean_dim(3).flatten(1, 3))
    }
}

pub fn train<B: AutodiffBackend>(device: &B::Device, size: Size, steps: usize, seed: u64) -> Run {
    let (batch, side, narrow, wide, classes) = match size {
        Size::Usual | Size::Deep => (8, 32, 32, 64, 16),
        Size::Tiny => (2, 8, 4, 8, 3),
    };
    let same = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let model = Normalised::<B> {
        first: Conv2dConfig::new([3, narrow], [3, 3]).with_padding(same.clone()).init(device),
        first_norm: BatchNormConfig::new(narrow).init(device),
        second: Conv2dConfig::new([narrow, wide], [3, 3]).with_padding(same).init(device),
        second_norm: BatchNormConfig::new(wide).init(device),
        output: LinearConfig::new(wide * side, classes).init(device),
    };
    let optimizer = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
    run_with(optimizer, model, device, steps, seed, |model, step| {
        let data = Series::new(seed, &format!("batch {step}"));
        let x = Tensor::from_data(data.floats(&[batch, 3, side, side], 1.0), device);
        let labels = Tensor::from_data(data.ints(&[batch], classes as u64), device);
        CrossEntropyLossConfig::new().init(device).forward(model.forward(x), labels)
    })
}
