//! An image classifier: two or more convolutions with pooling and group norm, then a linear layer.

use super::{Run, Size, run};
use crate::numbers::Series;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AvgPool2d, AvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{GroupNorm, GroupNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::prelude::*;
use burn::tensor::activation::relu;
use burn::tensor::backend::AutodiffBackend;

#[derive(Module, Debug)]
struct ConvNet<B: Backend> {
    first: Conv2d<B>,
    norm: GroupNorm<B>,
    sharpen: MaxPool2d,
    second: Conv2d<B>,
    smooth: AvgPool2d,
    further: Vec<Conv2d<B>>,
    output: Linear<B>,
}

impl<B: Backend> ConvNet<B> {
    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = self.norm.forward(self.first.forward(x));
        let x = self.sharpen.forward(relu(x));
        let x = self.smooth.forward(relu(self.second.forward(x)));
        let x = self.further.iter().fold(x, |x, layer| relu(layer.forward(x)));
        self.output.forward(x.flatten(1, 3))
    }
}

pub fn train<B: AutodiffBackend>(device: &B::Device, size: Size, steps: usize, seed: u64) -> Run {
    let (batch, side, narrow, wide, classes, further) = match size {
        Size::Usual => (8, 32, 32, 64, 16, 0),
        Size::Tiny => (2, 8, 4, 8, 3, 0),
        Size::Deep => (2, 32, 16, 96, 8, 12),
    };
    let same = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let model = ConvNet::<B> {
        first: Conv2dConfig::new([3, narrow], [3, 3]).with_padding(same.clone()).init(device),
        norm: GroupNormConfig::new(4, narrow).init(device),
        sharpen: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        second: Conv2dConfig::new([narrow, wide], [3, 3]).with_padding(same.clone()).init(device),
        smooth: AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        further: (0..further)
            .map(|_| Conv2dConfig::new([wide, wide], [3, 3]).with_padding(same.clone()).init(device))
            .collect(),
        output: LinearConfig::new(wide * (side / 4) * (side / 4), classes).init(device),
    };
    run(model, device, steps, seed, |model, step| {
        let data = Series::new(seed, &format!("batch {step}"));
        let x = Tensor::from_data(data.floats(&[batch, 3, side, side], 1.0), device);
        let labels = Tensor::from_data(data.ints(&[batch], classes as u64), device);
        CrossEntropyLossConfig::new().init(device).forward(model.forward(x), labels)
    })
}
