//! `train.lora_base`: the checkpoint under a run's adapters.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokenizer::Fingerprint;

/// The checkpoint with the frozen weights, written by the tuning run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoraBase {
    /// Its folder, or its run's.
    pub path: PathBuf,
    /// Digest of its weights' file.
    #[schemars(with = "String")]
    pub sha256: Fingerprint,
}
