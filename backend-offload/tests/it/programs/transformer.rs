//! A language model of two or more blocks: causal attention, layer norm, GELU, tied or untied head.

use super::{Run, Size, run};
use crate::numbers::Series;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::backend::AutodiffBackend;

#[derive(Module, Debug)]
struct Transformer<B: Backend> {
    tokens: Embedding<B>,
    positions: Embedding<B>,
    blocks: Vec<Block<B>>,
    norm: LayerNorm<B>,
    /// `None` if the head is the token embedding, transposed.
    head: Option<Linear<B>>,
}

#[derive(Module, Debug)]
struct Block<B: Backend> {
    before_attention: LayerNorm<B>,
    query_key_value: Linear<B>,
    mix: Linear<B>,
    before_mlp: LayerNorm<B>,
    up: Linear<B>,
    down: Linear<B>,
    heads: usize,
}

impl<B: Backend> Transformer<B> {
    fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 2> {
        let [batch, length] = tokens.dims();
        let device = tokens.device();
        let positions = Tensor::arange(0..length as i64, &device).unsqueeze::<2>();
        let mut x = self.tokens.forward(tokens) + self.positions.forward(positions);
        for block in &self.blocks {
            x = x.clone() + block.attend(block.before_attention.forward(x));
            x = x.clone() + block.down.forward(gelu(block.up.forward(block.before_mlp.forward(x))));
        }
        let width = x.dims()[2];
        let x = self.norm.forward(x).reshape([batch * length, width]);
        match &self.head {
            Some(head) => head.forward(x),
            None => x.matmul(self.tokens.weight.val().transpose()),
        }
    }
}

impl<B: Backend> Block<B> {
    fn attend(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let [batch, length, width] = x.dims();
        let size = width / self.heads;
        let split = |part: Tensor<B, 3>| part.reshape([batch, length, self.heads, size]).swap_dims(1, 2);
        let parts = self.query_key_value.forward(x).chunk(3, 2);
        let [query, key, value] = parts.try_into().expect("three parts");
        let scores = split(query).matmul(split(key).transpose()) / (size as f64).sqrt();
        let future = Tensor::<B, 2, Bool>::tril_mask([length, length], 0, &scores.device());
        let scores =
            scores.mask_fill(future.unsqueeze::<4>().expand([batch, self.heads, length, length]), -1e9);
        let mixed = softmax(scores, 3).matmul(split(value));
        self.mix.forward(mixed.swap_dims(1, 2).reshape([batch, length, width]))
    }
}

pub fn train<B: AutodiffBackend, const TIED: bool>(
    device: &B::Device,
    size: Size,
    steps: usize,
    seed: u64,
) -> Run {
    let (batch, length, width, heads, vocabulary, blocks) = match size {
        Size::Usual => (2, 64, 128, 4, 512, 2),
        Size::Tiny => (2, 6, 8, 2, 11, 2),
        Size::Deep => (2, 64, 128, 4, 512, 6),
    };

    let block = || Block {
        before_attention: LayerNormConfig::new(width).init(device),
        query_key_value: LinearConfig::new(width, 3 * width).init(device),
        mix: LinearConfig::new(width, width).init(device),
        before_mlp: LayerNormConfig::new(width).init(device),
        up: LinearConfig::new(width, 4 * width).init(device),
        down: LinearConfig::new(4 * width, width).init(device),
        heads,
    };

    let model = Transformer::<B> {
        tokens: EmbeddingConfig::new(vocabulary, width).init(device),
        positions: EmbeddingConfig::new(length, width).init(device),
        blocks: (0..blocks).map(|_| block()).collect(),
        norm: LayerNormConfig::new(width).init(device),
        head: (!TIED).then(|| LinearConfig::new(width, vocabulary).with_bias(false).init(device)),
    };

    run(model, device, steps, seed, |model, step| {
        let data = Series::new(seed, &format!("batch {step}"));
        let tokens =
            Tensor::<B, 2, Int>::from_data(data.ints(&[batch, length + 1], vocabulary as u64), device);
        let scores = model.forward(tokens.clone().slice([0..batch, 0..length]));
        let next = tokens.slice([0..batch, 1..length + 1]).reshape([batch * length]);
        CrossEntropyLossConfig::new().init(device).forward(scores, next)
    })
}
