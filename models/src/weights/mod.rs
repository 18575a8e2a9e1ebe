//! Weights in and out, as safetensors; [`gguf`] writes files for `llama.cpp`.
//!
//! [`Layout::Native`] holds any model, with its description in the metadata; [`Layout::HuggingFace`], the families of
//! `families.rs`.
//!
//! One report names all missing, extra and reshaped tensors before any is read. NaN and infinity are refused in both
//! directions. No bytes cause a panic (`no_bytes_in_a_weights_file_cause_a_panic`).
//!
//! Files are renamed once complete: a model may overwrite the mapped file it came from.

mod adapters;
mod conversion;
mod directory;
mod families;
pub mod gguf;
mod hugging_face;
mod names;
mod peft;
mod report;
mod store;
mod tensors;
mod writing;

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::error::ConfigError;
pub use adapters::{PEFT_WEIGHTS, check_adapters, load_adapters, save_adapters, save_peft};
pub use conversion::Incoming;
pub use directory::{INDEX, ignored_keys, load_pretrained, pretrained_config, save_pretrained};
pub use hugging_face::{Published, config_from_hugging_face, config_to_hugging_face};
pub use peft::{PeftAdapters, PeftProblem};
pub use report::Report;
pub use store::{
    Factors, Read, begin_completed, check_native, load, load_as, load_native, load_part, native_config, save,
};
pub use tensors::{Stored, TensorFile};
pub use writing::{Begun, Fetch, Joined, Outgoing};

/// Names and layout of a file's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// This crate's own.
    Native,
    /// Names of `transformers`.
    HuggingFace,
}

/// Weights that could not be read or written.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The file could not be opened, read, written or renamed.
    #[error("could not {attempt} `{}`: {source}", path.display())]
    File {
        /// Such as "read".
        attempt: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A tensor's values could not be fetched.
    #[error("could not fetch the tensor `{name}` to save it: {reason}")]
    Unread {
        /// The tensor.
        name: String,
        /// The message of the device or the tensor's other holder.
        reason: String,
    },
    /// Not safetensors, or cut short.
    #[error("`{}` is not a complete safetensors file: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The reader's error.
        source: safetensors::SafeTensorError,
    },
    /// The tensors are not the model's.
    #[error("the tensors in `{}` are not those of the model:\n{report}", path.display())]
    Mismatch {
        /// The file, or the first.
        path: PathBuf,
        /// All differences.
        report: Report,
    },
    /// A tensor of an unsupported type.
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
        /// The first such number.
        value: f32,
    },
    /// A number that f16 cannot hold.
    #[error("tensor `{name}` holds a number beyond 65,504, the largest of f16; store it as bf16 or f32")]
    BeyondF16 {
        /// The tensor.
        name: String,
    },
    /// More blocks than tensors.
    #[error("the model has {blocks} blocks, but `{}` holds {tensors} tensors in all", path.display())]
    Blocks {
        /// The file, or the first.
        path: PathBuf,
        /// `n_layer`.
        blocks: usize,
        /// Tensors in all files.
        tensors: usize,
    },
    /// A native file without a description.
    #[error("`{}` holds no model description, so it was not written in the native layout; load it with a \
             configuration", path.display())]
    NoDescription {
        /// The file.
        path: PathBuf,
    },
    /// An invalid description.
    #[error("the model description in `{}` cannot be used: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ConfigError,
    },
    /// An unusable index of shards.
    #[error("the index of weights `{}` cannot be used: {problem}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// The fault.
        problem: IndexProblem,
    },
    /// A network without a published family.
    #[error(
        "the model fits no family of Hugging Face's, the nearest is {nearest}: {reason}; use the native layout"
    )]
    NotExpressible {
        /// The nearest family, by `model_type`.
        nearest: &'static str,
        /// The first feature that does not fit.
        reason: String,
    },
    /// Adapters of projections that a family stores in one tensor.
    #[error(
        "adapters of `{projection}` cannot be written for PEFT: this family keeps query, key and value in one matrix; \
         export the merged model by another layout"
    )]
    NotInPeft {
        /// Path of the projection.
        projection: String,
    },
    /// Adapters of PEFT that this network cannot have.
    #[error("the adapters described in `{}` cannot be used: {problem}", path.display())]
    Peft {
        /// The description.
        path: PathBuf,
        /// The fault.
        problem: PeftProblem,
    },
    /// A network without an architecture in `llama.cpp`.
    #[error(
        "the model cannot be written for llama.cpp, whose nearest architecture is {family}: {reason}; use \
         another layout"
    )]
    NotInLlamaCpp {
        /// The nearest family, by `model_type`.
        family: &'static str,
        /// The first feature that does not fit.
        reason: String,
    },
}

/// A fault in an index of shards.
#[derive(Debug, Error)]
pub enum IndexProblem {
    /// Invalid JSON, or no map of tensors to files.
    #[error("{0}")]
    Json(serde_json::Error),
    /// It names no file.
    #[error("it names no file")]
    Empty,
    /// It names a file elsewhere.
    #[error("it names `{0}`, which is no file of its own folder")]
    OutsideFolder(String),
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
