//! Adapters from a folder in PEFT's layout. Other changes to the network are refused by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::{TensorData, backend::Backend};
use durable::regular;
use safetensors::tensor::TensorView;
use serde::de::Error as _;
use serde_json::{Map, Value};
use thiserror::Error;

use super::adapters::{Fill, PEFT_CONFIG, PEFT_WEIGHTS, checked};
use super::names::{Arrangement, Naming};
use super::store::{floats, transposed};
use super::tensors::{self, TensorFile};
use super::{Layout, WeightsError};
use crate::adapter::{LoraConfig, LoraError, Projection};
use crate::config::GptConfig;
use crate::gpt::Gpt;

const CONFIG_BYTES: u64 = 1 << 20;

/// A description of adapters that this network cannot have.
#[derive(Debug, Error)]
pub enum PeftProblem {
    /// No JSON object, or a field of another type.
    #[error("{0}")]
    Json(serde_json::Error),
    /// A key that changes the network.
    #[error("`{key}` = {value} is not supported: {reason}")]
    Key {
        /// The key.
        key: String,
        /// Its value.
        value: Value,
        /// The lack.
        reason: &'static str,
    },
    /// An impossible rank, scale or target.
    #[error("{0}")]
    Lora(LoraError),
}

/// Keys without effect here. Tensors show what `target_modules` and `layers_to_transform` select.
const INERT: [&str; 19] = [
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
];

/// Initialisations that leave the base as it was.
const PLAIN_STARTS: [&str; 4] = ["gaussian", "eva", "orthogonal", "mica"];

fn refusal(key: &str, value: &Value) -> Option<&'static str> {
    let is_neutral = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    match key {
        "peft_type" => (value != "LORA").then_some("only LORA adds two matrices to a projection"),
        "bias" => (value != "none").then_some("biases are the base's"),
        "init_lora_weights" => {
            let plain =
                value.is_boolean() || value.as_str().is_some_and(|start| PLAIN_STARTS.contains(&start));
            (!plain && !is_neutral)
                .then_some("it changes the base, which this folder does not hold; convert it by PEFT")
        }
        _ if is_neutral || INERT.contains(&key) => None,
        "use_dora" => Some("DoRA also scales the projection's own weights"),
        "rank_pattern" => Some("all modules have one rank; merge the adapters by PEFT instead"),
        "alpha_pattern" => Some("all modules have one scale; merge the adapters by PEFT instead"),
        "modules_to_save" | "trainable_token_indices" => Some("other modules than projections were trained"),
        _ => Some("it may change the network"),
    }
}

/// Adapters in PEFT's layout, checked against a model's shape. No number is read yet.
#[derive(Debug)]
pub struct PeftAdapters {
    path: PathBuf,
    file: TensorFile,
    lora: LoraConfig,
}

impl PeftAdapters {
    /// Opens `folder`, whose adapters must fit `config`.
    pub fn open(config: &GptConfig, folder: &Path) -> Result<Self, WeightsError> {
        let described = folder.join(PEFT_CONFIG);
        let text = regular::read_text(&described, CONFIG_BYTES)
            .map_err(|error| WeightsError::file("read", &described)(error.into()))?;
        let unusable = |problem| WeightsError::Peft { path: described.clone(), problem };
        let (rank, alpha, dropout) = settings(&text).map_err(unusable)?;

        let path = folder.join(PEFT_WEIGHTS);
        let file = TensorFile::open(&path)?;
        let naming = Naming::new(config, Layout::HuggingFace)?;
        let adapts = |target: &Projection| {
            let weight = |layer: usize| format!("blocks.{layer}.{}.weight", target.path());
            let has = |layer| file.info(&theirs(naming, &weight(layer), "down").0).is_some();
            (*target != Projection::Gate || config.has_gate()) && (0..config.n_layer).any(has)
        };
        let targets = Projection::ALL.into_iter().filter(adapts).collect();
        let lora = LoraConfig { rank, alpha, targets, dropout };
        lora.check(config).map_err(|error| unusable(PeftProblem::Lora(error)))?;
        let peft = Self { path, file, lora };
        peft.views(config).map(|_| ())?;
        Ok(peft)
    }

