//! The names of a checkpoint's files. The store compares their bytes and reads none of them.

/// The weights, in the layout of this project's own models.
pub const WEIGHTS: &str = "model.safetensors";
/// The optimizer's state of each parameter.
pub const MOMENTS: &str = "optimizer.safetensors";
/// Where the run stood: the few numbers beside the tensors.
pub const STATE: &str = "state.json";
/// The configuration, complete. A run directory has one of the same name.
pub const CONFIG: &str = "config.json";
/// Which texts are looked up, where the model reads longest matches.
pub const INDEXES: &str = "indexes.json";
/// The tokenizer's folder. A run directory has one of the same name.
pub const TOKENIZER: &str = "tokenizer";
