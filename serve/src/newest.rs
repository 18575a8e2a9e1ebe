//! The run that was saved last.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use runs::checkpoint::Checkpoints;

/// The run in `folder` with the newest checkpoint, if any has one.
pub(crate) fn newest(folder: &Path) -> Option<PathBuf> {
    let runs = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let dated = runs.filter_map(|run| Some((saved(&run)?, run)));
    dated.max().map(|(_, run)| run)
}

/// When a run's latest checkpoint was written.
fn saved(run: &Path) -> Option<SystemTime> {
    let folders = Checkpoints::in_run(run).folders().ok()?;
    folders.iter().filter_map(|folder| folder.metadata().ok()?.modified().ok()).max()
}
