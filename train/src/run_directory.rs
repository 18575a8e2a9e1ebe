//! Where a run lives, and whether it goes on or begins.
//!
//! A run that begins is described by a configuration; a run that goes on by the one it saved, changed by `--set` where
//! that cannot contradict what was learned. The name given with `--config` then only says which run.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::checkpoint::{CheckpointError, Checkpoints, Verified, Which};
use crate::config::Config;
use crate::durable;
use crate::exit::BadInput;
use crate::pretrained::Pretrained;
use crate::summary;
use crate::training::{CONFIG, TOKENIZER, WEIGHTS};

/// Where runs are made that are not told where.
const RUNS: &str = "runs";

/// The configuration of a run that names none.
pub(crate) const DEFAULT: &str = "toy.json";

/// What `--resume` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resume {
    /// The run directory's latest checkpoint, if there is one.
    Auto,
    /// A run directory, or a checkpoint.
    From(PathBuf),
}

/// The checkpoint that a run begins with: at most one of the two. Without either the weights are drawn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Beginning<'a> {
    pub(crate) resume: Option<&'a Resume>,
    /// A run or a checkpoint whose weights a new run begins with.
    pub(crate) pretrained: Option<&'a Path>,
}

/// A run that can be begun or gone on with.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    pub(crate) path: PathBuf,
    pub(crate) config: Config,
    /// The checkpoint to go on from, every byte of it checked.
    pub(crate) from: Option<Verified>,
    /// Another run's weights, where this one begins with them.
    pub(crate) pretrained: Option<Pretrained>,
}

/// Folders that a start makes in a directory before it is a run.
const PREPARED: [&str; 2] = [TOKENIZER, "data"];
const LOCK: &str = "lock";

/// A run's directory being made ready. It becomes a run by [`commit`](Self::commit); dropped before, it is as it was
/// found.
#[derive(Debug)]
pub(crate) struct Start<'r> {
    directory: &'r RunDirectory,
    lock: Option<File>,
    /// Whether the directory was no run before.
    fresh: bool,
    /// Folders that were not there, the innermost first.
    made: Vec<PathBuf>,
}

/// Held while a process trains in a run directory.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "the lock lives as long as the open file")] Option<File>);

impl From<&str> for Resume {
    fn from(text: &str) -> Self {
        if text == "auto" { Self::Auto } else { Self::From(text.into()) }
    }
}

impl RunDirectory {
    /// Settles everything without writing anything. `name` is the configuration, if one was named.
    pub(crate) fn find(
        name: Option<&str>,
        set: &[String],
        out: Option<&Path>,
        beginning: Beginning<'_>,
    ) -> anyhow::Result<Self> {
        match beginning.resume {
            Some(Resume::From(path)) => Self::from_path(path, name, set, out),
            Some(Resume::Auto) => {
                let path = out.map_or_else(|| latest_named(name), Path::to_owned);
                if path.join(CONFIG).exists() {
                    Self::go_on(&path, set)
                } else {
                    Self::fresh(path, name, set, None)
                }
            }
            None => {
                let pretrained = beginning.pretrained.map(Pretrained::open).transpose()?;
                let called = pretrained.as_ref().filter(|_| name.is_none()).and_then(Pretrained::name);
                let path = out.map_or_else(|| unused(called.as_deref().or(name)), Path::to_owned);
                if path.join(CONFIG).exists() {
                    let path = path.display();
                    return Err(BadInput(format!(
                        "{path} holds a run; go on with it by --resume auto, or choose another --out"
                    ))
                    .into());
                }
                Self::fresh(path, name, set, pretrained)
            }
        }
    }

    /// Makes the directory and keeps others out of it.
    pub(crate) fn start(&self) -> anyhow::Result<Start<'_>> {
        let fresh = !self.path.join(CONFIG).exists();
        // Beside a lock without a run they are what a start left that was killed.
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

