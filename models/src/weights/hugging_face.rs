//! The `config.json` of `transformers`, read and written.
//!
//! A key is a setting, has no effect, has none at one value, or is refused. Others, unread by the family's class, are
//! ignored and reported (`no_published_description_causes_a_panic_or_an_invalid_model`).
//!
//! A model is writable if its description reads back equal.

use serde_json::{Map, Value, json};

use super::WeightsError;
use super::families::{Family, INERT, REFUSED, neutral_value};
use crate::config::{Activation, GptConfig, NormPlacement, Positions};
use crate::error::ConfigError;
use crate::norm::NormKind;
use crate::rotary::RopeScaling;

/// A published description.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The network.
    pub config: GptConfig,
    /// Keys assumed not to affect the network.
    pub ignored: Vec<String>,
}

/// Reads a published `config.json`. Refuses unsupported keys that change the network.
pub fn config_from_hugging_face(text: &str) -> Result<GptConfig, ConfigError> {
    read(text).map(|published| published.config)
}

pub(super) fn read(text: &str) -> Result<Published, ConfigError> {
    from_value(&serde_json::from_str(text).map_err(ConfigError::Syntax)?)
}

fn unsupported(key: &str, value: &Value) -> ConfigError {
    ConfigError::Unsupported { key: key.into(), value: value.to_string() }
}

fn from_value(published: &Value) -> Result<Published, ConfigError> {
    let model_type = &published["model_type"];
    let family = model_type.as_str().and_then(Family::named);
    let family = family.ok_or_else(|| unsupported("model_type", model_type))?;
    let mut kept = family.switches();
    let mut ignored = Vec::new();

    for (key, value) in published.as_object().into_iter().flatten() {
        if INERT.contains(&key.as_str()) || key.starts_with('_') || is_superseded(family, key) {
            continue;
        }
        let named = family.settings().find(|(published, _)| published == key).map(|(_, ours)| ours);
        if let Some(ours) = named.or_else(|| second_name(family, key)) {
            kept.insert(
                ours.to_owned(),
                setting(family, ours, value).ok_or_else(|| unsupported(key, value))?,
            );
        } else if let Some(neutral) = neutral_value(key) {
            if *value != neutral && !value.is_null() {
                return Err(unsupported(key, value));
            }
        } else if let Some(understood) = structured(family, key, value, published, &mut kept) {
            if !understood {
                return Err(unsupported(key, value));
            }
        } else if !REFUSED.contains(&key.as_str()) {
            ignored.push(key.clone());
        } else if !value.is_null() && *value != json!(false) {
            return Err(unsupported(key, value));
        }
    }

    let gemma = kept.get("norm_placement") == Some(&json!("both"));
    let mut config = GptConfig::from_value(Value::Object(kept))?;
    if gemma {
        config.embedding_scale = Some((config.n_embd as f64).sqrt());
        config.attention_scale = config.attention_scale.or(Some(1.0 / 16.0));
    }
    let config = simplest(config);
    config.validate()?;
    Ok(Published { config, ignored })
}

fn is_superseded(family: &Family, key: &str) -> bool {
    match family.model_type {
        "qwen2" | "qwen3" | "smollm3" => key == "sliding_window",
        "gemma2" | "gemma3_text" => key == "hidden_act",
        _ => false,
    }
}

/// `transformers` 4 wrote some settings under two names.
fn second_name(family: &Family, key: &str) -> Option<&'static str> {
    match (family.model_type, key) {
        ("gpt_neox", "partial_rotary_factor") => Some("rope_share"),
        ("gpt_neox", "rope_theta") => Some("rope_theta"),
        _ => None,
    }
}

/// `None` if the network lacks the value.
fn setting(family: &Family, ours: &str, value: &Value) -> Option<Value> {
    Some(match (ours, value.as_str()) {
        ("activation_function", Some(name)) => match (family.model_type, name) {
            // Its MLP has no gate.
            ("gpt2", "silu" | "swish" | "swiglu" | "geglu") => return None,
            ("gpt2", _) | ("gpt_neox", "gelu" | "gelu_new") => value.clone(),
            ("gpt_neox", "gelu_fast" | "gelu_pytorch_tanh") => json!("gelu_new"),
            ("gpt_neox", _) => return None,
            (_, "silu" | "swish") => json!("silu"),
            (_, "gelu_pytorch_tanh" | "gelu_new") => json!("geglu"),
            _ => return None,
        },
        ("attention_scale", _) => json!(value.as_f64()?.powf(-0.5)),
        _ => value.clone(),
    })
}

