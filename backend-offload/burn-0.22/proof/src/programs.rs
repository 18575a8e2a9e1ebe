//! Programs whose weights reveal any changed bit: an MLP and a small transformer, both trained under autodiff.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData, activation};

const STEPS: usize = 4;
const LEARNING_RATE: f64 = 1e-3;

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
}

#[derive(Module, Debug)]
struct Language {
    embed: Linear,
    blocks: TransformerEncoder,
    head: Linear,
}

/// Numbers in -1..1 from a fixed sequence.
fn data(shape: &[usize], seed: u64) -> TensorData {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    TensorData::new(values, shape.to_vec())
}

/// Runs a program by name on a device with autodiff. Returns a digest of losses and weights.
pub fn run(name: &str, device: &Device, after_step: impl FnMut()) -> u64 {
    device.seed(7);
    match name {
        "mlp" => mlp(device, after_step),
        "transformer" => transformer(device, after_step),
        other => panic!("no program is called {other}"),
    }
}

fn mlp(device: &Device, after_step: impl FnMut()) -> u64 {
    const WIDTH: usize = 256;
    let layers = (0..40).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect();
    let input = Tensor::<2>::from_data(data(&[128, WIDTH], 1), device);
    let target = Tensor::<2>::from_data(data(&[128, WIDTH], 2), device);
    let loss = |model: &Mlp| {
        let output = model
            .layers
            .iter()
            .fold(input.clone(), |x, layer| activation::gelu(layer.forward(x)) * 1.5 + 0.01);
        (output - target.clone()).powi_scalar(2).mean()
    };
    train(Mlp { layers }, loss, after_step)
}

fn transformer(device: &Device, after_step: impl FnMut()) -> u64 {
    const WIDTH: usize = 128;
    let model = Language {
        embed: LinearConfig::new(WIDTH, WIDTH).init(device),
        blocks: TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, 2).with_dropout(0.0).init(device),
        head: LinearConfig::new(WIDTH, 2 * WIDTH).init(device),
    };
    let input = Tensor::<3>::from_data(data(&[4, 64, WIDTH], 3), device);
    let target = Tensor::<3>::from_data(data(&[4, 64, 2 * WIDTH], 4), device);
    let loss = |model: &Language| {
        let hidden = model.blocks.forward(TransformerEncoderInput::new(model.embed.forward(input.clone())));
        let output = activation::log_softmax(model.head.forward(hidden), 2);
        (output - target.clone()).powi_scalar(2).mean()
    };
    train(model, loss, after_step)
}

fn train<M: Module>(mut model: M, loss: impl Fn(&M) -> Tensor<1>, mut after_step: impl FnMut()) -> u64 {
    let mut optimizer = AdamWConfig::new().init();
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    for _ in 0..STEPS {
        let loss = loss(&model);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        digest.add(&loss.into_data());
        model = optimizer.step(LEARNING_RATE, model, gradients);
        after_step();
    }
    model.visit(&mut digest);
    digest.0
}

/// FNV-1a over tensors' bytes.
struct Digest(u64);

impl Digest {
    fn add(&mut self, data: &TensorData) {
        for byte in data.as_bytes() {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl ModuleVisitor for Digest {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(&param.val().into_data());
    }
}
