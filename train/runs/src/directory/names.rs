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

/// The error for any other path, of a `command` that takes one.
pub fn neither(path: &Path, command: &str) -> BadInput {
    let path = path.display();
    BadInput(format!(
        "{path} is neither a run's directory nor a checkpoint; begin a run by `train --out {path}`, or name another by \
         `{command} PATH`"
    ))
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
    let file = Path::new(name.unwrap_or(DEFAULT)).file_name();
    let file = file.map_or_else(|| "run".to_owned(), |file| file.to_string_lossy().into_owned());
    let first = file.strip_suffix(".json").map_or_else(|| file.clone(), str::to_owned);
    let name = move |n: u32| if n == 1 { first.clone() } else { format!("{first}-{n}") };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_whole_name_of_its_configuration_or_of_the_weights_it_begins_with() {
        for (given, named) in [
            (None, "runs/toy"),
            (Some("gpt-1.5b"), "runs/gpt-1.5b"),
            (Some("gpt-1.5b.json"), "runs/gpt-1.5b"),
            (Some("configs/mine.json"), "runs/mine"),
            (Some("runs/Llama-3.2-1B/"), "runs/Llama-3.2-1B"),
            (Some(".."), "runs/run"),
        ] {
            assert_eq!(numbered(given).next(), Some(PathBuf::from(named)));
        }
        assert_eq!(numbered(Some("gpt-1.5b")).nth(1), Some(PathBuf::from("runs/gpt-1.5b-2")));
    }
}
