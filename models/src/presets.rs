//! Shapes of known models, by name.

use crate::config::{Activation, Family, GptConfig, NormPlacement, Positions};
use crate::error::ConfigError;
use crate::norm::NormKind;
use crate::precision::Compute;

/// Names of all presets.
pub const PRESETS: [&str; 9] = [
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "llama-160m",
    "llama-1.1b",
    "llama-2-7b",
    "llama-3-8b",
    "nanochat",
];

/// The configuration of a preset.
pub fn preset(name: &str) -> Result<GptConfig, ConfigError> {
    let sized = |n_layer, n_head, n_embd| GptConfig { n_layer, n_head, n_embd, ..gpt2() };
    Ok(match name {
        "gpt2" => gpt2(),
        "gpt2-medium" => sized(24, 16, 1024),
        "gpt2-large" => sized(36, 20, 1280),
        "gpt2-xl" => sized(48, 25, 1600),
        "llama-160m" => GptConfig { n_layer: 12, n_head: 12, n_embd: 768, n_inner: Some(2048), ..llama() },
        "llama-1.1b" => GptConfig {
            n_layer: 22,
            n_head: 32,
            n_kv_head: Some(4),
            n_embd: 2048,
            n_inner: Some(5632),
            ..llama()
        },
        "llama-2-7b" => GptConfig { n_positions: 4096, ..llama() },
        "llama-3-8b" => GptConfig {
            n_kv_head: Some(8),
            n_inner: Some(14336),
            n_positions: 8192,
            vocab_size: 128_256,
            rope_theta: 500_000.0,
            ..llama()
        },
        "nanochat" => nanochat(),
        _ => return Err(ConfigError::UnknownPreset { name: name.into(), known: PRESETS.join(", ") }),
    })
}

pub(crate) fn gpt2() -> GptConfig {
    GptConfig {
        n_layer: 12,
        n_head: 12,
        n_kv_head: None,
        head_dim: None,
        n_embd: 768,
        n_inner: None,
        n_positions: 1024,
        vocab_size: 50257,
        positions: Positions::Learned,
        rope_theta: 10_000.0,
        rope_scaling: None,
        rope_local_theta: None,
        rope_share: 1.0,
        unrotated_every: None,
        window: None,
        full_attention_every: None,
        norm: NormKind::LayerNorm,
        norm_placement: NormPlacement::Before,
        parallel_residual: false,
        norm_weights: true,
        norm_bias: true,
        layer_norm_epsilon: 1e-5,
        qk_norm: false,
        qk_norm_across_heads: false,
        embedding_scale: None,
        attention_scale: None,
        embedding_norm: false,
        activation_function: Activation::GeluTanh,
        attention_bias: true,
        attention_output_bias: None,
        mlp_bias: true,
        tie_word_embeddings: true,
        longest_match: false,
        logit_softcap: None,
        attention_softcap: None,
        embd_pdrop: 0.0,
        resid_pdrop: 0.0,
        match_pdrop: 0.1,
        attn_pdrop: 0.0,
        init: Family::Gpt2,
        initializer_range: 0.02,
        scale_residual_init: true,
        compute: Compute::F32,
    }
}

fn llama() -> GptConfig {
    GptConfig {
        n_layer: 32,
        n_head: 32,
        n_embd: 4096,
        n_inner: Some(11008),
        n_positions: 2048,
        vocab_size: 32000,
        positions: Positions::Rope,
        norm: NormKind::RmsNorm,
        norm_bias: false,
        activation_function: Activation::SwiGlu,
        attention_bias: false,
        mlp_bias: false,
        tie_word_embeddings: false,
        init: Family::Llama,
        scale_residual_init: false,
        ..gpt2()
    }
}

fn nanochat() -> GptConfig {
    GptConfig {
        n_layer: 20,
        n_head: 10,
        n_embd: 1280,
        n_inner: None,
        vocab_size: 65536,
        norm_weights: false,
        layer_norm_epsilon: 1e-6,
        qk_norm: true,
        embedding_norm: true,
        activation_function: Activation::ReluSquared,
        logit_softcap: Some(15.0),
        init: Family::Nanochat,
        ..llama()
    }
}
