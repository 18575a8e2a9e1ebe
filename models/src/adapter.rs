//! Low-rank adapters (`LoRA`): two small matrices beside each frozen projection learn.
//!
//! ```text
//! y = x · weight + bias + alpha / rank · dropout(x) · down · up
//! ```
//!
//! `up` starts at zero: fresh adapters change nothing (`fresh_adapters_leave_the_loss_of_the_base`). `down` is drawn as
//! PEFT draws it: uniform within ±1 / √inputs. Frozen weights have no gradient
//! (`only_adapters_have_gradients_with_and_without_recomputation`).

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::block::Block;
use crate::config::GptConfig;
use crate::dropout::{DropoutKey, Place, dropout};
use crate::gpt::Gpt;
use crate::parameters::ParameterInfo;
use crate::precision::Compute;
use crate::random::Random;

/// A projection of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Projection {
    /// Attention's queries.
    Query,
    /// Attention's keys.
    Key,
    /// Attention's values.
    Value,
    /// Attention's result onto the residual stream.
    Output,
    /// The MLP's gate, in gated networks.
    Gate,
    /// The MLP's input.
    Up,
    /// The MLP's result onto the residual stream.
    Down,
}

impl Projection {
    /// All projections.
    pub const ALL: [Self; 7] =
        [Self::Query, Self::Key, Self::Value, Self::Output, Self::Gate, Self::Up, Self::Down];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Query => "attention.query",
            Self::Key => "attention.key",
            Self::Value => "attention.value",
            Self::Output => "attention.output",
            Self::Gate => "mlp.gate",
            Self::Up => "mlp.up",
            Self::Down => "mlp.down",
        }
    }

    /// The projection by its weight's name, such as `blocks.0.mlp.up.weight`.
    fn of_weight(name: &str) -> Option<Self> {
        let (_, part) = name.strip_prefix("blocks.")?.split_once('.')?;
        let path = part.strip_suffix(".weight")?;
        Self::ALL.into_iter().find(|projection| projection.path() == path)
    }
}

/// Settings of adapters, with PEFT's defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoraConfig {
    /// Columns of `down` and rows of `up`.
    pub rank: usize,
    /// Adapters are scaled by `alpha / rank`.
    pub alpha: f64,
    /// Projections with an adapter; one that a network lacks is passed over.
    pub targets: Vec<Projection>,
    /// Share of an adapter's inputs that training drops.
    pub dropout: f64,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self { rank: 8, alpha: 8.0, targets: Projection::ALL.to_vec(), dropout: 0.0 }
    }
}

/// Adapters that a model cannot have.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum LoraError {
    /// A rank of zero, or above the width.
    #[error("`rank` = {rank} must be at least 1 and at most the model's `n_embd` = {width}")]
    Rank {
        /// The rank.
        rank: usize,
        /// Width of the residual stream.
        width: usize,
    },
    /// A scale of zero, or no number.
    #[error("`alpha` = {0} must be above 0")]
    Alpha(f64),
    /// No share below one.
    #[error("`dropout` = {0} must be at least 0 and below 1")]
    Dropout(f64),
    /// No target is in the network.
    #[error("`targets` names no projection of this model, so nothing would learn")]
    Targets,
}

impl LoraConfig {
    /// Whether `model` can have these adapters.
    pub fn check(&self, model: &GptConfig) -> Result<(), LoraError> {
        let Self { rank, alpha, dropout, .. } = *self;
        if !(1..=model.n_embd).contains(&rank) {
            return Err(LoraError::Rank { rank, width: model.n_embd });
        }
        if !(alpha.is_finite() && alpha > 0.0) {
            return Err(LoraError::Alpha(alpha));
        }
        if !(0.0..1.0).contains(&dropout) {
            return Err(LoraError::Dropout(dropout));
        }
        let has = |target: &Projection| *target != Projection::Gate || model.has_gate();
        if self.targets.iter().any(has) { Ok(()) } else { Err(LoraError::Targets) }
    }

    /// All adapters' parameters, in the order of the model's fields.
    pub fn parameters(&self, model: &GptConfig) -> Vec<ParameterInfo> {
        let adapters = |weight: ParameterInfo| {
            let is_target = |target| self.targets.contains(&target);
            Projection::of_weight(&weight.name).filter(|target| is_target(*target))?;
            let path = weight.name.strip_suffix("weight").expect("it is a projection's weight");
            let [inputs, outputs] = [weight.shape[0], weight.shape[1]];
            let shapes = [("down", vec![inputs, self.rank]), ("up", vec![self.rank, outputs])];
            let named = shapes.map(|(name, shape)| ParameterInfo {
                name: format!("{path}{ADAPTER}.{name}"),
                part: weight.part,
                shape,
            });
            Some(named)
        };
        model.parameters().into_iter().filter_map(adapters).flatten().collect()
    }

