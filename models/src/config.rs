//! A model's shape under Hugging Face names, parsed strictly.
//!
//! Unknown keys are refused with the nearest known name. Llama's names are aliases. Sizes and their products are
//! checked before any tensor exists.
//!
//! `{"preset": "gpt2", "n_layer": 4}` changes a preset. Without one, all but [`REQUIRED_KEYS`] default to GPT-2.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::ConfigError;
use crate::footprint::Footprint;
use crate::norm::NormKind;
use crate::precision::Compute;
use crate::presets;
use crate::rotary::{RopeScaling, Rotation};

/// Keys required without a preset.
pub const REQUIRED_KEYS: [&str; 5] = ["n_layer", "n_head", "n_embd", "n_positions", "vocab_size"];

/// How token positions enter the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// A trained vector per position, added to the token's.
    Learned,
    /// Queries and keys rotated by position (`RoPE`, Llama's half-split layout).
    Rope,
}

/// Position of a sub-layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// `x + f(norm(x))`.
    Before,
    /// `x + norm(f(x))`: `OLMo` 2.
    After,
    /// `x + norm(f(norm(x)))`: Gemma 2 and 3.
    Both,
}

/// The MLP's non-linearity, by its Hugging Face name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Activation {
    /// GELU by the tanh formula, as in GPT-2.
    #[serde(rename = "gelu_new", alias = "gelu_pytorch_tanh")]
    GeluTanh,
    /// GELU by the error function.
    #[serde(rename = "gelu")]
    GeluErf,
    /// `silu(gate) * up`: three matrices instead of two.
    #[serde(rename = "silu", alias = "swiglu")]
    SwiGlu,
    /// `gelu_tanh(gate) * up`: three matrices instead of two.
    #[serde(rename = "geglu")]
    GeGlu,
    /// `max(x, 0)²`.
    #[serde(rename = "relu2")]
    ReluSquared,
}

/// The column of [`crate::init`]'s table for a fresh model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Normal weights, residual projections scaled by depth.
    Gpt2,
    /// Normal weights throughout.
    Llama,
    /// Weights scaled by fan-in, output projections zero.
    Nanochat,
}

/// A network's configuration, with Hugging Face names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent yes or no of a published format")]
pub struct GptConfig {
    /// Blocks.
    pub n_layer: usize,
    /// Query heads per block.
    pub n_head: usize,
    /// Key and value heads; `None` for as many as query heads.
    pub n_kv_head: Option<usize>,
    /// Features per head; `None` for `n_embd / n_head`.
    pub head_dim: Option<usize>,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Width of the MLP; `None` for `4 * n_embd`.
    pub n_inner: Option<usize>,
    /// Longest sequence.
    pub n_positions: usize,
    /// Number of tokens.
    pub vocab_size: usize,
    /// How positions enter.
    pub positions: Positions,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Stretching of rotary positions.
    pub rope_scaling: Option<RopeScaling>,
    /// Base of the rotary frequencies in blocks with a window; `None` for the others' base.
    pub rope_local_theta: Option<f64>,
    /// Share of a head's features, from the first, that rotate.
    pub rope_share: f64,
    /// The last of every `n` blocks does not rotate.
    pub unrotated_every: Option<usize>,
    /// Visible positions, a query's own included; `None` for all earlier ones.
    pub window: Option<usize>,
    /// The last of every `n` blocks has no window.
    pub full_attention_every: Option<usize>,
    /// Kind of normalisation.
    pub norm: NormKind,
    /// Position of the norms of attention and MLP.
    pub norm_placement: NormPlacement,
    /// Whether attention and MLP read one residual stream.
    pub parallel_residual: bool,
    /// Whether norms have a trained scale.
    pub norm_weights: bool,
    /// Whether norms have a trained offset.
    pub norm_bias: bool,
    /// Added under the square root of each norm.
    pub layer_norm_epsilon: f64,
    /// Whether each head's queries and keys are normalised.
    pub qk_norm: bool,
    /// Whether that norm spans all heads.
    pub qk_norm_across_heads: bool,
    /// Factor on the embedding.
    pub embedding_scale: Option<f64>,
    /// Factor on attention scores; `None` for `1 / sqrt(head width)`.
    pub attention_scale: Option<f64>,
    /// Whether the embedding is normalised before the first block.
    pub embedding_norm: bool,
    /// Non-linearity of the MLP.
    pub activation_function: Activation,
    /// Whether the attention projections have offsets.
    pub attention_bias: bool,
    /// Whether attention's output projection has an offset; `None` for `attention_bias`.
    pub attention_output_bias: Option<bool>,
    /// Whether the MLP projections have offsets.
    pub mlp_bias: bool,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether the model reads each token's follower: the token after the text's longest earlier match.
    pub longest_match: bool,
    /// `c * tanh(logit / c)` on the output logits.
    pub logit_softcap: Option<f64>,
    /// `c * tanh(score / c)` on attention scores.
    pub attention_softcap: Option<f64>,
    /// Dropout after the embedding.
    pub embd_pdrop: f64,
    /// Dropout on each sub-layer's output.
    pub resid_pdrop: f64,
    /// Share of matches that training hides, with `longest_match`.
    pub match_pdrop: f64,
    /// Dropout on attention weights; must be 0.
    pub attn_pdrop: f64,
    /// Initialisation table.
    pub init: Family,
    /// Standard deviation of the table's normal weights.
    pub initializer_range: f64,
    /// Whether residual projections start smaller by `sqrt(2 * n_layer)`.
    pub scale_residual_init: bool,
    /// Type of matrix products.
    pub compute: Compute,
}

