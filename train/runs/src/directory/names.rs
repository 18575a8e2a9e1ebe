//! Which path is a run, which a checkpoint, and what runs are called.

use std::path::{Path, PathBuf};

use crate::BadInput;
use crate::checkpoint::{CONFIG, CheckpointError, Checkpoints, Verified, WEIGHTS, Which};

/// Where runs are made that are not told where.
const RUNS: &str = "runs";

/// The configuration of a run that names none.
pub const DEFAULT: &str = "toy.json";

/// Whether `path` is a checkpoint or what is left of one, whatever it is called.
pub fn is_checkpoint(path: &Path) -> bool {
    Checkpoints::is_one(path) || path.join(WEIGHTS).exists()
}

/// The refusal of a path that is neither.
pub fn neither(path: &Path) -> BadInput {
    BadInput(format!("{} is neither a run's directory nor a checkpoint", path.display()))
}

/// `None` before the first save.
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

/// The last of them that is there, or else the first name.
pub fn latest_named(name: Option<&str>) -> PathBuf {
    let there = numbered(name).take_while(|path| path.join(CONFIG).exists()).last();
    there.unwrap_or_else(|| unused(name))
}