/// Reads a table or list. `None` for other keys, `Some(false)` for unsupported values.
fn structured(
    family: &Family,
    key: &str,
    value: &Value,
    published: &Value,
    kept: &mut Map<String, Value>,
) -> Option<bool> {
    let rotates = family.model_type != "gpt2";
    let has_windows = family.settings().any(|(_, ours)| ours == "window");

    let understood = match key {
        "rope_scaling" | "rope_parameters" if rotates => rope(value, published, kept),
        "layer_types" | "no_rope_layers" if value.is_null() || *value == json!([]) => Some(()),
        "layer_types" => {
            blocks_with(value, "full_attention", "sliding_attention").and_then(|found| match found {
                Blocks::All if !has_windows => Some(()),
                Blocks::All => {
                    kept.insert("full_attention_every".to_owned(), json!(1));
                    Some(())
                }
                Blocks::LastOf(_) | Blocks::None if !has_windows => None,
                Blocks::LastOf(every) => {
                    kept.insert("full_attention_every".to_owned(), json!(every));
                    Some(())
                }
                Blocks::None => {
                    kept.remove("full_attention_every");
                    Some(())
                }
            })
        }
        "sliding_window_pattern" if has_windows => {
            // Later files list the blocks as well.
            if value.is_null() || !published["layer_types"].is_null() {
                return Some(true);
            }
            kept.insert("full_attention_every".to_owned(), value.clone());
            Some(())
        }
        "no_rope_layer_interval" if family.model_type == "smollm3" => {
            kept.insert("unrotated_every".to_owned(), value.clone());
            Some(())
        }
        "no_rope_layers" if family.model_type == "smollm3" => blocks_with(value, 0, 1).map(|found| {
            let every = match found {
                Blocks::All => json!(1),
                Blocks::LastOf(every) => json!(every),
                Blocks::None => Value::Null,
            };
            kept.insert("unrotated_every".to_owned(), every);
        }),
        _ => return None,
    };

    Some(understood.is_some())
}

enum Blocks {
    All,
    None,
    /// The last of every `n`.
    LastOf(usize),
}

/// Blocks marked `mark`, all others `other`; `None` without such a rule.
fn blocks_with(list: &Value, mark: impl Into<Value>, other: impl Into<Value>) -> Option<Blocks> {
    let (mark, other) = (mark.into(), other.into());
    let list = list.as_array()?;
    let Some(first) = list.iter().position(|block| *block == mark) else {
        return list.iter().all(|block| *block == other).then_some(Blocks::None);
    };
    let every = first + 1;
    let expected = |at: usize| if (at + 1).is_multiple_of(every) { &mark } else { &other };
    let regular = list.iter().enumerate().all(|(at, block)| block == expected(at));
    let found = if every == 1 { Blocks::All } else { Blocks::LastOf(every) };
    regular.then_some(found)
}

/// Reads `rope_scaling` or the later `rope_parameters`. `None` for unknown stretching.
fn rope(value: &Value, published: &Value, kept: &mut Map<String, Value>) -> Option<()> {
    if value.is_null() {
        return Some(());
    }
    if let (Some(full), Some(sliding)) = (value.get("full_attention"), value.get("sliding_attention")) {
        if let Some(theta) = sliding.get("rope_theta") {
            kept.insert("rope_local_theta".to_owned(), theta.clone());
        }
        let plain = sliding.get("rope_type").is_none_or(|kind| *kind == json!("default"));
        return rope(full, published, kept).filter(|()| plain);
    }

    for (key, ours) in [("rope_theta", "rope_theta"), ("partial_rotary_factor", "rope_share")] {
        if let Some(value) = value.get(key) {
            kept.insert(ours.to_owned(), value.clone());
        }
    }
    let number = |key: &str| value.get(key).and_then(Value::as_f64);
    let scaling = match value.get("rope_type").or(value.get("type"))?.as_str()? {
        "default" => None,
        "linear" => Some(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => {
            let original = value.get("original_max_position_embeddings");
            let original = original.unwrap_or(&published["max_position_embeddings"]);
            Some(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: original.as_u64()?.try_into().ok()?,
            })
        }
        _ => return None,
    };
    kept.insert("rope_scaling".to_owned(), json!(scaling));
    Some(())
}

fn simplest(mut config: GptConfig) -> GptConfig {
    if config.n_embd.is_multiple_of(config.n_head) && config.head_dim() == config.n_embd / config.n_head {
        config.head_dim = None;
    }
    if config.attention_output_bias == Some(config.attention_bias) {
        config.attention_output_bias = None;
    }

    let beyond = |every: &usize| *every <= config.n_layer;
    config.unrotated_every = config.unrotated_every.filter(beyond);
    config.full_attention_every = config.full_attention_every.filter(beyond);
    if config.full_attention_every == Some(1) {
        config.window = None;
    }

    // A window as long as the sequence may still choose other rotary tables.
    if config.rope_local_theta.is_none() {
        config.window = config.window.filter(|window| *window < config.n_positions);
    }

    if config.window.is_none() {
        config.full_attention_every = None;
        config.rope_local_theta = None;
    }
    config
}

fn family_of(config: &GptConfig) -> &'static Family {
    let model_type = match (config.positions, config.norm, config.norm_placement) {
        (Positions::Learned, ..) => "gpt2",
        (Positions::Rope, NormKind::LayerNorm, _) => "gpt_neox",
        (_, _, NormPlacement::After) => "olmo2",
        (_, _, NormPlacement::Both) if config.qk_norm => "gemma3_text",
        (_, _, NormPlacement::Both) => "gemma2",
        _ if config.qk_norm => "qwen3",
        _ if config.unrotated_every.is_some() => "smollm3",
        _ if config.attention_bias && !config.has_output_bias() => "qwen2",
        _ if config.window.is_some() => "mistral",
        _ => "llama",
    };
    Family::named(model_type).expect("each name is a row of the table")
}