/// Other names of keys, and the keys.
pub const ALIASES: &[(&str, &str)] = &[
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("num_key_value_heads", "n_kv_head"),
    ("hidden_size", "n_embd"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
    ("n_ctx", "n_positions"),
    ("hidden_act", "activation_function"),
    ("rms_norm_eps", "layer_norm_epsilon"),
    ("final_logit_softcapping", "logit_softcap"),
    ("attn_logit_softcapping", "attention_softcap"),
    ("use_qk_norm", "qk_norm"),
    ("attention_dropout", "attn_pdrop"),
];

impl GptConfig {
    /// Parses and checks a JSON description.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Self::from_value(serde_json::from_str(text).map_err(ConfigError::Syntax)?)
    }

    /// Parses and checks a JSON value, such as a section. Reports all problems.
    pub fn from_value(value: Value) -> Result<Self, ConfigError> {
        let (mut given, mut wrong) = canonical_keys(object(value)?);
        let understood = wrong.len();
        let mut merged = object(presets::gpt2().to_value())?;
        match given.remove("preset") {
            Some(Value::String(name)) => match presets::preset(&name) {
                Ok(preset) => merged = object(preset.to_value())?,
                Err(unknown) => wrong.push(unknown),
            },
            Some(other) => wrong.push(ConfigError::Value {
                path: "preset".into(),
                reason: format!("expected a preset's name, found {other}"),
            }),
            None => {
                if let Some(key) = REQUIRED_KEYS.into_iter().find(|key| !given.contains_key(*key)) {
                    wrong.push(ConfigError::Missing { key, required: REQUIRED_KEYS.join(", ") });
                }
            }
        }

        for (key, value) in given {
            let before = merged.insert(key.clone(), value).expect("unknown keys are gone");
            if let Err(error) = Self::parse_settings(&merged) {
                wrong.push(error);
                merged.insert(key, before);
            }
        }

        let config = Self::parse_settings(&merged)?;
        if wrong.len() == understood {
            wrong.extend(config.problems());
        }
        ConfigError::gather(wrong)?;
        Ok(config)
    }

    fn parse_settings(settings: &Map<String, Value>) -> Result<Self, ConfigError> {
        serde_path_to_error::deserialize(settings).map_err(|error| {
            let path = error.path().to_string();
            ConfigError::Value { path, reason: error.into_inner().to_string() }
        })
    }

    /// The whole description, with canonical names.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("a struct of numbers and names always serialises")
    }

    /// Key and value heads, resolved.
    pub fn kv_heads(&self) -> usize {
        self.n_kv_head.unwrap_or(self.n_head)
    }

    /// Bytes of a token's keys and values while decoding.
    pub fn kv_bytes_per_token(&self) -> u64 {
        (2 * self.n_layer * self.kv_heads() * self.head_dim()) as u64 * self.compute.bytes()
    }

    /// Features per head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.n_embd / self.n_head)
    }

    pub(crate) fn attention_scale(&self) -> f64 {
        self.attention_scale.unwrap_or(1.0 / (self.head_dim() as f64).sqrt())
    }

    /// Features of a head that rotate.
    pub fn rotated_dim(&self) -> usize {
        (self.head_dim() as f64 * self.rope_share) as usize
    }

    /// Whether attention's output projection has an offset, resolved.
    pub fn has_output_bias(&self) -> bool {
        self.attention_output_bias.unwrap_or(self.attention_bias)
    }

    /// Whether the MLP multiplies by a gate.
    pub fn has_gate(&self) -> bool {
        matches!(self.activation_function, Activation::SwiGlu | Activation::GeGlu)
    }

    pub(crate) fn window_of(&self, layer: usize) -> Option<usize> {
        self.window.filter(|_| !is_last_of(layer, self.full_attention_every))
    }

    pub(crate) fn rotation_of(&self, layer: usize) -> Rotation {
        if self.positions != Positions::Rope || is_last_of(layer, self.unrotated_every) {
            Rotation::None
        } else if self.rope_local_theta.is_some() && self.window_of(layer).is_some() {
            Rotation::Local
        } else {
            Rotation::Global
        }
    }

    /// Width of the MLP, resolved.
    pub fn inner(&self) -> usize {
        self.n_inner.unwrap_or(4 * self.n_embd)
    }

    /// Shapes of a block's matrices.
    pub fn block_matrices(&self) -> Vec<[usize; 2]> {
        let (width, inner) = (self.n_embd, self.inner());
        let [heads, kv] = [self.n_head, self.kv_heads()].map(|heads| heads * self.head_dim());
        let mlp = if self.has_gate() { 3 } else { 2 };
        let attention = [[width, heads], [width, kv], [width, kv], [heads, width]];
        attention.into_iter().chain(std::iter::repeat_n([width, inner], mlp)).collect()
    }

    /// Checks that sizes fit each other and the address space. Allocates nothing.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::gather(self.problems())
    }

    fn problems(&self) -> Vec<ConfigError> {
        let sizes = [
            ("n_layer", self.n_layer),
            ("n_head", self.n_head),
            ("n_kv_head", self.n_kv_head.unwrap_or(1)),
            ("head_dim", self.head_dim.unwrap_or(1)),
            ("window", self.window.unwrap_or(1)),
            ("full_attention_every", self.full_attention_every.unwrap_or(1)),
            ("unrotated_every", self.unrotated_every.unwrap_or(1)),
            ("n_embd", self.n_embd),
            ("n_inner", self.n_inner.unwrap_or(1)),
            ("n_positions", self.n_positions),
            ("vocab_size", self.vocab_size),
        ];
        let zeros = sizes.into_iter().filter(|(_, size)| *size == 0);
        let mut wrong: Vec<_> = zeros.map(|(key, _)| ConfigError::Zero { key }).collect();

        if wrong.is_empty() {
            if self.head_dim.is_none() {
                wrong.extend(divides("n_embd", self.n_embd, "n_head", self.n_head));
            }
            wrong.extend(divides("n_head", self.n_head, "n_kv_head", self.kv_heads()));
            let shared = (0.0..=1.0).contains(&self.rope_share);
            if !shared {
                let (key, value) = ("rope_share", self.rope_share);
                wrong.push(ConfigError::OutOfRange { key, value, expected: "in [0, 1]" });
            }
            let head_dim = self.rotated_dim();
            let rotates = self.positions == Positions::Rope;
            if wrong.is_empty() && rotates && (head_dim == 0 || !head_dim.is_multiple_of(2)) {
                wrong.push(ConfigError::OddHeadWidth { head_dim });
            }
        }

        // The network computes in f32, where others become 0 or infinity.
        let positive = |value: f64| value > 0.0 && (value as f32).is_normal();
        let above_zero = "a finite number above 0, from 1.2e-38 to 3.4e38";
        for (key, value) in [
            ("rope_theta", Some(self.rope_theta)),
            ("layer_norm_epsilon", Some(self.layer_norm_epsilon)),
            ("initializer_range", Some(self.initializer_range)),
            ("logit_softcap", self.logit_softcap),
            ("attention_softcap", self.attention_softcap),
            ("rope_local_theta", self.rope_local_theta),
            ("embedding_scale", self.embedding_scale),
            ("attention_scale", self.attention_scale),
            ("rope_scaling", self.rope_scaling.map(RopeScaling::weakest)),
        ] {
            let bad = value.filter(|value| !positive(*value));
            wrong.extend(bad.map(|value| ConfigError::OutOfRange { key, value, expected: above_zero }));
        }

        for (key, value) in [
            ("embd_pdrop", self.embd_pdrop),
            ("resid_pdrop", self.resid_pdrop),
            ("match_pdrop", self.match_pdrop),
        ] {
            if !(0.0..1.0).contains(&(value as f32)) {
                wrong.push(ConfigError::OutOfRange { key, value, expected: "in [0, 1), in f32 too" });
            }
        }

        if self.attn_pdrop != 0.0 {
            wrong.push(ConfigError::AttentionDropout { value: self.attn_pdrop });
        }
        if wrong.is_empty() {
            wrong.extend(Footprint::from_validated(self).err());
        }
        wrong
    }
}

