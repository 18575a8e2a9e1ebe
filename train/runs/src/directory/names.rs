//! Paths of runs and checkpoints, and names of runs.

use std::path::{Path, PathBuf};

use crate::BadInput;
use crate::checkpoint::{CONFIG, CheckpointError, Checkpoints, Verified, WEIGHTS, Which};

const RUNS: &str = "runs";

/// A run's default configuration.
pub const DEFAULT: &str = "toy.json";

/// Whether `path` is a checkpoint, even a damaged or renamed one.
pub fn is_checkpoint(path: &Path) -> bool {
    Checkpoints::is_one(path) || path.join(WEIGHTS).exists()
}

/// The error for any other path.
pub fn neither(path: &Path) -> BadInput {
    BadInput(format!("{} is neither a run's directory nor a checkpoint", path.display()))
}

/// A run's latest checkpoint, verified; `None` before the first save.
pub fn latest(run: &Path) -> Result<Option<Verified>, CheckpointError> {
    match Checkpoints::in_run(run).find(Which::Latest) {
        Err(CheckpointError::Absent { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// `runs/toy`, `runs/toy-2`, …
fn numbered(name: Option<&str>) -> impl Iterator<Item = PathBuf> {
    let stem = Path::new(name.unwrap_or(DEFAULT)).file_stem();
    let stem = stem.map_or_else(|| "run".to_owned(), |stem| stem.to_string_lossy().into_owned());
    let name = move |n: u32| if n == 1 { stem.clone() } else { format!("{stem}-{n}") };
    (1..).map(move |n| Path::new(RUNS).join(name(n)))
}

pub(super) fn unused(name: Option<&str>) -> PathBuf {
    numbered(name).find(|path| !path.join(CONFIG).exists()).expect("numbers do not run out")
}

/// The last run of this name, else the first path.
pub fn latest_named(name: Option<&str>) -> PathBuf {
    let there = numbered(name).take_while(|path| path.join(CONFIG).exists()).last();
    there.unwrap_or_else(|| unused(name))
}
