//! A classifier of three or more fully connected layers.

use super::{Run, Size, run};
use crate::numbers::Series;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::activation::relu;
use burn::tensor::backend::AutodiffBackend;

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    input: Linear<B>,
    hidden: Vec<Linear<B>>,
    output: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let x = relu(self.input.forward(x));
        let x = self.hidden.iter().fold(x, |x, layer| relu(layer.forward(x)));
        self.output.forward(x)
    }
}

pub fn train<B: AutodiffBackend>(device: &B::Device, size: Size, steps: usize, seed: u64) -> Run {
    let (batch, inputs, width, classes, layers) = match size {
        Size::Usual => (64, 256, 512, 64, 1),
        Size::Tiny => (4, 8, 12, 5, 1),
        Size::Deep => (64, 256, 256, 64, 32),
    };
    let model = Mlp::<B> {
        input: LinearConfig::new(inputs, width).init(device),
        hidden: (0..layers).map(|_| LinearConfig::new(width, width).init(device)).collect(),
        output: LinearConfig::new(width, classes).init(device),
    };
    run(model, device, steps, seed, |model, step| {
        let data = Series::new(seed, &format!("batch {step}"));
        let x = Tensor::from_data(data.floats(&[batch, inputs], 1.0), device);
        let labels = Tensor::from_data(data.ints(&[batch], classes as u64), device);
        CrossEntropyLossConfig::new().init(device).forward(model.forward(x), labels)
    })
}
