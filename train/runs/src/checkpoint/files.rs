//! Names of a checkpoint's files.

/// The weights, in the native layout.
pub const WEIGHTS: &str = "model.safetensors";
/// The optimizer's state.
pub const MOMENTS: &str = "optimizer.safetensors";
/// The run's progress.
pub const STATE: &str = "state.json";
/// The complete configuration, as in the run directory.
pub const CONFIG: &str = "config.json";
/// Identities of indexed texts (`longest_match`).
pub const INDEXES: &str = "indexes.json";
/// The tokenizer's folder, as in the run directory.
pub const TOKENIZER: &str = "tokenizer";
