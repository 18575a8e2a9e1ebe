//! The `config.json` of `transformers`, read and written.
//!
//! A published description is read or refused by name (`no_published_description_causes_a_panic_or_an_invalid_model`).

use serde_json::{Map, Value, json};

use super::WeightsError;
use crate::config::{Activation, GptConfig, NormKind, Positions};
use crate::error::ConfigError;

/// Published keys that do not affect the network: bookkeeping, special tokens, generation defaults, other heads.
/// Attention dropout is here because only training reads it.
const INERT: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "gradient_checkpointing",
    "model_type",
    "n_ctx",
    "output_past",
    "pad_token_id",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Parses a published `config.json`. Refuses keys that change the network in an unsupported way.
pub fn config_from_hugging_face(text: &str) -> Result<GptConfig, ConfigError> {
    let published: Value = serde_json::from_str(text).map_err(ConfigError::Syntax)?;
    let unsupported =
        |key: &str, value: &Value| ConfigError::Unsupported { key: key.into(), value: value.to_string() };
    let preset = match published["model_type"].as_str() {
        Some("gpt2") => "gpt2",
        Some("llama") => "llama-2-7b",
        _ => return Err(unsupported("model_type", &published["model_type"])),
    };

    let mut kept = Map::from_iter([("preset".to_owned(), json!(preset))]);
    if preset != "gpt2" {
        // The default of `transformers` for an absent key.
        kept.insert("rms_norm_eps".to_owned(), json!(1e-6));
    }

    for (key, value) in published.as_object().into_iter().flatten() {
        let neutral = match key.as_str() {
            key if INERT.contains(&key) => true,
            "scale_attn_weights" => *value == json!(true),
            "scale_attn_by_inverse_layer_idx" | "add_cross_attention" => *value == json!(false),
            "rope_scaling" => value.is_null(),
            "head_dim" => value.is_null() || head_dim(&published) == value.as_u64(),
            "rope_parameters" => {
                kept.insert("rope_theta".to_owned(), value["rope_theta"].clone());
                value["rope_type"] == json!("default")
            }
            _ => {
                kept.insert(key.clone(), value.clone());
                true
            }
        };
        if !neutral {
            return Err(unsupported(key, value));
        }
    }

    GptConfig::from_value(Value::Object(kept))
}

fn head_dim(published: &Value) -> Option<u64> {
    published["hidden_size"].as_u64()?.checked_div(published["num_attention_heads"].as_u64()?)
}

/// The `config.json` of a GPT-2 or a Llama.
pub fn config_to_hugging_face(config: &GptConfig) -> Result<Value, WeightsError> {
    expressible(config)?;
    // GPT-2's default special tokens exist only in its own vocabulary.
    let special = if config.vocab_size > 50256 { json!(50256) } else { Value::Null };
    let activation = serde_json::to_value(config.activation_function).expect("an activation has a name");

    Ok(match config.positions {
        Positions::Learned => json!({
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "bos_token_id": special,
            "eos_token_id": special,
            "n_layer": config.n_layer,
            "n_head": config.n_head,
            "n_embd": config.n_embd,
            "n_inner": config.n_inner,
            "n_positions": config.n_positions,
            "vocab_size": config.vocab_size,
            "activation_function": activation,
            "layer_norm_epsilon": config.layer_norm_epsilon,
            "initializer_range": config.initializer_range,
            "embd_pdrop": config.embd_pdrop,
            "resid_pdrop": config.resid_pdrop,
            "attn_pdrop": config.attn_pdrop,
            "tie_word_embeddings": config.tie_word_embeddings,
        }),
        Positions::Rope => json!({
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": config.n_layer,
            "num_attention_heads": config.n_head,
            "num_key_value_heads": config.kv_heads(),
            "hidden_size": config.n_embd,
            "intermediate_size": config.inner(),
            "max_position_embeddings": config.n_positions,
            "vocab_size": config.vocab_size,
            "hidden_act": activation,
            "rms_norm_eps": config.layer_norm_epsilon,
            "rope_theta": config.rope_theta,
            "rope_parameters": { "rope_type": "default", "rope_theta": config.rope_theta },
            "initializer_range": config.initializer_range,
            "attention_bias": config.attention_bias,
            "mlp_bias": config.mlp_bias,
            "tie_word_embeddings": config.tie_word_embeddings,
        }),
    })
}

/// Fails unless a model class of `transformers` computes the same network.
pub(crate) fn expressible(config: &GptConfig) -> Result<(), WeightsError> {
    let gpt2 = config.positions == Positions::Learned;
    let gelu = matches!(config.activation_function, Activation::GeluTanh | Activation::GeluErf);
    let swiglu = config.activation_function == Activation::SwiGlu;
    let obstacles = [
        (config.logit_softcap.is_some(), "it caps its logits"),
        (config.attention_softcap.is_some(), "it caps its attention scores"),
        (config.qk_norm, "it normalises queries and keys"),
        (config.embedding_norm, "it normalises its embedding"),
        (config.longest_match, "it reads the longest matches of its text"),
        (!config.norm_weights, "its norms have no weights"),
        (gpt2 && config.norm != NormKind::LayerNorm, "it has learned positions but no LayerNorm"),
        (gpt2 && !config.norm_bias, "it has learned positions but norms without offsets"),
        (gpt2 && !(config.attention_bias && config.mlp_bias), "it has learned positions but no offsets"),
        (gpt2 && config.kv_heads() != config.n_head, "it has learned positions but grouped heads"),
        (gpt2 && !gelu, "it has learned positions but no GELU"),
        (!gpt2 && config.norm != NormKind::RmsNorm, "it has rotary positions but no RMSNorm"),
        (!gpt2 && config.norm_bias, "it has rotary positions but norms with offsets"),
        (!gpt2 && !swiglu, "it has rotary positions but no SwiGLU"),
        (
            !gpt2 && (config.embd_pdrop > 0.0 || config.resid_pdrop > 0.0),
            "it has rotary positions and dropout",
        ),
    ];
    match obstacles.into_iter().find(|(present, _)| *present) {
        Some((_, reason)) => Err(WeightsError::NotExpressible { reason }),
        None => Ok(()),
    }
}
