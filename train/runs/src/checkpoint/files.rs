//! Names of a checkpoint's files.

/// The weights, in the native layout.
pub const WEIGHTS: &str = "model.safetensors";
/// The optimizer's state.
pub const MOMENTS: &str = "optimizer.safetensors";
/// The run's progress: its step and other numbers.
pub const STATE: &str = "state.json";
/// The complete configuration. The run directory has it too.
pub const CONFIG: &str = "config.json";
/// Identities of indexed texts (`longest_match`).
pub const INDEXES: &str = "indexes.json";
/// The tokenizer's folder. The run directory has it too.
pub const TOKENIZER: &str = "tokenizer";
