//! The network as Burn's training sees it: a step over everything one update learns from, and a step of validation.
//!
//! Memory failures surface where a result is read. So a pass reads its loss and the norm of its gradients, and reports
//! a failure with them; nobody may update the model before he has looked at it.

use burn::backend::Autodiff;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{
    Int, Tensor, TensorData,
    backend::{AutodiffBackend, Backend},
};
use burn_train::{InferenceStep, TrainOutput, TrainStep};
use models::{Batch, Chunks, DropoutKey, Gpt, Lean, PassOptions, Plain, recompute};

use super::report::{Report, Validation};
use crate::config::Config;
use crate::data::{MicroBatch, StepData};
use crate::optimizer::global_norm;

/// The network, and how passes over it are made.
#[derive(Module, Debug)]
pub(crate) struct Learner<B: Backend> {
    pub(crate) gpt: Gpt<B>,
    #[module(skip)]
    pass: Pass,
}

/// What passes have in common.
#[derive(Debug, Clone)]
struct Pass {
    seed: u64,
    recompute: Option<usize>,
    z_loss: f64,
}

impl<B: Backend> Learner<B> {
    pub(crate) fn new(gpt: Gpt<B>, config: &Config) -> Self {
        let train = &config.train;
        let pass = Pass { seed: train.seed, recompute: train.recompute, z_loss: train.z_loss };
        Self { gpt, pass }
    }

    /// The same passes over what `change` makes of the network.
    pub(crate) fn map_gpt(self, change: impl FnOnce(Gpt<B>) -> Gpt<B>) -> Self {
        Self { gpt: change(self.gpt), pass: self.pass }
    }
}

impl<I: Backend> TrainStep for Learner<Autodiff<I>> {
    type Input = StepData;
    type Output = Report;

    /// Gradients of all micro-batches together, as those of one large batch: each weighs as much as it has targets.
    fn step(&self, data: StepData) -> TrainOutput<Report> {
        let divisor = data.counted();
        let device = self.gpt.wte.device();
        let mut grads = GradientsParams::new();
        let mut numbers = Vec::with_capacity(data.micro_batches.len() + 1);
        for (n, micro_batch) in data.micro_batches.iter().enumerate() {
            let key = DropoutKey { seed: self.pass.seed, step: data.step, micro_batch: n as u64 };
            let options =
                PassOptions { dropout: Some(key), z_loss: self.pass.z_loss, divisor: Some(divisor) };
            let loss = self.backward(micro_batch.upload::<I>(&device), &options, &mut grads);
            numbers.push(loss);
        }
        let losses = numbers.len();
        numbers.push(global_norm(&self.gpt, &grads));
        let item = match Tensor::cat(numbers, 0).try_into_data() {
            Ok(numbers) => {
                let numbers: Vec<f32> = numbers.iter::<f32>().collect();
                let loss = numbers[..losses].iter().sum();
                Report { step: data.step, loss, gnorm: numbers[losses], ..Report::default() }
            }
            Err(error) => Report { step: data.step, failure: Some(error.to_string()), ..Report::default() },
        };
        TrainOutput { grads, item }
    }
}

impl<I: Backend> Learner<Autodiff<I>> {
    /// Adds a micro-batch's gradients to `sum`; returns its share of the loss.
    fn backward(&self, batch: Batch<I>, options: &PassOptions, sum: &mut GradientsParams) -> Tensor<I, 1> {
        let kernels = Lean(Chunks::default());
        if let Some(every) = self.pass.recompute {
            let (_, loss) =
                recompute::sweep(self.gpt.clone(), batch, options, kernels, every, |gpt, mut part| {
                    gpt.visit(&mut Add { from: &mut part, to: sum });
                    gpt
                });
            return loss;
        }
        let loss = self.gpt.loss(Batch::from_inner(batch), options, &kernels);
        let value = loss.clone().inner();
        let mut part = GradientsParams::from_grads(loss.backward(), &self.gpt);
        self.gpt.visit(&mut Add { from: &mut part, to: sum });
        value
    }
}

impl<B: Backend> InferenceStep for Learner<B> {
    type Input = MicroBatch;
    type Output = Validation;

    fn step(&self, micro_batch: MicroBatch) -> Validation {
        let counted = micro_batch.counted();
        // The sum, so that batches of different sizes add up to one exact mean.
        let options = PassOptions { divisor: Some(1.0), ..PassOptions::default() };
        let batch = micro_batch.upload::<B>(&self.gpt.wte.device());
        match self.gpt.loss(batch, &options, &Plain(Chunks::default())).try_into_data() {
            Ok(data) => {
                let sum = data.iter::<f64>().sum();
                Validation { sum, counted, failure: None }
            }
            Err(error) => Validation { sum: 0.0, counted, failure: Some(error.to_string()) },
        }
    }
}

impl MicroBatch {
    fn upload<B: Backend>(&self, device: &B::Device) -> Batch<B> {
        let shape = [self.rows, self.inputs.len() / self.rows];
        let ids = |ids: &[i32]| Tensor::<B, 2, Int>::from_data(TensorData::new(ids.to_vec(), shape), device);
        Batch {
            inputs: ids(&self.inputs),
            targets: ids(&self.targets),
            mask: self
                .mask
                .as_ref()
                .map(|mask| Tensor::from_data(TensorData::new(mask.clone(), shape), device)),
        }
    }
}

/// Adds some parameters' gradients to the whole set.
struct Add<'a> {
    from: &'a mut GradientsParams,
    to: &'a mut GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(part) = self.from.remove::<B::InnerBackend, D>(param.id) else { return };
        let sum = match self.to.remove::<B::InnerBackend, D>(param.id) {
            Some(sum) => sum + part,
            None => part,
        };
        self.to.register(param.id, sum);
    }
}
