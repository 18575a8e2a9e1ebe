//! Published families: switches and keys of each `model_type`.
//!
//! A family of a known kind of network takes one row; switches choose its weights' names in `names.rs`.

use serde_json::{Map, Value, json};

#[derive(Debug)]
pub(super) struct Family {
    pub(super) model_type: &'static str,
    pub(super) class: &'static str,
    pub(super) settings: &'static [&'static [(&'static str, &'static str)]],
    pub(super) switches: fn() -> Value,
}

impl Family {
    pub(super) fn named(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.model_type == model_type)
    }

    pub(super) fn settings(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.settings.iter().copied().flatten().copied()
    }

    pub(super) fn switches(&self) -> Map<String, Value> {
        match (self.switches)() {
            Value::Object(switches) => switches,
            _ => unreachable!("each row's switches are an object"),
        }
    }
}

const SIZES: &[(&str, &str)] = &[
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("num_key_value_heads", "n_kv_head"),
    ("hidden_size", "n_embd"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
    ("vocab_size", "vocab_size"),
    ("head_dim", "head_dim"),
    ("rms_norm_eps", "layer_norm_epsilon"),
    ("rope_theta", "rope_theta"),
    ("initializer_range", "initializer_range"),
    ("tie_word_embeddings", "tie_word_embeddings"),
];
const ACTIVATION: &[(&str, &str)] = &[("hidden_act", "activation_function")];
const ATTENTION_BIAS: &[(&str, &str)] = &[("attention_bias", "attention_bias")];
const MLP_BIAS: &[(&str, &str)] = &[("mlp_bias", "mlp_bias")];
const WINDOW: &[(&str, &str)] = &[("sliding_window", "window")];
const GEMMA: &[(&str, &str)] = &[
    ("hidden_activation", "activation_function"),
    ("query_pre_attn_scalar", "attention_scale"),
    ("final_logit_softcapping", "logit_softcap"),
    ("attn_logit_softcapping", "attention_softcap"),
];

const FAMILIES: &[Family] = &[
    Family {
        model_type: "gpt2",
        class: "GPT2LMHeadModel",
        settings: &[&[
            ("n_layer", "n_layer"),
            ("n_head", "n_head"),
            ("n_embd", "n_embd"),
            ("n_inner", "n_inner"),
            ("n_positions", "n_positions"),
            ("vocab_size", "vocab_size"),
            ("activation_function", "activation_function"),
            ("layer_norm_epsilon", "layer_norm_epsilon"),
            ("initializer_range", "initializer_range"),
            ("embd_pdrop", "embd_pdrop"),
            ("resid_pdrop", "resid_pdrop"),
            ("tie_word_embeddings", "tie_word_embeddings"),
        ]],
        switches: || json!({ "preset": "gpt2" }),
    },
    Family {
        model_type: "llama",
        class: "LlamaForCausalLM",
        settings: &[SIZES, ACTIVATION, ATTENTION_BIAS, MLP_BIAS],
        switches: llama,
    },
    Family {
        model_type: "mistral",
        class: "MistralForCausalLM",
        settings: &[SIZES, ACTIVATION, WINDOW],
        switches: || with(llama(), json!({ "n_kv_head": 8 })),
    },
    Family {
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        settings: &[SIZES, ACTIVATION],
        switches: || with(llama(), json!({ "attention_bias": true, "attention_output_bias": false })),
    },
    Family {
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        settings: &[SIZES, ACTIVATION, ATTENTION_BIAS],
        switches: || with(llama(), json!({ "qk_norm": true, "head_dim": 128 })),
    },
    Family {
        model_type: "smollm3",
        class: "SmolLM3ForCausalLM",
        settings: &[SIZES, ACTIVATION, ATTENTION_BIAS, MLP_BIAS],
        switches: || {
            with(llama(), json!({ "rope_theta": 2e6, "tie_word_embeddings": true, "unrotated_every": 4 }))
        },
    },
    Family {
        model_type: "olmo2",
        class: "Olmo2ForCausalLM",
        settings: &[SIZES, ACTIVATION, ATTENTION_BIAS],
        switches: || {
            let switches = json!({
                "norm_placement": "after", "qk_norm": true, "qk_norm_across_heads": true, "layer_norm_epsilon": 1e-5
            });
            with(llama(), switches)
        },
    },
    Family {
        model_type: "gemma2",
        class: "Gemma2ForCausalLM",
        settings: &[SIZES, GEMMA, ATTENTION_BIAS, WINDOW],
        switches: || {
            let switches = json!({
                "full_attention_every": 2, "window": 4096, "logit_softcap": 30.0, "attention_softcap": 50.0
            });
            with(gemma(), switches)
        },
    },
    Family {
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        settings: &[SIZES, GEMMA, ATTENTION_BIAS, WINDOW, &[("rope_local_base_freq", "rope_local_theta")]],
        switches: || {
            let switches = json!({
                "full_attention_every": 6, "window": 4096, "qk_norm": true, "rope_theta": 1e6, "rope_local_theta": 1e4
            });
            with(gemma(), switches)
        },
    },
    Family {
        model_type: "gpt_neox",
        class: "GPTNeoXForCausalLM",
        settings: &[
            &[
                ("num_hidden_layers", "n_layer"),
                ("num_attention_heads", "n_head"),
                ("hidden_size", "n_embd"),
                ("intermediate_size", "n_inner"),
                ("max_position_embeddings", "n_positions"),
                ("vocab_size", "vocab_size"),
                ("layer_norm_eps", "layer_norm_epsilon"),
                ("rotary_emb_base", "rope_theta"),
                ("rotary_pct", "rope_share"),
                ("use_parallel_residual", "parallel_residual"),
                ("initializer_range", "initializer_range"),
                ("tie_word_embeddings", "tie_word_embeddings"),
            ],
            ACTIVATION,
            ATTENTION_BIAS,
        ],
        switches: || {
            json!({
                "preset": "gpt2", "positions": "rope", "rope_share": 0.25, "parallel_residual": true,
                "activation_function": "gelu", "tie_word_embeddings": false, "scale_residual_init": false
            })
        },
    },
];

fn llama() -> Value {
    json!({ "preset": "llama-2-7b", "layer_norm_epsilon": 1e-6 })
}

/// `embedding_scale` and `attention_scale` follow from sizes.
fn gemma() -> Value {
    let switches = json!({
        "norm_placement": "both", "activation_function": "geglu", "head_dim": 256, "tie_word_embeddings": true
    });
    with(llama(), switches)
}

fn with(mut switches: Value, more: Value) -> Value {
    if let (Value::Object(switches), Value::Object(more)) = (&mut switches, more) {
        switches.extend(more);
    }
    switches
}

/// Published keys without effect: bookkeeping, special tokens, generation defaults, other heads, dropout inside
/// attention.
pub(super) const INERT: &[&str] = &[
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "attn_pdrop",
    "bos_token_id",
    "cache_implementation",
    "classifier_dropout",
    "dtype",
    "eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "is_decoder",
    "label2id",
    "max_window_layers",
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

/// Keys without effect at one value; others are refused.
pub(super) fn neutral_value(key: &str) -> Option<Value> {
    Some(match key {
        "scale_attn_weights" => json!(true),
        "scale_attn_by_inverse_layer_idx"
        | "add_cross_attention"
        | "is_encoder_decoder"
        | "rope_interleaved"
        | "use_sliding_window"
        | "use_bidirectional_attention" => json!(false),
        "chunk_size_feed_forward" => json!(0),
        _ => return None,
    })
}

/// Keys that change the network in some families. Others accept null or false.
pub(super) const REFUSED: &[&str] = &[
    "attention_bias",
    "attention_multiplier",
    "attn_logit_softcapping",
    "clip_qkv",
    "embedding_multiplier",
    "final_logit_softcapping",
    "layer_types",
    "logit_scale",
    "logits_scaling",
    "mlp_bias",
    "no_rope_layers",
    "num_experts",
    "num_local_experts",
    "partial_rotary_factor",
    "qk_layernorm",
    "quantization_config",
    "residual_multiplier",
    "rope_parameters",
    "rope_scaling",
    "sliding_window",
    "use_qk_norm",
];