    /// The adapters' settings. With `use_rslora`, `alpha` makes up for the other divisor.
    pub fn lora(&self) -> &LoraConfig {
        &self.lora
    }

    fn views(&self, config: &GptConfig) -> Result<BTreeMap<String, TensorView<'_>>, WeightsError> {
        let naming = Naming::new(config, Layout::HuggingFace)?;
        let wanted = self.lora.parameters(config).into_iter().map(|adapter| {
            let (weight, part) = of_adapter(&adapter.name);
            let (theirs, arrangement) = theirs(naming, &weight, part);
            let [rows, columns] = [adapter.shape[1], adapter.shape[0]];
            // Query, key and value of one published module share its `lora_A`.
            let thirds = if part == "up" && arrangement.third().is_some() { 3 } else { 1 };
            (theirs, vec![rows * thirds, columns])
        });
        checked(&wanted.collect(), &self.path, std::slice::from_ref(&self.file))
    }

    /// Replaces the numbers of the adapters in `model`, which has [`PeftAdapters::lora`]. Projections that share a
    /// published module begin with equal `down` matrices.
    pub fn load<B: Backend>(&self, model: Gpt<B>) -> Result<Gpt<B>, WeightsError> {
        let views = self.views(&model.config)?;
        let naming = Naming::new(&model.config, Layout::HuggingFace)?;
        let numbers = |name: &str| {
            let (weight, part) = of_adapter(name);
            let (theirs, arrangement) = theirs(naming, &weight, part);
            let view = &views[&theirs];
            let (columns, values) = (view.shape()[1], floats(tensors::numbers(&theirs, view)?));
            let values = if part == "up" { rows(arrangement, values, columns) } else { values };
            let shape = [columns, values.len() / columns];
            Ok(TensorData::new(transposed(&values, shape[1]), shape))
        };
        let mut fill = Fill { path: Vec::new(), numbers, error: None };
        let model = model.map(&mut fill);
        fill.error.map_or(Ok(model), Err)
    }
}

/// The projection's weight, and `down` or `up`.
fn of_adapter(name: &str) -> (String, &str) {
    let (projection, part) = name.rsplit_once(".adapter.").expect("it is an adapter's");
    (format!("{projection}.weight"), part)
}

fn theirs(naming: Naming, weight: &str, part: &str) -> (String, Arrangement) {
    let (theirs, arrangement) = naming.tensor(weight);
    let module = theirs.strip_suffix(".weight").expect("a projection's weight");
    let matrix = if part == "down" { "lora_A" } else { "lora_B" };
    (format!("base_model.model.{module}.{matrix}.weight"), arrangement)
}

/// The projection's rows of `values`, with `columns`.
fn rows(arrangement: Arrangement, values: Vec<f32>, columns: usize) -> Vec<f32> {
    let (index, each) = match arrangement {
        Arrangement::Third(index) => (index, values.len() / 3),
        Arrangement::ThirdOfHeads { index, head_dim } => (index, head_dim * columns),
        Arrangement::Plain | Arrangement::Transposed | Arrangement::LessOne => return values,
    };
    values.chunks(3 * each).flat_map(|thirds| &thirds[index * each..][..each]).copied().collect()
}

/// Rank, alpha and dropout.
fn settings(text: &str) -> Result<(usize, f64, f64), PeftProblem> {
    let described: Map<String, Value> = serde_json::from_str(text).map_err(PeftProblem::Json)?;
    if let Some((key, value, reason)) =
        described.iter().find_map(|(key, value)| Some((key, value, refusal(key, value)?)))
    {
        return Err(PeftProblem::Key { key: key.clone(), value: value.clone(), reason });
    }
    let number = |key: &str, default: f64| match described.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => {
            let number = value.as_f64();
            number
                .ok_or_else(|| PeftProblem::Json(serde_json::Error::custom(format!("`{key}` is no number"))))
        }
    };
    let rank = number("r", 8.0)?;
    let alpha = number("lora_alpha", 8.0)?;
    let is_by_root = described.get("use_rslora") == Some(&Value::Bool(true));
    let alpha = if is_by_root { alpha * rank.sqrt() } else { alpha };
    Ok((rank as usize, alpha, number("lora_dropout", 0.0)?))
}
