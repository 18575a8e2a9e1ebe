//! A run's start: locks its directory, writes its configuration last, and undoes its work on failure.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf, absolute},
};

use anyhow::Context;

use super::RunDirectory;
use crate::BadInput;
use crate::checkpoint::{self, CONFIG, Checkpoints, TOKENIZER};
use crate::config::Config;

const PREPARED: [&str; 2] = [TOKENIZER, "data"];
/// A run's results, written when it ends.
pub const SUMMARY: &str = "summary.json";
const LOCK: &str = "lock";
/// Names the checkpoint of another run that this one began with.
const ORIGIN: &str = "began-with";

/// A run directory in preparation: [`commit`](Self::commit) makes it a run, a drop undoes it.
#[derive(Debug)]
pub struct Start<'r> {
    directory: &'r RunDirectory,
    lock: Option<File>,
    fresh: bool,
    made: Vec<PathBuf>,
}

/// Locks a run directory during training.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock lives as long as the open file")] Option<File>);

impl RunDirectory {
    /// Makes the directory and locks it.
    pub fn start(&self) -> anyhow::Result<Start<'_>> {
        let fresh = !self.path.join(CONFIG).exists();
        // With a lock but no run, a killed start left them.
        let foreign = PREPARED.iter().find(|name| self.path.join(name).exists());
        if let Some(name) = foreign.filter(|_| fresh && !self.path.join(LOCK).exists()) {
            let path = self.path.display();
            return Err(BadInput(format!("{path} holds `{name}` but no run; choose another --out")).into());
        }
        let folders = self.path.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        let made = folders.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        fs::create_dir_all(&self.path).with_context(|| format!("making {}", self.path.display()))?;
        let start = Start { directory: self, lock: Some(self.lock()?), fresh, made };
        if fresh {
            start.clear()?;
        }
        Ok(start)
    }

    /// Without its own first checkpoint, such a run would resume from random weights.
    pub(super) fn refuse_lost_beginning(run: &Path) -> anyhow::Result<()> {
        let path = run.join(ORIGIN);
        match fs::read_to_string(&path) {
            Ok(origin) => Err(BadInput(format!(
                "{} began with the weights of {origin} and has no checkpoint of its own yet; begin it again in another \
                 --out",
                run.display()
            ))
            .into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// The checkpoint of another run that this one begins with.
    fn origin(&self) -> Option<&Path> {
        if let Some(pretrained) = &self.pretrained {
            return Some(pretrained.path());
        }
        let from = &self.from.as_ref()?.path;
        let is_own = Checkpoints::run_of(from) == absolute(&self.path).ok();
        (!is_own).then_some(from)
    }

    fn lock(&self) -> anyhow::Result<File> {
        let path = self.path.join(LOCK);
        // Untruncated: a foreign run may have a link of this name.
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| format!("making {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let path = self.path.display();
                Err(BadInput(format!(
                    "another process is training in {path}; wait for it or choose another --out"
                ))
                .into())
            }
            // Training works on file systems without locks.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", path.display()))
            }
        }
    }
}

fn clear(path: &Path, remove: fn(&Path) -> io::Result<()>) -> anyhow::Result<()> {
    match remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

impl Start<'_> {
    /// Writes the complete configuration, which makes it a run.
    pub fn commit(mut self, config: &Config) -> anyhow::Result<Lock> {
        let run = &self.directory.path;
        if let Some(origin) = self.directory.origin().filter(|_| self.fresh) {
            let path = run.join(ORIGIN);
            durable::write(&path, origin.display().to_string().as_bytes())
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let path = run.join(CONFIG);
        durable::write(&path, config.to_json().as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
        self.fresh = false;
        // An earlier attempt's results.
        clear(&run.join(SUMMARY), |path| fs::remove_file(path))?;
        Ok(Lock(self.lock.take()))
    }

    fn clear(&self) -> anyhow::Result<()> {
        clear(&self.directory.path.join(ORIGIN), |path| fs::remove_file(path))?;
        PREPARED
            .iter()
            .try_for_each(|name| clear(&self.directory.path.join(name), |path| fs::remove_dir_all(path)))
    }
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        if !self.fresh {
            return;
        }
        // The next start removes leftovers. The lock marks them as ours: it goes last.
        if self.clear().is_ok() && fs::remove_file(self.directory.path.join(LOCK)).is_ok() {
            let checkpoints = self.directory.path.join(checkpoint::FOLDER);
            for folder in [&checkpoints].into_iter().chain(&self.made) {
                let _ = fs::remove_dir(folder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Beginning;

    fn directory(path: &Path) -> RunDirectory {
        RunDirectory::find(Some("toy"), &[], Some(path), Beginning::default()).expect("nothing is there")
    }

    fn prepare(path: &Path) {
        for name in PREPARED {
            fs::create_dir(path.join(name)).expect("making");
            fs::write(path.join(name).join("part"), "words").expect("writing");
        }
    }

    #[test]
    fn a_start_that_fails_leaves_nothing_and_the_next_one_works() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("runs/toy");
        let run = directory(&path);
        let start = run.start().expect("it is free");
        prepare(&path);
        fs::create_dir(path.join(checkpoint::FOLDER)).expect("making");
        assert!(!path.join(CONFIG).exists(), "it is no run yet");
        drop(start);
        assert!(!folder.path().join("runs").exists());
        run.start().expect("nothing is in the way").commit(&run.config).expect("written");
        assert!(path.join(CONFIG).exists());
        prepare(&path);
        drop(run.start().expect("it is not locked"));
        assert!(path.join(CONFIG).exists() && path.join("data/part").exists());
    }

    #[test]
    fn files_of_a_killed_start_are_not_mixed_into_the_next_run() {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(folder.path());
        fs::write(folder.path().join(LOCK), "").expect("writing");
        let run = directory(folder.path());
        let _start = run.start().expect("it is not locked");
        assert!(PREPARED.iter().all(|name| !folder.path().join(name).exists()));
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_that_is_a_link_leaves_its_target_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("target");
        fs::write(&target, "mine").expect("writing");
        let path = folder.path().join("run");
        fs::create_dir(&path).expect("making");
        std::os::unix::fs::symlink(&target, path.join(LOCK)).expect("linked");
        drop(directory(&path).start().expect("it is not locked"));
        assert_eq!(fs::read_to_string(&target).expect("still there"), "mine");
    }

    #[test]
    fn the_users_own_folders_are_neither_used_nor_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(folder.path());
        let run = directory(folder.path());
        let said = run.start().expect_err("it holds something else").to_string();
        assert!(said.ends_with("holds `tokenizer` but no run; choose another --out"), "{said}");
        assert!(PREPARED.iter().all(|name| folder.path().join(name).join("part").exists()));
        assert!(!folder.path().join(LOCK).exists());
    }
}
