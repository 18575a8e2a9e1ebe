//! Errors of checkpoints, each with a way out.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use backend_offload::Bytes;
use tokenizer::Fingerprint;

/// A failure to save, find or use a checkpoint.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its variant is and what its fields are")]
pub enum CheckpointError {
    #[error(
        "saving step {step} in {}: {needed} bytes ({}) are needed, {free} bytes ({}) are free. Nothing was written; \
         make room, keep fewer checkpoints or use another disk",
        folder.display(), Bytes(*needed), Bytes(*free)
    )]
    NoSpace { step: u64, folder: PathBuf, needed: u64, free: u64 },
    #[error("saving step {step} as {}: {cause:#}. Earlier checkpoints are as they were{}", path.display(), way_out(cause))]
    Save { step: u64, path: PathBuf, cause: anyhow::Error },
    #[error("{attempt} {}: {cause}", path.display())]
    Folder { attempt: &'static str, path: PathBuf, cause: io::Error },
    #[error("there is no {what} in {}{}", folder.display(), present(steps))]
    Absent { what: String, folder: PathBuf, steps: Vec<u64> },
    #[error("the checkpoint {} is damaged: {file} {damage}{}", path.display(), offer(whole.as_deref()))]
    Damaged {
        path: PathBuf,
        /// Relative to `path`.
        file: String,
        damage: Box<Damage>,
        /// The run's latest whole checkpoint.
        whole: Option<PathBuf>,
    },
    #[error(
        "{} says `{text}`, which is not the name of a checkpoint{}",
        pointer.display(), offer(whole.as_deref())
    )]
    Pointer { pointer: PathBuf, text: String, whole: Option<PathBuf> },
}

/// Damage to one file.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its variant is and what its fields are")]
pub enum Damage {
    #[error("is missing")]
    Missing,
    #[error("is not in the manifest")]
    Extra,
    #[error("is neither a file nor a folder")]
    NotAFile,
    #[error("has {found} bytes, the manifest says {expected}")]
    Size { expected: u64, found: u64 },
    #[error("has the SHA-256 {found}, expected was {expected}")]
    Checksum { expected: Fingerprint, found: Fingerprint },
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("is no manifest: {reason}")]
    NotAManifest { reason: String },
    #[error("has format version {found}, this program reads {read}")]
    Version { found: u32, read: u32 },
    #[error("has a name that is no text")]
    Name,
}

impl CheckpointError {
    pub(super) fn folder(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Folder { attempt, path: path.to_owned(), cause }
    }
}

fn way_out(cause: &anyhow::Error) -> &'static str {
    let kind = cause.chain().find_map(|cause| cause.downcast_ref()).map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge) => {
            "; make room or keep fewer checkpoints"
        }
        _ => "",
    }
}

fn present(steps: &[u64]) -> String {
    if steps.is_empty() {
        return ", nor any other".to_owned();
    }
    let steps: Vec<_> = steps.iter().map(u64::to_string).collect();
    format!("; there are those of the steps {}", steps.join(", "))
}

fn offer(whole: Option<&Path>) -> impl fmt::Display {
    whole.map_or("; no other checkpoint of this run is whole".to_owned(), |whole| {
        format!("; {} is whole", whole.display())
    })
}
