//! Models' normalisation, embedding, attention and losses.

use super::{Operation, Results, Value};
use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::nn::{GroupNormConfig, LayerNormConfig, RmsNormConfig};
use burn::tensor::activation::softmax;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::module::embedding;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "layer norm", run: layer_norm::<B> },
        Operation { name: "other norms", run: other_norms::<B> },
        Operation { name: "embedding", run: embed::<B> },
        Operation { name: "attention", run: attention::<B> },
        Operation { name: "losses", run: losses::<B> },
    ]
}

fn layer_norm<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [4, 9, 24]);
    let norm = LayerNormConfig::new(24).init::<B>(device);
    out.differentiate("layer norm", x.clone(), |x| norm.forward(x));
    out.differentiate("of a transpose", x.reshape([4, 24, 9]), |x| norm.forward(x.swap_dims(1, 2)));
    out.values
}

fn other_norms<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [4, 8, 6]);
    let rms = RmsNormConfig::new(6).init::<B>(device);
    out.differentiate("rms norm", x.clone(), |x| rms.forward(x));
    let group = GroupNormConfig::new(2, 8).init::<B>(device);
    out.differentiate("group norm", x, |x| group.forward(x));
    out.values
}

fn embed<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let weight = out.floats("weight", [50, 16]);
    // With more tokens than rows, a row's gradients add up.
    let tokens = out.ints("tokens", [4, 30], 50);
    out.differentiate("embedding", weight, |weight| embedding(weight, tokens));
    out.values
}

fn attention<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let shape = [2, 3, 10, 8];
    let operands = [out.floats("query", shape), out.floats("key", shape), out.floats("value", shape)];
    let mask = out.ints("mask", [10, 10], 4).equal_elem(0).unsqueeze::<4>().expand([2, 3, 10, 10]);
    out.differentiate_all("attention", operands, |[query, key, value]| {
        let scores = query.matmul(key.transpose()) / 8f64.sqrt();
        softmax(scores.mask_fill(mask, -1e9), 3).matmul(value)
    });
    out.values
}

fn losses<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (scores, labels) = (out.floats("scores", [16, 12]), out.ints("labels", [16], 12));
    let cross_entropy = CrossEntropyLossConfig::new().init::<B>(device);
    out.differentiate("cross entropy", scores.clone(), |scores| cross_entropy.forward(scores, labels));
    let target = out.floats("target", [16, 12]);
    out.differentiate("mean square", scores, |x| MseLoss::new().forward(x, target, Reduction::Mean));
    out.values
}
