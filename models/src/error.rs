//! Errors in a model's configuration, reported before anything is allocated.

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
        /// The kind of JSON value found instead.
        found: &'static str,
    },
    /// A key nobody knows.
    #[error("unknown model key `{key}`; the nearest known key is `{nearest}`")]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The known key with the smallest edit distance.
        nearest: String,
    },
    /// One setting under two names, for example `n_embd` and `hidden_size`.
    #[error("`{key}` sets `{canonical}`, which is already set under another name; keep one of the two")]
    SetTwice {
        /// The second spelling.
        key: String,
        /// The setting both name.
        canonical: String,
    },
    /// A size that nothing implies is not given.
    #[error("model key `{key}` is missing; without a preset {required} must be given")]
    Missing {
        /// The setting.
        key: &'static str,
        /// All sizes that have no default, comma separated.
        required: String,
    },
    /// A value of the wrong type.
    #[error("model key `{path}`: {reason}")]
    Value {
        /// Where in the configuration.
        path: String,
        /// The parser's message, which says what was expected.
        reason: String,
    },
    /// No preset of that name.
    #[error("no model preset `{name}`; the presets are {known}")]
    UnknownPreset {
        /// The name asked for.
        name: String,
        /// All names, comma separated.
        known: String,
    },
    /// A size that must be at least one.
    #[error("`{key}` is 0, it must be at least 1")]
    Zero {
        /// The setting.
        key: &'static str,
    },
    /// Two sizes that must divide.
    #[error("`{key}` = {value} is not divisible by `{by}` = {divisor}; the nearest multiple is {nearest}")]
    NotDivisible {
        /// The setting that should be a multiple.
        key: &'static str,
        /// Its value.
        value: usize,
        /// The setting that should divide it.
        by: &'static str,
        /// Its value.
        divisor: usize,
        /// A multiple of `divisor` close to `value`.
        nearest: usize,
    },
    /// Rotary positions turn pairs of features.
    #[error("rotary positions need an even head width, but `n_embd` / `n_head` = {head_dim}")]
    OddHeadWidth {
        /// Features per head.
        head_dim: usize,
    },
    /// A number outside its meaning.
    #[error("`{key}` = {value} must be {expected}")]
    OutOfRange {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The accepted range, in words.
        expected: &'static str,
    },
    /// Dropout on attention weights would need the T×T matrix this crate never builds.
    #[error(
        "`attn_pdrop` = {value}: dropout on attention weights is not supported, since attention never holds them; \
         set it to 0 and use `resid_pdrop`"
    )]
    AttentionDropout {
        /// The rate asked for.
        value: f64,
    },
    /// Sizes whose products do not fit the address space.
    #[error(
        "a model with n_layer = {n_layer}, n_embd = {n_embd}, n_inner = {n_inner}, n_positions = {n_positions}, \
         vocab_size = {vocab_size} has more bytes than an address can name; check the sizes for stray digits"
    )]
    TooLarge {
        /// Blocks.
        n_layer: usize,
        /// Width.
        n_embd: usize,
        /// MLP width, 0 where it follows from `n_embd`.
        n_inner: usize,
        /// Context length.
        n_positions: usize,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// A published configuration asks for a mechanism this network does not have.
    #[error("`{key}` = {value} in the published configuration asks for something this network does not do")]
    Unsupported {
        /// The key in the published file.
        key: String,
        /// Its value, as JSON.
        value: String,
    },
    /// More than one of these.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Self>),
}

impl ConfigError {
    /// One error for all of `wrong`.
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
