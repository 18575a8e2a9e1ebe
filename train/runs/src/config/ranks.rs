//! The section `ranks`: how the processes of one run sum their gradients.

use serde::{Deserialize, Serialize};

/// The exchange between the processes of a run. One process exchanges nothing and ignores this section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RanksSection {
    /// How gradients are summed.
    pub exchange: ExchangeKind,
    /// First steps of the run whose sums are exact (`one_bit`).
    pub warm_up: u64,
}

/// How gradients are summed over the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeKind {
    /// In f32, to the bits of one process.
    Exact,
    /// A sign per element and a scale for each 2048, with error feedback: about a 31st of the bytes, and other numbers.
    OneBit,
}

impl Default for RanksSection {
    fn default() -> Self {
        Self { exchange: ExchangeKind::Exact, warm_up: 100 }
    }
}
