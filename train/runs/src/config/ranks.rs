//! The section `ranks`: how processes sum gradients.

use schemars::JsonSchema;
use serde::de::{Error, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

use super::Round;

/// The exchange between processes; unused by a single one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RanksSection {
    /// How gradients are summed.
    #[serde(deserialize_with = "exchange")]
    pub exchange: ExchangeKind,
    /// First steps with exact sums (`one_bit`).
    pub warm_up: u64,
    /// Local steps between exchanges of weights: "50 steps", "60 s", or "as in DIRECTORY", which repeats a run's counts
    /// (`rarely`).
    pub round: Round,
    /// Rate of the outer step of the common weights by the mean change, which 1 adds (`rarely`).
    pub outer_rate: f64,
    /// Nesterov momentum of the outer step; 0.9 diverges, since means arrive a round late (`rarely`).
    pub outer_momentum: f64,
    /// How changes of weights travel (`rarely`).
    pub changes: ChangesKind,
    /// Stages of consecutive blocks that processes divide the network into; their number must be a multiple.
    pub pipeline: usize,
}

/// How ranks sum gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeKind {
    /// In f32, bit-identical to one process.
    Exact,
    /// Rounded to bf16 on the way: half of the bytes, other bits than one process.
    Bf16,
    /// A sign per element and a scale per 2048, with error feedback: a 31st of the bytes.
    OneBit,
    /// No gradients: processes exchange changes of weights once per `round`, which arrive during the next one.
    Rarely,
}

/// How ranks send what a round has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangesKind {
    /// In f32.
    #[default]
    F32,
    /// A sign per element and a scale per 2048, with error feedback: a 31st of the bytes.
    OneBit,
}

fn exchange<'de, D: Deserializer<'de>>(value: D) -> Result<ExchangeKind, D::Error> {
    let name = String::deserialize(value)?;
    if name == "late" {
        let reason = "`late` was removed; use `exact`, which sums gradients during the backward pass, or `rarely` for slow links";
        return Err(D::Error::custom(reason));
    }
    ExchangeKind::deserialize(name.into_deserializer())
}

impl Default for RanksSection {
    fn default() -> Self {
        Self {
            exchange: ExchangeKind::Exact,
            warm_up: 100,
            round: Round::Steps(50),
            outer_rate: 0.7,
            outer_momentum: 0.6,
            changes: ChangesKind::F32,
            pipeline: 1,
        }
    }
}
