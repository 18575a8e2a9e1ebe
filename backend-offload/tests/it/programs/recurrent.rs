//! A classifier of sequences: one or more LSTMs, then a linear layer over the last state.

use super::{Run, Size, run};
use crate::numbers::Series;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::prelude::*;
use burn::tensor::backend::AutodiffBackend;

#[derive(Module, Debug)]
struct Recurrent<B: Backend> {
    cell: Lstm<B>,
    further: Vec<Lstm<B>>,
    output: Linear<B>,
}

impl<B: Backend> Recurrent<B> {
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 2> {
        let (mut states, mut last) = self.cell.forward(x, None);
        for cell in &self.further {
            (states, last) = cell.forward(states, None);
        }
        self.output.forward(last.hidden)
    }
}

pub fn train<B: AutodiffBackend>(device: &B::Device, size: Size, steps: usize, seed: u64) -> Run {
    let (batch, length, inputs, width, classes, further) = match size {
        Size::Usual => (64, 6, 128, 256, 64, 0),
        Size::Tiny => (2, 3, 4, 6, 3, 0),
        Size::Deep => (64, 6, 128, 256, 64, 2),
    };
    let model = Recurrent::<B> {
        cell: LstmConfig::new(inputs, width, true).init(device),
        further: (0..further).map(|_| LstmConfig::new(width, width, true).init(device)).collect(),
        output: LinearConfig::new(width, classes).init(device),
    };
    run(model, device, steps, seed, |model, step| {
        let data = Series::new(seed, &format!("batch {step}"));
        let x = Tensor::from_data(data.floats(&[batch, length, inputs], 1.0), device);
        let labels = Tensor::from_data(data.ints(&[batch], classes as u64), device);
        CrossEntropyLossConfig::new().init(device).forward(model.forward(x), labels)
    })
}