fn is_last_of(layer: usize, every: Option<usize>) -> bool {
    every.is_some_and(|every| (layer + 1).is_multiple_of(every))
}

fn divides(key: &'static str, value: usize, by: &'static str, divisor: usize) -> Option<ConfigError> {
    if value.is_multiple_of(divisor) {
        return None;
    }
    let below = value - value % divisor;
    let above = below.checked_add(divisor).filter(|above| above - value < value - below);
    let nearest = above.unwrap_or(below).max(divisor);
    Some(ConfigError::NotDivisible { key, value, by, divisor, nearest })
}

fn object(value: Value) -> Result<Map<String, Value>, ConfigError> {
    let found = match value {
        Value::Object(map) => return Ok(map),
        Value::Array(_) => "an array",
        Value::String(_) => "a string",
        Value::Number(_) => "a number",
        Value::Bool(_) => "a boolean",
        Value::Null => "null",
    };
    Err(ConfigError::NotAnObject { found })
}

fn canonical_keys(given: Map<String, Value>) -> (Map<String, Value>, Vec<ConfigError>) {
    let settings = presets::gpt2().to_value();
    let settings = settings.as_object().expect("a struct serialises to an object");
    let known = |key: &str| key == "preset" || settings.contains_key(key);
    let (mut renamed, mut wrong) = (Map::new(), Vec::new());

    for (key, value) in given {
        let canonical = match ALIASES.iter().find(|(alias, _)| *alias == key) {
            Some((_, canonical)) => (*canonical).to_owned(),
            None if known(&key) => key.clone(),
            None => {
                let aliases = ALIASES.iter().map(|(alias, _)| *alias);
                let candidates = settings.keys().map(String::as_str).chain(aliases).chain(["preset"]);
                let nearest = nearest_key(&key, candidates).unwrap_or_default().to_owned();
                wrong.push(ConfigError::UnknownKey { key, nearest });
                continue;
            }
        };
        if renamed.insert(canonical.clone(), value).is_some() {
            wrong.push(ConfigError::SetTwice { key, canonical });
        }
    }

    (renamed, wrong)
}

/// The first candidate with the smallest edit distance to `key`.
pub fn nearest_key<'c>(key: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    candidates.into_iter().min_by_key(|candidate| strsim::levenshtein(key, candidate))
}
