//! Kinds of norms.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The norm of each sub-layer and the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Zero mean, unit variance.
    LayerNorm,
    /// Unit root mean square.
    RmsNorm,
}
