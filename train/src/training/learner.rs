//! The network with the settings of its passes, and the validation pass.

use std::ops::Deref;

use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use burn_train::InferenceStep;
use models::rows::RowsOnDemand;
use models::{Batch, Chunks, Gpt, Input, InputForm, PassOptions, Plain};
use runs::config::Config;

use crate::data::MicroBatch;
use crate::progress::Validation;

#[derive(Module, Debug)]
pub(crate) struct Learner<B: Backend> {
    pub(crate) gpt: Gpt<B>,
    #[module(skip)]
    pub(super) pass: Pass,
}

#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) seed: u64,
    pub(super) recompute: Option<usize>,
    pub(super) together: usize,
    pub(super) z_loss: f64,
    pub(super) kept_inputs: InputForm,
}

impl<B: Backend> Learner<B> {
    pub(crate) fn new(gpt: Gpt<B>, config: &Config) -> Self {
        let train = &config.train;
        let pass = Pass {
            seed: train.seed,
            recompute: train.recompute,
            together: train.together.count().unwrap_or(1),
            z_loss: train.z_loss,
            kept_inputs: config.memory.activations,
        };
        Self { gpt, pass }
    }

    #[must_use]
    pub(crate) fn together(mut self, count: usize) -> Self {
        self.pass.together = count;
        self
    }

    pub(crate) fn map_gpt<T>(self, change: impl FnOnce(Gpt<B>) -> (Gpt<B>, T)) -> (Self, T) {
        let (gpt, more) = change(self.gpt);
        (Self { gpt, pass: self.pass }, more)
    }
}

pub(super) struct Model<B: Backend>(Option<Learner<B>>);

const TAKEN: &str = "the loop has begun, and no update is under way";

impl<B: Backend> Default for Model<B> {
    fn default() -> Self {
        Self(None)
    }
}

impl<B: Backend> From<Learner<B>> for Model<B> {
    fn from(learner: Learner<B>) -> Self {
        Self(Some(learner))
    }
}

impl<B: Backend> Deref for Model<B> {
    type Target = Learner<B>;

    fn deref(&self) -> &Learner<B> {
        self.0.as_ref().expect(TAKEN)
    }
}

impl<B: Backend> Model<B> {
    /// Replaces the network in the same memory.
    pub(super) fn update<T>(&mut self, change: impl FnOnce(Gpt<B>) -> (Gpt<B>, T)) -> T {
        let (learner, more) = self.take().map_gpt(change);
        self.0 = Some(learner);
        more
    }

    pub(super) fn take(&mut self) -> Learner<B> {
        self.0.take().expect(TAKEN)
    }
}

impl<B: Backend> InferenceStep for Learner<B> {
    type Input = MicroBatch;
    type Output = Validation;

    fn step(&self, micro_batch: MicroBatch) -> Validation {
        let counted = micro_batch.counted();
        // Sums of batches of different sizes add up to one exact mean.
        let options = PassOptions { divisor: Some(1.0), ..PassOptions::default() };
        let batch = micro_batch.upload::<B>(self.gpt.rows_on_demand(), &self.gpt.wte.device());
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
    /// Includes the embedding's rows if it comes by rows.
    pub(super) fn upload<B: Backend>(&self, rows: Option<&RowsOnDemand>, device: &B::Device) -> Batch<B> {
        let shape = [self.rows, self.inputs.len() / self.rows];
        let ids = |ids: &[i32]| Tensor::<B, 2, Int>::from_data(TensorData::new(ids.to_vec(), shape), device);
        Batch {
            inputs: Input {
                followers: self.followers.as_deref().map(ids),
                ..Input::of_tokens(self.inputs.clone(), shape, rows, device)
            },
            targets: ids(&self.targets),
            mask: self
                .mask
                .as_ref()
                .map(|mask| Tensor::from_data(TensorData::new(mask.clone(), shape), device)),
        }
    }
}
