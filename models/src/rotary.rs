//! Rotary positions: angles, their stretching, the rotation of queries and keys.

use std::f64::consts::TAU;

use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::GptConfig;

/// Stretching of rotary positions beyond the pretraining length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Divides every frequency.
    Linear {
        /// New length over old.
        factor: f64,
    },
    /// Llama 3.1: divides low frequencies by `factor`, keeps high ones, and blends between.
    Llama3 {
        /// New length over old.
        factor: f64,
        /// Fewer turns than this in the original length are low.
        low_freq_factor: f64,
        /// More turns than this in the original length are high.
        high_freq_factor: f64,
        /// Length of pretraining, in positions.
        original_max_position_embeddings: usize,
    },
}

impl RopeScaling {
    /// Finite and above 0 only if all settings are, with a non-empty blend.
    pub(crate) fn weakest(self) -> f64 {
        match self {
            Self::Linear { factor } => factor,
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings,
            } => {
                let sizes = [factor, low, high - low, original_max_position_embeddings as f64];
                sizes.into_iter().reduce(|a, b| if a > 0.0 && a.is_finite() { b } else { a }).unwrap_or(0.0)
            }
        }
    }

    pub(crate) fn stretched(self, frequency: f64) -> f64 {
        match self {
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings,
            } => {
                let turns = original_max_position_embeddings as f64 * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rotation {
    None,
    Global,
    Local,
}

/// `[n_positions, rotated width]`, with equal halves.
#[derive(Module, Debug)]
pub struct Rotary<B: Backend> {
    cos: Tensor<B, 2>,
    sin: Tensor<B, 2>,
}

/// Rows of [`Rotary`] for a pass, `[1 or batch, 1, time, rotated width]`.
#[derive(Debug, Clone)]
pub(crate) struct Angles<B: Backend> {
    cos: Tensor<B, 4>,
    sin: Tensor<B, 4>,
}

/// Angle per position of a feature pair, before stretching.
pub(crate) fn frequency(theta: f64, pair: usize, width: usize) -> f64 {
    theta.powf(-2.0 * pair as f64 / width as f64)
}

impl<B: Backend> Rotary<B> {
    pub(crate) fn new(
        config: &GptConfig,
        theta: f64,
        scaling: Option<RopeScaling>,
        device: &B::Device,
    ) -> Self {
        let width = config.rotated_dim();
        let table = |turn: fn(f64) -> f64| {
            let angles = (0..config.n_positions).flat_map(|position| {
                (0..width).map(move |feature| {
                    let pair = feature % (width / 2);
                    let frequency = frequency(theta, pair, width);
                    let frequency = scaling.map_or(frequency, |scaling| scaling.stretched(frequency));
                    turn(position as f64 * frequency) as f32
                })
            });
            Tensor::from_data(TensorData::new(angles.collect(), [config.n_positions, width]), device)
        };
        Self { cos: table(f64::cos), sin: table(f64::sin) }
    }

    pub(crate) fn at(&self, positions: &PositionIds<B>) -> Angles<B> {
        let width = self.cos.dims()[1];
        let rows = |table: &Tensor<B, 2>| match positions {
            PositionIds::From { first, time } => {
                table.clone().slice_dim(0, *first..first + time).reshape([1, 1, *time, width])
            }
            PositionIds::PerRow(ids) => {
                let [batch, time] = ids.dims();
                table.clone().select(0, ids.clone().reshape([batch * time])).reshape([batch, 1, time, width])
            }
        };
        Angles { cos: rows(&self.cos), sin: rows(&self.sin) }
    }
}

impl<B: Backend> Angles<B> {
    /// Rotates feature `i` with `i + width / 2`, Llama's layout.
    pub(crate) fn rotate(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let (rotated, all) = (self.cos.dims()[3], x.dims()[3]);
        if rotated == all {
            return self.rotate_all(x);
        }
        let rest = x.clone().slice_dim(3, rotated..all);
        Tensor::cat(vec![self.rotate_all(x.slice_dim(3, 0..rotated)), rest], 3)
    }

    fn rotate_all(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let half = x.dims()[3] / 2;
        let first = x.clone().slice_dim(3, 0..half);
        let second = x.clone().slice_dim(3, half..2 * half);
        let dtype = x.dtype();
        x * self.cos.clone().cast(dtype)
            + Tensor::cat(vec![second.neg(), first], 3) * self.sin.clone().cast(dtype)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct PassAngles<B: Backend> {
    pub(crate) global: Angles<B>,
    pub(crate) local: Option<Angles<B>>,
}

impl<B: Backend> PassAngles<B> {
    pub(crate) fn of(&self, rotation: Rotation) -> Option<&Angles<B>> {
        match rotation {
            Rotation::None => None,
            Rotation::Global => Some(&self.global),
            Rotation::Local => self.local.as_ref(),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) enum PositionIds<B: Backend> {
    /// Alike in every row.
    From { first: usize, time: usize },
    /// `[batch, time]`.
    PerRow(Tensor<B, 2, Int>),
}