    fn lock(&self) -> anyhow::Result<File> {
        let path = self.path.join(LOCK);
        let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let path = self.path.display();
                Err(BadInput(format!(
                    "another process is training in {path}; wait for it or choose another --out"
                ))
                .into())
            }
            // A file system without locks is no reason not to train.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", path.display()))
            }
        }
    }

    fn fresh(
        path: PathBuf,
        name: Option<&str>,
        set: &[String],
        pretrained: Option<Pretrained>,
    ) -> anyhow::Result<Self> {
        let (pretrained, mut config) = match pretrained {
            Some(pretrained) => {
                let (pretrained, config) = pretrained.describe(&path, name, set)?;
                (Some(pretrained), config)
            }
            None => (None, Config::load(name.unwrap_or(DEFAULT), set)?),
        };
        config.resolve_paths()?;
        // Before anything is made: a run directory of a mistyped path would be in the way of the corrected command.
        // The vocabulary that comes with another run's weights is put there by the start.
        let is_expected = |key: &str| pretrained.is_none() || key != "tokenizer.path";
        if let Some((key, dead)) = config.dead_paths().into_iter().find(|(key, _)| is_expected(key)) {
            return Err(BadInput(format!("`{key}` leads nowhere: there is no {}", dead.display())).into());
        }
        Ok(Self { path, config, from: None, pretrained })
    }

    fn go_on(run: &Path, set: &[String]) -> anyhow::Result<Self> {
        Self::with_base(run.to_owned(), &run.join(CONFIG), set, latest(run)?)
    }

    fn from_path(
        path: &Path,
        name: Option<&str>,
        set: &[String],
        out: Option<&Path>,
    ) -> anyhow::Result<Self> {
        if name.is_some() {
            return Err(BadInput(
                "--resume PATH goes on with the configuration saved there; leave --config out and change values by \
                 --set"
                    .to_owned(),
            )
            .into());
        }
        if !is_checkpoint(path) {
            if out.is_some_and(|out| out != path) {
                let path = path.display();
                return Err(BadInput(format!(
                    "{path} is a run; it goes on where it is. To begin another from its weights, give one of its \
                     checkpoints with --out"
                ))
                .into());
            }
            if !path.join(CONFIG).exists() {
                return Err(neither(path).into());
            }
            return Self::go_on(path, set);
        }
        let checkpoint = Checkpoints::open(path)?;
        let run = match out {
            Some(out) if out.join(CONFIG).exists() => {
                let out = out.display();
                return Err(BadInput(format!("{out} holds a run; choose another --out")).into());
            }
            Some(out) => out.to_owned(),
            None => Checkpoints::run_of(path).ok_or_else(|| {
                BadInput(format!("{} is in no run's directory; say by --out where to go on", path.display()))
            })?,
        };
        let saved = checkpoint.path.join(CONFIG);
        Self::with_base(run, &saved, set, Some(checkpoint))
    }

    fn with_base(
        path: PathBuf,
        saved: &Path,
        set: &[String],
        from: Option<Verified>,
    ) -> anyhow::Result<Self> {
        let mut config = Config::load(&saved.to_string_lossy(), set)?;
        config.resolve_paths()?;
        // What the checkpoint was trained by, even where somebody edited the run's own file since.
        let learned = from.as_ref().map_or_else(|| saved.to_owned(), |from| from.path.join(CONFIG));
        let before = Config::load(&learned.to_string_lossy(), &[])?;
        let begun = from.as_ref().is_none_or(|from| from.step > 0);
        let changed = config.contradicts(&before, begun);
        if !changed.is_empty() {
            let (path, learned) = (path.display(), learned.display());
            return Err(BadInput(format!(
                "{path} cannot go on with another {}: what is there depends on it. Leave it as it is in {learned}, or \
                 begin another run",
                changed.join(", ")
            ))
            .into());
        }
        Ok(Self { path, config, from, pretrained: None })
    }
}

impl Start<'_> {
    /// Puts the configuration there, complete, which makes the directory a run.
    pub(crate) fn commit(mut self) -> anyhow::Result<Lock> {
        let RunDirectory { path: run, config, .. } = self.directory;
        let path = run.join(CONFIG);
        durable::write(&path, config.to_json().as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
        self.fresh = false;
        summary::remove(run)?;
        Ok(Lock(self.lock.take()))
    }

    fn clear(&self) -> anyhow::Result<()> {
        for name in PREPARED {
            let path = self.directory.path.join(name);
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("removing {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        if !self.fresh {
            return;
        }
        // Whatever cannot be removed is left to the next start. The lock goes last: it marks the rest as ours.
        if self.clear().is_ok() && fs::remove_file(self.directory.path.join(LOCK)).is_ok() {
            for folder in &self.made {
                let _ = fs::remove_dir(folder);
            }
        }
    }
}

/// Whether `path` is a checkpoint or what is left of one, whatever it is called.
pub(crate) fn is_checkpoint(path: &Path) -> bool {
    Checkpoints::is_one(path) || path.join(WEIGHTS).exists()
}

pub(crate) fn neither(path: &Path) -> BadInput {
    BadInput(format!("{} is neither a run's directory nor a checkpoint", path.display()))
}

/// `None` before the first save.
pub(crate) fn latest(run: &Path) -> Result<Option<Verified>, CheckpointError> {
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

fn unused(name: Option<&str>) -> PathBuf {
    numbered(name).find(|path| !path.join(CONFIG).exists()).expect("numbers do not run out")
}

/// The last of them that is there, or else the first name.
pub(crate) fn latest_named(name: Option<&str>) -> PathBuf {
    let there = numbered(name).take_while(|path| path.join(CONFIG).exists()).last();
    there.unwrap_or_else(|| unused(name))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!path.join(CONFIG).exists(), "it is no run yet");
        drop(start);
        assert!(!folder.path().join("runs").exists());
        run.start().expect("nothing is in the way").commit().expect("written");
        assert!(path.join(CONFIG).exists());
        // A run is left as it is, whatever becomes of a later start.
        prepare(&path);
        drop(run.start().expect("nobody holds it"));
        assert!(path.join(CONFIG).exists() && path.join("data/part").exists());
    }

    #[test]
    fn what_a_killed_start_left_is_not_mixed_into_the_next_run() {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(folder.path());
        fs::write(folder.path().join(LOCK), "").expect("writing");
        let run = directory(folder.path());
        let _start = run.start().expect("nobody holds it");
        assert!(PREPARED.iter().all(|name| !folder.path().join(name).exists()));
    }

    #[test]
    fn folders_of_the_users_own_are_neither_used_nor_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(folder.path());
        let run = directory(folder.path());
        let said = run.start().expect_err("it holds something else").to_string();
        assert!(said.ends_with("holds `tokenizer` but no run; choose another --out"), "{said}");
        assert!(PREPARED.iter().all(|name| folder.path().join(name).join("part").exists()));
        assert!(!folder.path().join(LOCK).exists());
    }
}
