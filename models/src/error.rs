//! Errors in a model's configuration, before any allocation.

use thiserror::Error;

/// A model configuration that cannot be built.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The text is not JSON.
    #[error("the model configuration is not valid JSON: {0}")]
    Syntax(#[source] serde_json::Error),
    /// The JSON is not an object.
    #[error("the model configuration must be a JSON object, found {found}")]
    NotAnObject {
        /// The value's JSON kind.
        found: &'static str,
    },
    /// An unknown key.
    #[error("unknown model key `{key}`; the nearest known key is `{nearest}`")]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The known key with the smallest edit distance.
        nearest: String,
    },
    /// One setting by two names, such as `n_embd` and `hidden_size`.
    #[error("`{key}` sets `{canonical}`, which is already set under another name; keep one of the two")]
    SetTwice {
        /// The second name.
        key: String,
        /// The setting.
        canonical: String,
    },
    /// A required size is missing.
    #[error("model key `{key}` is missing; without a preset {required} must be given")]
    Missing {
        /// The setting.
        key: &'static str,
        /// All required sizes.
        required: String,
    },
    /// A value of the wrong type.
    #[error("model key `{path}`: {reason}")]
    Value {
        /// Path of the value.
        path: String,
        /// The parser's message.
        reason: String,
    },
    /// An unknown preset.
    #[error("no model preset `{name}`; the presets are {known}")]
    UnknownPreset {
        /// The name.
        name: String,
        /// All known names.
        known: String,
    },
    /// A size of zero.
    #[error("`{key}` is 0, it must be at least 1")]
    Zero {
        /// The setting.
        key: &'static str,
    },
    /// A size that is not a multiple of another.
    #[error("`{key}` = {value} is not divisible by `{by}` = {divisor}; the nearest multiple is {nearest}")]
    NotDivisible {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: usize,
        /// The setting that should divide `key`.
        by: &'static str,
        /// Its value.
        divisor: usize,
        /// A multiple of `divisor` close to `value`.
        nearest: usize,
    },
    /// An odd head width: rotary positions rotate pairs.
    #[error("rotary positions need an even head width, but `n_embd` / `n_head` = {head_dim}")]
    OddHeadWidth {
        /// Features per head.
        head_dim: usize,
    },
    /// A number out of range.
    #[error("`{key}` = {value} must be {expected}")]
    OutOfRange {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The accepted range, in words.
        expected: &'static str,
    },
    /// Dropout on attention weights would need a T×T matrix.
    #[error(
        "`attn_pdrop` = {value}: dropout on attention weights is not supported, since attention never holds them; \
         set it to 0 and use `resid_pdrop`"
    )]
    AttentionDropout {
        /// The rate.
        value: f64,
    },
    /// Sizes whose products exceed the address space.
    #[error(
        "a model with n_layer = {n_layer}, n_embd = {n_embd}, n_inner = {n_inner}, n_positions = {n_positions}, \
         vocab_size = {vocab_size} has more bytes than an address can name; check the sizes for stray digits"
    )]
    TooLarge {
        /// Blocks.
        n_layer: usize,
        /// Width.
        n_embd: usize,
        /// MLP width, or 0 if derived from `n_embd`.
        n_inner: usize,
        /// Context length.
        n_positions: usize,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// A published setting that this network lacks.
    #[error("`{key}` = {value} in the published configuration asks for something this network does not do")]
    Unsupported {
        /// The key in the published file.
        key: String,
        /// Its value, as JSON.
        value: String,
    },
    /// More than one error.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Self>),
}

impl ConfigError {
    pub(crate) fn gather(mut wrong: Vec<Self>) -> Result<(), Self> {
        match (wrong.pop(), wrong.is_empty()) {
            (None, _) => Ok(()),
            (Some(only), true) => Err(only),
            (Some(last), false) => {
                wrong.push(last);
                Err(Self::Several(wrong))
            }
        }
    }
}
