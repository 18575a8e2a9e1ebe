//! Directories of weights: `transformers`', whole or sharded, and native, self-describing files.
//!
//! Directories are untrusted: only regular files are opened, files read whole have a size limit, and an index names its
//! own folder's files (`an_index_opens_files_of_its_own_folder_and_no_others`).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use durable::regular;
use serde::Deserialize;

use super::{
    IndexProblem, Layout, Published, Stored, WeightsError, config_to_hugging_face, hugging_face, load,
    native_config, save,
};
use crate::config::GptConfig;
use crate::gpt::Gpt;

const WHOLE: &str = "model.safetensors";
/// Lists the files of weights in several parts.
pub const INDEX: &str = "model.safetensors.index.json";
const DESCRIPTION: &str = "config.json";

const DESCRIPTION_BYTES: u64 = 1 << 20;
/// 256 experts per block need 9 MB.
const INDEX_BYTES: u64 = 32 << 20;

/// Loads a model of either layout from a directory.
pub fn load_pretrained<B: Backend>(directory: &Path, device: &B::Device) -> Result<Gpt<B>, WeightsError> {
    let (config, layout) = config_and_layout(directory)?;
    let files = files(directory, layout)?;
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    load(&config, &files, layout, device)
}

/// A directory's configuration. Reads no tensor.
pub fn pretrained_config(directory: &Path) -> Result<GptConfig, WeightsError> {
    config_and_layout(directory).map(|(config, _)| config)
}

/// Keys of a published `config.json` unread by any known family.
pub fn ignored_keys(directory: &Path) -> Result<Vec<String>, WeightsError> {
    described(directory).map(|(published, _)| published.ignored)
}

pub(super) fn files(directory: &Path, layout: Layout) -> Result<Vec<PathBuf>, WeightsError> {
    match layout {
        Layout::Native => Ok(vec![directory.join(WHOLE)]),
        Layout::HuggingFace => weight_files(directory),
    }
}

pub(super) fn config_and_layout(directory: &Path) -> Result<(GptConfig, Layout), WeightsError> {
    described(directory).map(|(published, layout)| (published.config, layout))
}

/// Native weights describe themselves, whatever `config.json` says.
fn described(directory: &Path) -> Result<(Published, Layout), WeightsError> {
    let whole = directory.join(WHOLE);
    if whole.exists() {
        match native_config(&whole) {
            Err(WeightsError::NoDescription { .. }) => {}
            native => return Ok((Published { config: native?, ignored: Vec::new() }, Layout::Native)),
        }
    }
    let path = directory.join(DESCRIPTION);
    let text = read(&path, DESCRIPTION_BYTES)?;
    let published = hugging_face::read(&text).map_err(WeightsError::config(&path))?;
    Ok((published, Layout::HuggingFace))
}

/// Writes `config.json` and `model.safetensors` into an existing directory.
pub fn save_pretrained<B: Backend>(
    model: &Gpt<B>,
    directory: &Path,
    stored: Stored,
) -> Result<(), WeightsError> {
    let mut description = config_to_hugging_face(model.config())?;
    description["torch_dtype"] = stored.name().into();
    save(model, &directory.join(WHOLE), Layout::HuggingFace, stored)?;
    let path = directory.join(DESCRIPTION);
    durable::write(&path, format!("{description:#}\n").as_bytes()).map_err(WeightsError::file("write", &path))
}

fn read(path: &Path, limit: u64) -> Result<String, WeightsError> {
    regular::read_text(path, limit).map_err(|error| WeightsError::file("read", path)(error.into()))
}

fn weight_files(directory: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    let (whole, path) = (directory.join(WHOLE), directory.join(INDEX));
    // As `transformers`: a model saved into the folder of its parts leaves their index.
    if whole.exists() || !path.exists() {
        return Ok(vec![whole]);
    }
    let names =
        shards(&read(&path, INDEX_BYTES)?).map_err(|problem| WeightsError::Index { path, problem })?;
    Ok(names.into_iter().map(|name| directory.join(name)).collect())
}

fn shards(index: &str) -> Result<Vec<String>, IndexProblem> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Index { weight_map } = serde_json::from_str(index).map_err(IndexProblem::Json)?;
    let mut names: Vec<String> = weight_map.into_values().collect();
    names.sort();
    names.dedup();
    match names.iter().find(|name| Path::new(name).file_name() != Some(OsStr::new(name))) {
        Some(other) => Err(IndexProblem::OutsideFolder(other.clone())),
        None if names.is_empty() => Err(IndexProblem::Empty),
        None => Ok(names),
    }
}