pub(super) fn model_type(config: &GptConfig) -> &'static str {
    family_of(config).model_type
}

/// A model's published `config.json`.
pub fn config_to_hugging_face(config: &GptConfig) -> Result<Value, WeightsError> {
    expressible(config)?;
    Ok(description(config))
}

fn description(config: &GptConfig) -> Value {
    let family = family_of(config);
    let own = config.to_value();

    let mut published = Map::new();
    for (key, ours) in family.settings() {
        let value = match ours {
            "n_kv_head" => json!(config.kv_heads()),
            "n_inner" if family.model_type != "gpt2" => json!(config.inner()),
            "head_dim" if config.head_dim.is_none() && family.switches().get(ours).is_none() => continue,
            "head_dim" => json!(config.head_dim()),
            "activation_function" if config.activation_function == Activation::GeGlu => {
                json!("gelu_pytorch_tanh")
            }
            "attention_scale" => {
                json!(config.attention_scale.map_or(config.head_dim() as f64, |scale| scale.powi(-2)))
            }
            _ => own[ours].clone(),
        };
        published.insert(key.to_owned(), value);
    }

    if family.model_type == "smollm3" {
        // The default needs SmolLM3's vocabulary.
        published.insert("pad_token_id".to_owned(), Value::Null);
    }
    published.insert("model_type".to_owned(), json!(family.model_type));
    published.insert("architectures".to_owned(), json!([family.class]));
    if family.model_type == "gpt2" {
        // The default special tokens need GPT-2's vocabulary.
        let special = if config.vocab_size > 50256 { json!(50256) } else { Value::Null };
        published.insert("bos_token_id".to_owned(), special.clone());
        published.insert("eos_token_id".to_owned(), special);
        published.insert("attn_pdrop".to_owned(), json!(config.attn_pdrop));
    } else {
        describe_rotation(config, family, &mut published);
    }

    if family.settings().any(|(_, ours)| ours == "window") {
        let kind =
            |layer| if config.window_of(layer).is_some() { "sliding_attention" } else { "full_attention" };
        published.insert("layer_types".to_owned(), (0..config.n_layer).map(kind).collect());
    }
    Value::Object(published)
}

fn describe_rotation(config: &GptConfig, family: &Family, published: &mut Map<String, Value>) {
    let scaling = config.rope_scaling.map(|scaling| json!(scaling));
    let mut parameters = scaling.clone().unwrap_or_else(|| json!({ "rope_type": "default" }));
    parameters["rope_theta"] = json!(config.rope_theta);
    if family.model_type == "gpt_neox" {
        parameters["partial_rotary_factor"] = json!(config.rope_share);
    }
    if let Some(theta) = config.rope_local_theta {
        let local = json!({ "rope_type": "default", "rope_theta": theta });
        parameters = json!({ "full_attention": parameters, "sliding_attention": local });
    }
    published.insert("rope_parameters".to_owned(), parameters);
    published.extend(scaling.map(|scaling| ("rope_scaling".to_owned(), scaling)));
    if family.model_type == "smollm3" {
        let every = config.unrotated_every.unwrap_or(usize::MAX);
        let rotates = |layer: usize| i32::from(!(layer + 1).is_multiple_of(every));
        published.insert("no_rope_layers".to_owned(), (0..config.n_layer).map(rotates).collect());
    }
}

/// Published descriptions may drop these.
const NOT_OF_THE_NETWORK: [&str; 6] =
    ["attn_pdrop", "compute", "init", "initializer_range", "match_pdrop", "scale_residual_init"];

/// Fails unless a `transformers` class computes the same network.
pub(super) fn expressible(config: &GptConfig) -> Result<(), WeightsError> {
    let family = family_of(config);
    let refused = |reason: String| WeightsError::NotExpressible { nearest: family.model_type, reason };
    let back = from_value(&description(config)).map_err(|error| refused(error.to_string()))?;
    let [wanted, back] = [config, &back.config].map(comparable);
    let differs = |(key, value): &(&String, &Value)| {
        !NOT_OF_THE_NETWORK.contains(&key.as_str()) && back[key.as_str()] != **value
    };
    match wanted.as_object().into_iter().flatten().find(differs) {
        Some((key, value)) => Err(refused(format!("it lacks `{key}` = {value}"))),
        None => Ok(()),
    }
}

/// Equal for equal networks.
fn comparable(config: &GptConfig) -> Value {
    let mut config = simplest(config.clone());
    config.n_kv_head = Some(config.kv_heads());
    config.n_inner = Some(config.inner());
    // Published as the inverse square, in f64.
    config.attention_scale = Some(f64::from(config.attention_scale() as f32));
    config.embedding_scale = config.embedding_scale.map(|scale| f64::from(scale as f32));
    config.to_value()
}
