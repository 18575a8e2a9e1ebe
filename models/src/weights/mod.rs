//! Weights in and out, as safetensors.
//!
//! Two layouts. [`Layout::Native`] holds every parameter under its own name and type, with the model's description in
//! the file's metadata: nothing is lost and any preset fits. [`Layout::HuggingFace`] writes the tensors `transformers`
//! expects of a GPT-2 or a Llama, and refuses a model that is neither.
//!
//! Files are read through a memory map, one tensor at a time, and converted to f32 whatever they hold. Before the first
//! tensor is read or allocated the whole list is compared, and one report names everything missing, left over or of
//! another shape. NaN and infinity are refused in either direction.
//! Writing goes to a neighbouring file that takes the name at the end, so a model may be saved over the file it was
//! loaded from, even while that is mapped, and a crash leaves the old file whole.

mod directory;
mod hugging_face;
mod names;
mod report;
mod store;
mod tensors;

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::error::ConfigError;
pub use directory::{load_pretrained, pretrained_config, save_pretrained};
pub use hugging_face::{config_from_hugging_face, config_to_hugging_face};
pub use report::Report;
pub use store::{Read, check_native, load, load_native, native_config, save, save_completed};
pub use tensors::{Fetch, Outgoing, Stored, TensorFile, write_tensors};

/// How tensors are named and laid out in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// This crate's own names, every tensor as it is.
    Native,
    /// The names and orientations `transformers` uses.
    HuggingFace,
}

/// Weights that could not be read or written.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The file could not be opened, read, written or renamed.
    #[error("could not {attempt} `{}`: {source}", path.display())]
    File {
        /// The attempted action, such as "read".
        attempt: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A tensor could not be fetched from where it is.
    #[error("could not fetch the tensor `{name}` to save it: {reason}")]
    Unread {
        /// The tensor.
        name: String,
        /// The message of the device or of whatever else holds the tensor.
        reason: String,
    },
    /// The file is not safetensors, or is cut short.
    #[error("`{}` is not a complete safetensors file: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The reader's error.
        source: safetensors::SafeTensorError,
    },
    /// The tensors are not those of the model.
    #[error("the tensors in `{}` are not those of the model:\n{report}", path.display())]
    Mismatch {
        /// The file, or the first of several.
        path: PathBuf,
        /// All differences.
        report: Report,
    },
    /// A tensor of integers or of an exotic float.
    #[error("tensor `{name}` has type {dtype}; weights are read from F64, F32, F16 and BF16")]
    Dtype {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// A tensor holds NaN or infinity.
    #[error("tensor `{name}` holds {value}, so it can be neither saved nor loaded")]
    NotFinite {
        /// The tensor.
        name: String,
        /// The first such number in it.
        value: f32,
    },
    /// The description has more blocks than the file has tensors.
    #[error("the model has {blocks} blocks, but `{}` holds {tensors} tensors in all", path.display())]
    Blocks {
        /// The file, or the first of several.
        path: PathBuf,
        /// `n_layer`.
        blocks: usize,
        /// Tensors in all files.
        tensors: usize,
    },
    /// The file has no description of its model.
    #[error("`{}` holds no model description, so it was not written in the native layout; load it with a \
             configuration", path.display())]
    NoDescription {
        /// The file.
        path: PathBuf,
    },
    /// The description beside or inside the weights is no valid model.
    #[error("the model description in `{}` cannot be used: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The error in the configuration.
        source: ConfigError,
    },
    /// The index of shards cannot be used.
    #[error("the index of weights `{}` cannot be used: {problem}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// The problem in it.
        problem: IndexProblem,
    },
    /// The network has something neither GPT-2 nor Llama has.
    #[error(
        "the model is neither a GPT-2 nor a Llama in Hugging Face's sense, because {reason}; use the native layout"
    )]
    NotExpressible {
        /// The first feature that does not fit.
        reason: &'static str,
    },
}

/// A fault of an index of shards.
#[derive(Debug, Error)]
pub enum IndexProblem {
    /// It is no JSON, or maps no tensors to files.
    #[error("{0}")]
    Json(serde_json::Error),
    /// It names no file.
    #[error("it names no file")]
    Empty,
    /// It names something else than a file beside it.
    #[error("it names `{0}`, which is no file of its own folder")]
    Elsewhere(String),
}

impl WeightsError {
    fn file(attempt: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { attempt, path, source }
    }

    fn config(path: &Path) -> impl FnOnce(ConfigError) -> Self {
        let path = path.to_owned();
        move |source| Self::Config { path, source }
    }
}
