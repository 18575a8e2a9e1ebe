//! `llama.cpp`'s architectures: computations beyond their fields, and names of tensors.

use super::Value;
use crate::config::{Activation, GptConfig};
use crate::rotary::{self, RopeScaling};
use crate::weights::names::part_of_block;
use crate::weights::{WeightsError, hugging_face};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    AsTheyAre,
    /// Rows and columns exchanged.
    Turned,
    /// Turned, with features that rotate together side by side.
    Interleaved {
        head_dim: usize,
    },
}

#[derive(Debug)]
struct Row {
    name: &'static str,
    /// The `model_type`s of `transformers`.
    families: &'static [&'static str],
    activation: Activation,
    /// Whether features that rotate together lie side by side.
    interleaved: bool,
    /// Whether one tensor holds queries, keys and values.
    fused: bool,
    /// Every n-th block has full attention, as fixed in the program.
    pattern: Option<usize>,
}

const PLAIN: Row = Row {
    name: "llama",
    families: &["llama", "mistral"],
    activation: Activation::SwiGlu,
    interleaved: true,
    fused: false,
    pattern: None,
};

const ROWS: &[Row] = &[
    PLAIN,
    Row {
        name: "gpt2",
        families: &["gpt2"],
        activation: Activation::GeluTanh,
        interleaved: false,
        fused: true,
        ..PLAIN
    },
    Row { name: "qwen2", families: &["qwen2"], interleaved: false, ..PLAIN },
    Row { name: "qwen3", families: &["qwen3"], interleaved: false, ..PLAIN },
    Row { name: "smollm3", families: &["smollm3"], ..PLAIN },
    Row { name: "olmo2", families: &["olmo2"], interleaved: false, ..PLAIN },
    Row {
        name: "gemma2",
        families: &["gemma2"],
        activation: Activation::GeGlu,
        interleaved: false,
        pattern: Some(2),
        ..PLAIN
    },
    Row {
        name: "gemma3",
        families: &["gemma3_text"],
        activation: Activation::GeGlu,
        interleaved: false,
        pattern: Some(6),
        ..PLAIN
    },
];

const OUTER: &[(&str, &str)] = &[
    ("wte", "token_embd.weight"),
    ("wpe", "position_embd.weight"),
    ("lm_head", "output.weight"),
    ("final_norm.weight", "output_norm.weight"),
    ("final_norm.bias", "output_norm.bias"),
];

const PARTS: &[(&str, &str)] = &[
    ("attention_norm", "attn_norm"),
    ("attention.query", "attn_q"),
    ("attention.key", "attn_k"),
    ("attention.value", "attn_v"),
    ("attention.output", "attn_output"),
    ("attention.query_norm", "attn_q_norm"),
    ("attention.key_norm", "attn_k_norm"),
    ("attention_out_norm", "post_attention_norm"),
    ("mlp_norm", "ffn_norm"),
    ("mlp.gate", "ffn_gate"),
    ("mlp.up", "ffn_up"),
    ("mlp.down", "ffn_down"),
    ("mlp_out_norm", "post_ffw_norm"),
];

/// Block counts of models whose attention `llama.cpp` scales by `n_embd / n_head`: Gemma 2 and 3 with 27 B.
const SCALED_BY_WIDTH: [(&str, usize); 2] = [("gemma2", 46), ("gemma3", 62)];

/// Rotation's base in Gemma 3's windows, and the unrotated places of `SmolLM3`'s blocks.
const LOCAL_THETA: f64 = 1e4;
const UNROTATED_EVERY: usize = 4;

#[derive(Debug)]
pub(super) struct Architecture {
    row: &'static Row,
    head_dim: usize,
}

fn refused(family: &'static str, reason: String) -> WeightsError {
    WeightsError::NotInLlamaCpp { family, reason }
}

impl Architecture {
    pub(super) fn of(config: &GptConfig) -> Result<Self, WeightsError> {
        hugging_face::expressible(config).map_err(|error| match error {
            WeightsError::NotExpressible { nearest, reason } => refused(nearest, reason),
            other => other,
        })?;
        let family = hugging_face::model_type(config);
        let row = ROWS.iter().find(|row| row.families.contains(&family));
        let row = row.ok_or_else(|| refused(family, "files of this family are not written".to_owned()))?;
        match row.lacking(config) {
            Some(lacking) => Err(refused(family, format!("it lacks {lacking}"))),
            None => Ok(Self { row, head_dim: config.head_dim() }),
        }
    }

