//! Training programs that run on any backend.

mod conv;
mod mlp;
mod normalised;
mod recurrent;
mod transformer;

use crate::numbers::initialise;
use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::prelude::*;
use burn::tensor::backend::AutodiffBackend;
use std::cell::RefCell;
use std::str::FromStr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub losses: Vec<u32>,
    pub weights: Vec<(String, Vec<u32>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Most tensors reach 64 KiB, the smallest managed size.
    Usual,
    Tiny,
    Deep,
}

#[derive(Debug)]
pub struct Program<B: Backend> {
    pub name: &'static str,
    pub train: fn(&B::Device, Size, usize, u64) -> Run,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "usual" => Ok(Self::Usual),
            "tiny" => Ok(Self::Tiny),
            "deep" => Ok(Self::Deep),
            other => Err(format!("no size {other:?}")),
        }
    }
}

pub fn programs<B: AutodiffBackend>() -> [Program<B>; 6] {
    [
        Program { name: "mlp", train: mlp::train::<B> },
        Program { name: "conv", train: conv::train::<B> },
        Program { name: "normalised", train: normalised::train::<B> },
        Program { name: "recurrent", train: recurrent::train::<B> },
        Program { name: "transformer", train: transformer::train::<B, false> },
        Program { name: "tied transformer", train: transformer::train::<B, true> },
    ]
}

pub fn program<B: AutodiffBackend>(name: &str) -> Program<B> {
    programs().into_iter().find(|program| program.name == name).expect("a program's name")
}

thread_local! {
    static AFTER_STEP: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "steps are looked at on the stand-in for CUDA"))]
pub fn after_each_step(look: impl Fn() + 'static) {
    AFTER_STEP.set(Some(Box::new(look)));
}

fn run<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: M,
    device: &B::Device,
    steps: usize,
    seed: u64,
    loss: impl Fn(&M, usize) -> Tensor<B, 1>,
) -> Run {
    let optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
    run_with(optimizer, model, device, steps, seed, loss)
}

fn run_with<B: AutodiffBackend, M: AutodiffModule<B>>(
    mut optimizer: impl Optimizer<M, B>,
    model: M,
    device: &B::Device,
    steps: usize,
    seed: u64,
    loss: impl Fn(&M, usize) -> Tensor<B, 1>,
) -> Run {
    let mut model = initialise(model, device, seed);
    let mut losses = Vec::with_capacity(steps);
    for step in 0..steps {
        let loss = loss(&model, step);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
        losses.extend(bits(loss));
        AFTER_STEP.with_borrow(|look| look.iter().for_each(|look| look()));
    }
    let mut collect = Collect { path: Vec::new(), weights: Vec::new() };
    model.visit(&mut collect);
    Run { losses, weights: collect.weights }
}

fn bits<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

struct Collect {
    path: Vec<String>,
    weights: Vec<(String, Vec<u32>)>,
}

impl<B: Backend> ModuleVisitor<B> for Collect {
    fn enter_module(&mut self, name: &str, _kind: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _kind: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.weights.push((self.path.join("."), bits(param.val())));
    }
}

impl Run {
    pub fn fingerprint(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (&self.losses, &self.weights).hash(&mut hasher);
        hasher.finish()
    }
}
