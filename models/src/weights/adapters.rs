//! Adapters in and out, without the base: native files, and PEFT's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use serde_json::json;

use super::names::{Arrangement, Naming};
use super::store::{described, floats, parameters, transposed, views};
use super::tensors::{self, Stored, TensorFile, float_type};
use super::writing::{self, Fetch, Outgoing};
use super::{Layout, Report, WeightsError};
use crate::adapter::{LoraConfig, is_adapter};
use crate::config::GptConfig;
use crate::gpt::Gpt;

/// PEFT's file name.
pub const PEFT_WEIGHTS: &str = "adapter_model.safetensors";
pub(super) const PEFT_CONFIG: &str = "adapter_config.json";

fn of_adapters<B: Backend>(model: &Gpt<B>) -> impl Iterator<Item = (String, Outgoing<'static>)> {
    parameters(model).into_iter().filter(|(name, _)| is_adapter(name))
}

/// Saves only the adapters, in f32, with the model's description. Not synced: for a folder that is renamed once
/// complete.
pub fn save_adapters<B: Backend>(model: &Gpt<B>, path: &Path) -> Result<(), WeightsError> {
    let tensors = of_adapters(model).collect();
    writing::write(path, tensors, Stored::F32, Some(described(&model.config))).map_err(|error| error.at(path))
}

/// Checks names, shapes and types of a file's adapters. Reads no values.
pub fn check_adapters(config: &GptConfig, lora: &LoraConfig, path: &Path) -> Result<(), WeightsError> {
    let wanted = lora.parameters(config).into_iter().map(|adapter| (adapter.name, adapter.shape));
    let files = [TensorFile::open(path)?];
    checked(&wanted.collect(), path, &files).map(|_| ())
}

/// The tensors of `files`, which must be the `wanted` ones.
pub(super) fn checked<'f>(
    wanted: &BTreeMap<String, Vec<usize>>,
    path: &Path,
    files: &'f [TensorFile],
) -> Result<BTreeMap<String, safetensors::tensor::TensorView<'f>>, WeightsError> {
    let views = views(files, Layout::Native)?;
    let found = views.iter().map(|(name, view)| (name.clone(), view.shape().to_vec())).collect();
    let report = Report::compare(wanted, &found, |_| false);
    if !report.is_clean() {
        return Err(WeightsError::Mismatch { path: path.to_owned(), report });
    }
    wanted.keys().try_for_each(|name| float_type(name, views[name].dtype()).map(|_| ()))?;
    Ok(views)
}

/// Replaces a model's adapters by a file's.
pub fn load_adapters<B: Backend>(model: Gpt<B>, path: &Path) -> Result<Gpt<B>, WeightsError> {
    let wanted = of_adapters(&model).map(|(name, adapter)| (name, adapter.shape)).collect();
    let files = [TensorFile::open(path)?];
    let views = checked(&wanted, path, &files)?;
    let numbers = |name: &str| tensors::numbers(name, &views[name]);
    let mut fill = Fill { path: Vec::new(), numbers, error: None };
    let model = model.map(&mut fill);
    fill.error.map_or(Ok(model), Err)
}

pub(super) struct Fill<F> {
    pub(super) path: Vec<String>,
    pub(super) numbers: F,
    pub(super) error: Option<WeightsError>,
}

impl<B: Backend, F: Fn(&str) -> Result<TensorData, WeightsError>> ModuleMapper<B> for Fill<F> {
    crate::keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let name = self.path.join(".");
        if !is_adapter(&name) {
            return param;
        }
        param.map(|old| match (self.numbers)(&name) {
            Ok(numbers) => Tensor::from_data(numbers, &old.device()).set_require_grad(old.is_require_grad()),
            Err(error) => {
                self.error = Some(error);
                old
            }
        })
    }
}

/// Makes `folder` and saves the adapters as PEFT loads them, for the base model named `base`.
pub fn save_peft<B: Backend>(
    model: &Gpt<B>,
    lora: &LoraConfig,
    base: &str,
    folder: &Path,
    stored: Stored,
) -> Result<(), WeightsError> {
    let naming = Naming::new(&model.config, Layout::HuggingFace)?;
    let (mut tensors, mut targets) = (BTreeMap::new(), BTreeSet::new());
    let mut is_conv = false;
    for (name, Outgoing { shape, fetch }) in of_adapters(model) {
        let (projection, part) = name.rsplit_once(".adapter.").expect("it is an adapter's");
        let (theirs, arrangement) = naming.tensor(&format!("{projection}.weight"));
        if arrangement.third().is_some() {
            return Err(WeightsError::NotInPeft { projection: projection.to_owned() });
        }
        is_conv |= arrangement == Arrangement::Plain;
        let module = theirs.strip_suffix(".weight").expect("a projection's weight");
        targets.insert(module.rsplit('.').next().unwrap_or(module).to_owned());

        let matrix = if part == "down" { "lora_A" } else { "lora_B" };
        let shape = vec![shape[1], shape[0]];
        let sides = shape.clone();
        let turned: Fetch<'_> =
            Box::new(move || Ok(TensorData::new(transposed(&floats(fetch()?), sides[1]), sides.clone())));
        let called = format!("base_model.model.{module}.{matrix}.weight");
        tensors.insert(called, Outgoing { shape, fetch: turned });
    }

    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": targets,
        "fan_in_fan_out": is_conv,
        "bias": "none",
        "inference_mode": true,
    });
    std::fs::create_dir_all(folder).map_err(WeightsError::file("make", folder))?;
    let [weights, description] = [PEFT_WEIGHTS, PEFT_CONFIG].map(|name| folder.join(name));
    let note = ("format", "pt".to_owned());
    durable::write_with(&weights, |temporary| writing::write(temporary, tensors, stored, Some(note)))
        .map_err(|error| error.at(&weights))?;
    durable::write(&description, format!("{config:#}\n").as_bytes())
        .map_err(WeightsError::file("write", &description))
}
