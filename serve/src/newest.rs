//! The run that saved a checkpoint last.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use runs::checkpoint::Checkpoints;

pub(crate) fn newest_run(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let runs = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).filter(|run| wanted(run));
    let dated = runs.filter_map(|run| Some((saved(&run)?, run)));
    dated.max().map(|(_, run)| run)
}

fn saved(run: &Path) -> Option<SystemTime> {
    let folders = Checkpoints::in_run(run).folders().ok()?;
    folders.iter().filter_map(|folder| folder.metadata().ok()?.modified().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_with_the_newest_checkpoint_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path();
        assert_eq!(newest_run(&runs.join("nowhere"), |_| true), None);
        fs::create_dir(runs.join("empty")).unwrap();
        assert_eq!(newest_run(runs, |_| true), None);
        let day = |n: u64| SystemTime::UNIX_EPOCH + std::time::Duration::from_hours(24 * n);
        for (name, steps) in
            [("older", [(2, 9)].as_slice()), ("newer", &[(1, 5), (2, 10)]), ("oldest", &[(7, 3)])]
        {
            for (step, saved) in steps {
                let write = |folder: &Path| Ok(fs::write(folder.join("weights"), "some")?);
                let saving = Checkpoints::in_run(&runs.join(name)).save(*step, 0, write).unwrap();
                fs::File::open(saving.path).unwrap().set_modified(day(*saved)).unwrap();
            }
        }
        assert_eq!(newest_run(runs, |_| true), Some(runs.join("newer")));
        let finished = newest_run(runs, |run| !run.ends_with("newer"));
        assert_eq!(finished, Some(runs.join("older")), "an unfinished run does not hide a finished one");
    }
}