    /// Numbers in all adapters.
    pub fn elements(&self, model: &GptConfig) -> u64 {
        self.parameters(model).iter().map(ParameterInfo::elements).sum()
    }
}

const ADAPTER: &str = "adapter";

pub(crate) fn is_adapter(name: &str) -> bool {
    name.rsplit('.').nth(1) == Some(ADAPTER)
}

/// The two matrices beside a frozen projection.
#[derive(Module, Debug)]
pub struct Adapter<B: Backend> {
    /// `[inputs, rank]`.
    pub down: Param<Tensor<B, 2>>,
    /// `[rank, outputs]`.
    pub up: Param<Tensor<B, 2>>,
    #[module(skip)]
    scale: f64,
    #[module(skip)]
    dropout: f64,
    #[module(skip)]
    place: Place,
}

impl<B: Backend> Adapter<B> {
    fn new(lora: &LoraConfig, mut random: Random, place: Place, weight: &Param<Tensor<B, 2>>) -> Self {
        let ([inputs, outputs], device) = (weight.lazy_shape().dims(), weight.lazy_device());
        let bound = 1.0 / (inputs as f64).sqrt();
        let drawn =
            (0..inputs * lora.rank).map(|_| ((2.0 * random.uniform() - 1.0) * bound) as f32).collect();
        let down = Tensor::from_data(TensorData::new(drawn, [inputs, lora.rank]), &device);
        Self {
            down: Param::from_tensor(down),
            up: Param::from_tensor(Tensor::zeros([lora.rank, outputs], &device)),
            scale: lora.alpha / lora.rank as f64,
            dropout: lora.dropout,
            place,
        }
    }

    /// The addition to `x`'s projection, wide. `x` is `[rows, inputs]` in the compute type.
    pub(crate) fn forward(&self, x: Tensor<B, 2>, key: Option<DropoutKey>, compute: Compute) -> Tensor<B, 2> {
        let x = dropout(x, self.dropout, key, self.place);
        // Scaled where the tensor is small.
        let inner = compute.product(x, compute.narrow(self.down.val())).mul_scalar(self.scale);
        compute.product(compute.narrow(inner), compute.narrow(self.up.val()))
    }

    /// Adds the adapter in the adapter's type, then rounds to the weight's.
    fn merge(&self, weight: Tensor<B, 2>) -> Tensor<B, 2> {
        let kind = weight.dtype();
        let added = self.down.val().matmul(self.up.val()).mul_scalar(self.scale);
        (weight.cast(added.dtype()) + added).cast(kind)
    }
}

impl<B: Backend> Gpt<B> {
    /// Freezes all parameters and adds adapters to the `targets`, drawn from `seed`.
    pub fn with_adapters(self, lora: &LoraConfig, seed: u64) -> Result<Self, LoraError> {
        lora.check(&self.config)?;
        let mut gpt = self.no_grad();
        for (layer, block) in gpt.blocks.iter_mut().enumerate() {
            for (projection, linear) in block.named_projections_mut() {
                if lora.targets.contains(&projection) {
                    let name = format!("blocks.{layer}.{}.{ADAPTER}.down", projection.path());
                    let random = Random::named(seed, &name);
                    let place = Place::Adapter(layer, projection);
                    linear.adapter = Some(Adapter::new(lora, random, place, &linear.weight));
                }
            }
        }
        Ok(gpt)
    }

    /// Whether only adapters learn.
    pub fn has_adapters(&self) -> bool {
        self.blocks.iter().flat_map(Block::projections).any(|projection| projection.adapter.is_some())
    }

    /// Adds the adapters to the weights, and drops them. All parameters learn again.
    #[must_use]
    pub fn merged(mut self) -> Self {
        if !self.has_adapters() {
            return self;
        }
        for projection in self.blocks.iter_mut().flat_map(Block::projections_mut) {
            if let Some(packed) = projection.packed.take() {
                projection.weight = projection.weight.clone().map(|_nan| packed.weights());
            }
            if let Some(adapter) = projection.adapter.take() {
                projection.weight = projection.weight.clone().map(|weight| adapter.merge(weight));
            }
        }
        self.map(&mut Thaw)
    }
}

struct Thaw;

impl<B: Backend> ModuleMapper<B> for Thaw {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|tensor| tensor.detach().require_grad())
    }
}