    pub(super) fn fields(&self, config: &GptConfig) -> Vec<(String, Value)> {
        let Row { name, .. } = *self.row;
        let own = |key: &str, value: Value| (format!("{name}.{key}"), value);
        let size = |value: usize| Value::U32(value as u32);
        let number = |value: f64| Value::F32(value as f32);

        let mut fields = vec![
            ("general.architecture".to_owned(), Value::Text(name.to_owned())),
            ("general.type".to_owned(), Value::Text("model".to_owned())),
            own("context_length", size(config.n_positions)),
            own("embedding_length", size(config.n_embd)),
            own("block_count", size(config.n_layer)),
            own("feed_forward_length", size(config.inner())),
            own("vocab_size", size(config.vocab_size)),
            own("attention.head_count", size(config.n_head)),
            own("attention.head_count_kv", size(config.kv_heads())),
        ];
        let epsilon = number(config.layer_norm_epsilon);
        if name == "gpt2" {
            fields.push(own("attention.layer_norm_epsilon", epsilon));
            return fields;
        }

        fields.push(own("attention.layer_norm_rms_epsilon", epsilon));
        fields.push(own("attention.key_length", size(self.head_dim)));
        fields.push(own("attention.value_length", size(self.head_dim)));
        fields.push(own("rope.dimension_count", size(self.head_dim)));
        fields.push(own("rope.freq_base", number(config.rope_theta)));
        if let Some(RopeScaling::Linear { factor }) = config.rope_scaling {
            fields.push(own("rope.scaling.type", Value::Text("linear".to_owned())));
            fields.push(own("rope.scaling.factor", number(factor)));
        }

        if self.row.pattern.is_some() {
            let window = config.window.unwrap_or(config.n_positions);
            fields.push(own("attention.sliding_window", size(window)));
        }
        let caps = [
            ("attn_logit_softcapping", config.attention_softcap),
            ("final_logit_softcapping", config.logit_softcap),
        ];
        fields.extend(caps.into_iter().filter_map(|(key, cap)| Some(own(key, number(cap?)))));
        fields
    }

    pub(super) fn tensor(&self, ours: &str) -> (String, Rows) {
        let Some((layer, module, kind)) = part_of_block(ours) else {
            let theirs = OUTER.iter().find(|(known, _)| *known == ours);
            let (_, theirs) = theirs.expect("an expressible model has only parameters with published names");
            return ((*theirs).to_owned(), Rows::AsTheyAre);
        };

        let theirs = PARTS.iter().find(|(known, _)| *known == module);
        let (_, theirs) = theirs.expect("an expressible model has only parameters with published names");
        let projected = ["attention.query", "attention.key", "attention.value"].contains(&module);
        let theirs = if self.row.fused && projected { "attn_qkv" } else { theirs };

        let rows = match module {
            "attention.query" | "attention.key" if self.row.interleaved => {
                Rows::Interleaved { head_dim: self.head_dim }
            }
            _ if kind == "bias" || module.ends_with("norm") => Rows::AsTheyAre,
            _ => Rows::Turned,
        };
        (format!("blk.{layer}.{theirs}.{kind}"), rows)
    }

    /// Divisors of Llama 3's rotary frequencies.
    pub(super) fn frequency_factors(&self, config: &GptConfig) -> Option<Vec<f32>> {
        let scaling = config.rope_scaling.filter(|scaling| matches!(scaling, RopeScaling::Llama3 { .. }))?;
        let factor = |pair: usize| {
            let frequency = rotary::frequency(config.rope_theta, pair, self.head_dim);
            (frequency / scaling.stretched(frequency)) as f32
        };
        Some((0..self.head_dim / 2).map(factor).collect())
    }
}

impl Row {
    fn lacking(&self, config: &GptConfig) -> Option<&'static str> {
        let has_bias = config.attention_bias || config.has_output_bias() || config.mlp_bias;
        let width = if SCALED_BY_WIDTH.contains(&(self.name, config.n_layer)) {
            config.n_embd / config.n_head
        } else {
            config.head_dim()
        };
        let usual = 1.0 / (width as f64).sqrt();

        let rules: [(bool, &'static str); 11] = [
            (config.activation_function != self.activation, "this `activation_function`"),
            ((config.attention_scale() - usual).abs() > 1e-6 * usual, "this `attention_scale`"),
            (
                matches!(config.rope_scaling, Some(RopeScaling::Llama3 { .. })) && self.name != "llama",
                "Llama 3's `rope_scaling`",
            ),
            (!["llama", "gpt2", "qwen2"].contains(&self.name) && has_bias, "biases"),
            (self.name == "qwen2" && config.mlp_bias, "biases of the MLP"),
            (!self.has_windows(config), "this pattern of attention windows"),
            (
                self.name == "gemma3" && config.rope_local_theta != Some(LOCAL_THETA),
                "a `rope_local_theta` other than 10,000",
            ),
            (
                self.name == "smollm3" && config.unrotated_every != Some(UNROTATED_EVERY),
                "an `unrotated_every` other than 4",
            ),
            (
                ["gemma2", "gemma3"].contains(&self.name) && !config.tie_word_embeddings,
                "a head apart from the embedding",
            ),
            (self.name == "olmo2" && config.tie_word_embeddings, "a head tied to the embedding"),
            (
                ["qwen2", "olmo2"].contains(&self.name) && config.n_head * config.head_dim() != config.n_embd,
                "heads wider than their share of `n_embd`",
            ),
        ];
        let capped = match self.name {
            "gemma2" => config.attention_softcap.is_some() && config.logit_softcap.is_some(),
            "gemma3" => config.attention_softcap.is_none(),
            _ => config.attention_softcap.is_none() && config.logit_softcap.is_none(),
        };
        let rules = rules.into_iter().chain([(!capped, "these soft caps")]);
        rules.into_iter().find_map(|(lacks, reason)| lacks.then_some(reason))
    }

    fn has_windows(&self, config: &GptConfig) -> bool {
        let (Some(every), Some(_)) = (self.pattern, config.window) else { return config.window.is_none() };
        match config.full_attention_every {
            Some(found) => found == every,
            None => config.n_layer < every,
        }
    }
}
