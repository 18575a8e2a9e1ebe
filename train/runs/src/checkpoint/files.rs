//! Names of a checkpoint's files.

/// The weights, in the layout of this project's own models.
pub const WEIGHTS: &str = "model.safetensors";
/// The optimizer's state of each parameter.
pub const MOMENTS: &str = "optimizer.safetensors";
/// The run's progress: its step and other numbers.
pub const STATE: &str = "state.json";
/// The complete configuration. A run directory has one of the same name.
pub const CONFIG: &str = "config.json";
/// Identities of the indexed texts, for a model with `longest_match`.
pub const INDEXES: &str = "indexes.json";
/// The tokenizer's folder. A run directory has one of the same name.
pub const TOKENIZER: &str = "tokenizer";
