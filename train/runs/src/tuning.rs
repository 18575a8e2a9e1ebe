//! Defaults of a run that begins with trained weights, which pretraining's defaults would destroy.

use std::path::Path;

use anyhow::Context;
use durable::regular;
use models::{Footprint, GptConfig, weights};
use serde_json::{Map, Value, json};

use crate::BadInput;
use crate::checkpoint::CONFIG;
use crate::config::Config;

/// Conversations are seldom longer; memory grows with length.
const SEQUENCE: usize = 2048;

/// Accumulated: the plan may let them pass together.
const SEQUENCES: usize = 4;

const MAX_BYTES: u64 = 4 << 20;

const EPOCHS: f64 = 3.0;
const WARM_UP: f64 = 0.03;
const WEIGHT_DECAY: f64 = 0.01;

/// Peak learning rates by most parameters. For 7 and 8 billion, torchtune and Hugging Face's alignment handbook use
/// 2e-5; smaller models bear more.
const RATES: [(u64, f64); 4] =
    [(20_000_000, 5e-4), (200_000_000, 1e-4), (2_000_000_000, 5e-5), (10_000_000_000, 2e-5)];
const LEAST_RATE: f64 = 1e-5;

/// For adapters, which start at zero: the usual rate, and half for the largest models.
const LORA_RATES: [f64; 2] = [2e-4, 1e-4];
const LORA_LARGE: u64 = 10_000_000_000;

fn lora_rate(parameters: u64) -> f64 {
    LORA_RATES[usize::from(parameters > LORA_LARGE)]
}

fn rate(parameters: u64) -> f64 {
    RATES.iter().find(|(most, _)| parameters <= *most).map_or(LEAST_RATE, |(_, rate)| *rate)
}

/// Settings, as for `--set`, of a run with the weights of `model`. Steps or tokens in `set` replace epochs. A
/// `data.path` alone is text.
pub(crate) fn defaults(model: &GptConfig, set: &[String]) -> anyhow::Result<Vec<String>> {
    let gives =
        |key: &str| set.iter().any(|given| given.split_once('=').is_some_and(|(name, _)| name.trim() == key));
    let mut train = Map::new();
    let mut put = |key: &str, value: Value| train.insert(key.to_owned(), value);
    let parameters = Footprint::of(model)?.parameters;
    put("lr", json!(if has_adapters(set) { lora_rate(parameters) } else { rate(parameters) }));
    put("weight_decay", json!(WEIGHT_DECAY));
    put("betas", json!([0.9, 0.999]));
    put("schedule", json!({ "warmup": WARM_UP }));
    put("sequence", json!(model.n_positions.min(SEQUENCE)));
    put("micro_batch", json!(1));
    put("accumulate", json!(SEQUENCES));
    put("recompute", json!(1));
    if !gives("train.steps") && !gives("train.tokens") {
        put("epochs", json!(EPOCHS));
    }

    let mut settings = vec![format!("train={}", Value::Object(train))];
    if gives("data.path") && !gives("data.source") {
        settings
            .extend(["data.source=text", "data.align=document", "data.split=document"].map(str::to_owned));
    }
    Ok(settings)
}

/// Configures a run that tunes the model in `folder`, a run or a published one, without its weights.
pub fn tuned(folder: &Path, set: &[String]) -> anyhow::Result<Config> {
    let path = folder.join(CONFIG);
    let text = regular::read_text(&path, MAX_BYTES).with_context(|| format!("reading {}", path.display()))?;
    let described: Value =
        serde_json::from_str(&text).map_err(|error| BadInput(format!("{}: {error}", path.display())))?;
    let model = if described.get("model").is_some_and(Value::is_object) {
        Config::load(&path.to_string_lossy(), &[])?.model
    } else {
        weights::pretrained_config(folder).map_err(|error| BadInput(error.to_string()))?
    };
    // Unopened: any vocabulary will do.
    let base = json!({
        "model": model.to_value(),
        "tokenizer": { "kind": "file", "path": folder },
    });
    let settings = [&defaults(&model, set)?, set].concat();
    Ok(Config::from_text(&base.to_string(), "the tuned model's configuration", &settings)?)
}

fn has_adapters(set: &[String]) -> bool {
    let asks = |given: &String| {
        let (key, value) = given.split_once('=')?;
        let key = key.trim();
        Some(key.starts_with("train.lora.") || key == "train.lora" && value.trim() != "null")
    };
    set.iter().any(|given| asks(given).unwrap_or(false))
}

pub(crate) fn described(defaults: &[String]) -> String {
    let keys = |setting: &String| {
        let (section, value) = setting.split_once('=')?;
        let values: Map<String, Value> = serde_json::from_str(value).ok()?;
        Some(values.iter().map(|(key, value)| format!("{section}.{key}={value}")).collect::<Vec<_>>())
    };
    let each = defaults.iter().flat_map(|setting| keys(setting).unwrap_or_else(|| vec![setting.clone()]));
    format!("defaults for tuning, to change by --set: {}", each.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_models_are_tuned_at_lower_rates() {
        let rates = [1_000_000, 124_000_000, 1_100_000_000, 8_000_000_000, 70_000_000_000].map(rate);
        assert_eq!(format!("{rates:?}"), "[0.0005, 0.0001, 5e-5, 2e-5, 1e-5]");
    }

    #[test]
    fn a_length_or_a_source_that_is_given_replaces_the_default() {
        let model = models::presets::preset("gpt2").expect("a preset");
        let settings = |set: &[&str]| {
            let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
            described(&defaults(&model, &set).expect("valid"))
        };
        let plain = settings(&[]);
        assert!(plain.contains("train.epochs=3.0") && plain.contains("train.lr=0.0001"), "{plain}");
        assert!(plain.contains("train.sequence=1024") && !plain.contains("data."), "{plain}");
        assert!(!settings(&["train.steps=5"]).contains("epochs"));
        assert!(settings(&["train.lora.rank=4"]).contains("train.lr=0.0002"));
        assert!(settings(&["train.lora={\"rank\": 4}"]).contains("train.lr=0.0002"));
        assert!(settings(&["train.lora=null"]).contains("train.lr=0.0001"));
        assert!(settings(&["data.path=x.jsonl"]).contains("data.source=text"));
        assert!(!settings(&["data.path=x", "data.source=shards"]).contains("data."));
    }
}
