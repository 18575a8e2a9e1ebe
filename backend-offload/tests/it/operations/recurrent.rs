//! Recurrent cells over short sequences.

use super::{Operation, Results, Value};
use crate::numbers::initialise;
use burn::nn::gru::GruConfig;
use burn::nn::lstm::LstmConfig;
use burn::tensor::backend::AutodiffBackend;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![Operation { name: "lstm", run: lstm::<B> }, Operation { name: "gru", run: gru::<B> }]
}

fn lstm<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let cell = initialise(LstmConfig::new(10, 14, true).init::<B>(device), device, 5);
    let x = out.floats("x", [3, 6, 10]);
    out.differentiate("lstm", x, |x| cell.forward(x, None).0);
    out.values
}

fn gru<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let cell = initialise(GruConfig::new(10, 14, true).init::<B>(device), device, 5);
    let x = out.floats("x", [3, 6, 10]);
    out.differentiate("gru", x, |x| cell.forward(x, None));
    out.values
}
