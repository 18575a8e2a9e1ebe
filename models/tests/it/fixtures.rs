//! Small models, fixed batches, and the distance between tensors.

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use burn_flex::{Flex, FlexDevice};
use models::random::Random;
use models::{Batch, Gpt, GptConfig, Input, presets};

pub(crate) type Cpu = Flex;
pub(crate) type Tape = Autodiff<Flex>;

pub(crate) const DEVICE: FlexDevice = FlexDevice;

pub(crate) fn shrunk(preset: &str) -> GptConfig {
    let full = presets::preset(preset).expect("a preset");
    let small = GptConfig {
        n_layer: 3,
        n_head: 4,
        n_kv_head: full.n_kv_head.map(|_| 2),
        n_embd: 32,
        n_inner: full.n_inner.map(|_| 56),
        n_positions: 24,
        vocab_size: 61,
        ..full
    };
    small.validate().expect("the shrunk preset fits together");
    small
}

pub(crate) fn unusual() -> GptConfig {
    GptConfig {
        attention_softcap: Some(5.0),
        logit_softcap: Some(4.0),
        activation_function: models::Activation::GeluErf,
        norm_weights: true,
        attention_bias: true,
        mlp_bias: true,
        longest_match: true,
        n_kv_head: Some(2),
        init: models::Family::Gpt2,
        initializer_range: 0.3,
        ..shrunk("nanochat")
    }
}

pub(crate) fn model(config: &GptConfig) -> Gpt<Tape> {
    Gpt::new(config, 7, &DEVICE).expect("a valid configuration")
}

pub(crate) fn tokens<B: Backend>(
    rows: usize,
    time: usize,
    vocabulary: usize,
    seed: u64,
) -> Tensor<B, 2, Int> {
    let mut random = Random::new(seed);
    let ids = (0..rows * time).map(|_| (random.bits() % vocabulary as u64) as i32).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(ids, [rows, time]), &B::Device::default())
}

pub(crate) fn batch<B: Backend>(config: &GptConfig, rows: usize, time: usize) -> Batch<B> {
    Batch {
        inputs: Input {
            tokens: tokens(rows, time, config.vocab_size, 1),
            followers: config.longest_match.then(|| tokens(rows, time, config.vocab_size + 1, 3)),
            rows: None,
        },
        targets: tokens(rows, time, config.vocab_size, 2),
        mask: None,
    }
}

pub(crate) fn normal<B: Backend, const D: usize>(
    shape: [usize; D],
    seed: u64,
    dtype: burn::tensor::DType,
) -> Tensor<B, D> {
    let mut random = Random::new(seed);
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.normal()).collect();
    Tensor::from_data(TensorData::new(values, shape), (&B::Device::default(), dtype))
}

pub(crate) fn numbers<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

/// ‖a − b‖ / ‖b‖.
pub(crate) fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "tensors of different sizes have no distance");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let apart = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    assert!(apart.is_finite(), "a tensor holds a number that is not finite");
    if apart == 0.0 { 0.0 } else { apart / norm(&mut b.iter().copied()) }
}

pub(crate) fn named_values<M: AutodiffModule<Tape>>(
    module: &M,
    grads: Option<&GradientsParams>,
) -> Vec<(String, Vec<f64>)> {
    let mut collect = CollectValues { path: Vec::new(), grads, found: Vec::new() };
    module.visit(&mut collect);
    collect.found
}

struct CollectValues<'a> {
    path: Vec<String>,
    grads: Option<&'a GradientsParams>,
    found: Vec<(String, Vec<f64>)>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for CollectValues<'_> {
    models::keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let name = self.path.join(".");
        let values = match self.grads {
            Some(grads) => match grads.get::<B::InnerBackend, D>(param.id) {
                Some(grad) => numbers(&grad),
                None => panic!("`{name}` has no gradient"),
            },
            None => numbers(&param.val()),
        };
        self.found.push((name, values));
    }
}

pub(crate) fn assert_gradients_agree(
    model: &Gpt<Tape>,
    a: &GradientsParams,
    b: &GradientsParams,
    tolerance: f64,
) {
    assert_eq!(a.len(), b.len(), "the two sets hold different parameters");
    for ((name, a), (_, b)) in named_values(model, Some(a)).iter().zip(&named_values(model, Some(b))) {
        // A constant on all keys leaves attention unchanged: the key offset's gradient is rounding.
        let rounding_only = name.ends_with("key.bias") && b.iter().all(|g| g.abs() < 1e-6);
        let apart = if rounding_only { 0.0 } else { distance(a, b) };
        assert!(
            apart <= tolerance,
            "the gradients of `{name}` are {apart:.2e} apart, allowed {tolerance:.0e}"
        );
    }
}
