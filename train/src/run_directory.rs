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
use crate::summary;
use crate::training::{CONFIG, WEIGHTS};

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

/// A run that can be begun or gone on with.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    pub(crate) path: PathBuf,
    pub(crate) config: Config,
    /// The checkpoint to go on from, every byte of it checked.
    pub(crate) from: Option<Verified>,
}

/// Held while a process trains in a run directory.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "the lock lives as long as the open file")] File);

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
        resume: Option<&Resume>,
    ) -> anyhow::Result<Self> {
        match resume {
            Some(Resume::From(path)) => Self::from_path(path, name, set, out),
            Some(Resume::Auto) => {
                let path = out.map_or_else(|| latest_named(name), Path::to_owned);
                if path.join(CONFIG).exists() {
                    Self::go_on(&path, set)
                } else {
                    Self::fresh(path, name, set)
                }
            }
            None => {
                let path = out.map_or_else(|| unused(name), Path::to_owned);
                if path.join(CONFIG).exists() {
                    let path = path.display();
                    return Err(BadInput(format!(
                        "{path} holds a run; go on with it by --resume auto, or choose another --out"
                    ))
                    .into());
                }
                Self::fresh(path, name, set)
            }
        }
    }

    /// Makes the directory, keeps others out of it, and puts the configuration there, complete.
    pub(crate) fn begin(&self) -> anyhow::Result<Lock> {
        fs::create_dir_all(&self.path).with_context(|| format!("making {}", self.path.display()))?;
        let lock = self.lock()?;
        let path = self.path.join(CONFIG);
        durable::write(&path, self.config.to_json().as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
        summary::remove(&self.path)?;
        Ok(lock)
    }

    fn lock(&self) -> anyhow::Result<Lock> {
        let path = self.path.join("lock");
        let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(TryLockError::WouldBlock) => {
                let path = self.path.display();
                Err(BadInput(format!(
                    "another process is training in {path}; wait for it or choose another --out"
                ))
                .into())
            }
            // A file system without locks is no reason not to train.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(Lock(file)),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", path.display()))
            }
        }
    }

    fn fresh(path: PathBuf, name: Option<&str>, set: &[String]) -> anyhow::Result<Self> {
        let mut config = Config::load(name.unwrap_or(DEFAULT), set)?;
        config.resolve_paths()?;
        // Before anything is made: a run directory of a mistyped path would be in the way of the corrected command.
        if let Some((key, dead)) = config.dead_paths().into_iter().next() {
            return Err(BadInput(format!("`{key}` leads nowhere: there is no {}", dead.display())).into());
        }
        Ok(Self { path, config, from: None })
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
        Ok(Self { path, config, from })
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
