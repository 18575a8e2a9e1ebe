//! The run directory, and whether a run starts or resumes in it.
//!
//! A resumed run uses its saved configuration, or a given one, whose differences are printed or refused.

mod names;
mod start;

pub use names::{DEFAULT, is_checkpoint, latest, latest_named, neither};
pub use start::{Lock, SUMMARY, Start};

use std::path::{Path, PathBuf};

use crate::checkpoint::{CONFIG, Checkpoints, Verified};
use crate::config::{Change, Changes, Config};
use crate::{BadInput, Pretrained, text_of};
use names::unused;
use start::Seen;

/// The argument of `--resume`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The latest checkpoint of the run directory, if any.
    Auto,
    /// This run directory or checkpoint.
    From(PathBuf),
}

/// The checkpoint a run begins with, or random weights.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beginning<'a> {
    /// The run to resume.
    pub resume: Option<&'a Resume>,
    /// Run or checkpoint whose weights a new run takes.
    pub pretrained: Option<&'a Path>,
    /// Adapters that learn on beside these weights, in PEFT's layout.
    pub adapter: Option<&'a Path>,
}

/// A run to start or resume.
#[derive(Debug)]
pub struct RunDirectory {
    /// Directory, made by [`start`](Self::start).
    pub path: PathBuf,
    /// Complete configuration.
    pub config: Config,
    /// Verified checkpoint to resume from.
    pub from: Option<Verified>,
    /// Another run's checkpoint to start from.
    pub pretrained: Option<Pretrained>,
    /// A resumed run's changes to the configuration.
    pub changes: Vec<Change>,
    seen: Seen,
}

impl From<&str> for Resume {
    fn from(text: &str) -> Self {
        if text == "auto" { Self::Auto } else { Self::From(text.into()) }
    }
}

impl RunDirectory {
    /// Finds or describes the run; writes nothing. `name` is the given configuration.
    pub fn find(
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
                    Self::resume_run(&path, name, set)
                } else {
                    Self::fresh(path, name, set, None)
                }
            }
            None => {
                let open = |path| Pretrained::open(path)?.beside(beginning.adapter);
                let pretrained = beginning.pretrained.map(open).transpose()?;
                let called = pretrained.as_ref().filter(|_| name.is_none()).and_then(Pretrained::name);

                let path = out.map_or_else(|| unused(called.as_deref().or(name)), Path::to_owned);
                if path.join(CONFIG).exists() {
                    let path = path.display();
                    return Err(BadInput(format!(
                        "{path} holds a run; resume it with --resume auto, or choose another --out"
                    ))
                    .into());
                }
                Self::fresh(path, name, set, pretrained)
            }
        }
    }

    /// A run to begin in `path`, which holds none.
    pub fn new(path: PathBuf, config: Config) -> Result<Self, BadInput> {
        text_of(&path)?;
        let seen = Seen { is_run: false, ..Seen::of(&path) };
        Ok(Self { path, config, from: None, pretrained: None, changes: Vec::new(), seen })
    }

    /// Before another start in this process, which may have saved.
    pub fn look_again(&mut self) {
        self.seen = Seen::of(&self.path);
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

        // Before the directory exists, which would block a corrected command.
        let is_expected = |key: &str| pretrained.is_none() || key != "tokenizer.path";
        if let Some((key, dead)) = config.dead_paths().into_iter().find(|(key, _)| is_expected(key)) {
            return Err(BadInput(format!("`{key}` leads nowhere: there is no {}", dead.display())).into());
        }
        Ok(Self { pretrained, ..Self::new(path, config)? })
    }

    fn resume_run(run: &Path, name: Option<&str>, set: &[String]) -> anyhow::Result<Self> {
        let seen = Seen::of(run);
        let from = latest(run)?;
        if from.is_none() {
            Self::refuse_lost_beginning(run)?;
        }
        Self::resume_with(run.to_owned(), &run.join(CONFIG), name, set, (from, seen))
    }

    fn from_path(
        path: &Path,
        name: Option<&str>,
        set: &[String],
        out: Option<&Path>,
    ) -> anyhow::Result<Self> {
        if !is_checkpoint(path) {
            if out.is_some_and(|out| out != path) {
                let path = path.display();
                return Err(BadInput(format!(
                    "{path} is a run; it is resumed where it is. To begin another run with its weights, name it by --from"
                ))
                .into());
            }
            if !path.join(CONFIG).exists() {
                return Err(neither(path, "train --resume").into());
            }
            return Self::resume_run(path, name, set);
        }

        let checkpoint = Checkpoints::open(path)?;
        let run = match out {
            Some(out) if out.join(CONFIG).exists() => {
                let out = out.display();
                return Err(BadInput(format!("{out} holds a run; choose another --out")).into());
            }
            Some(out) => out.to_owned(),
            None => Checkpoints::run_of(path).ok_or_else(|| {
                BadInput(format!(
                    "{} is in no run's directory; name one to resume in by --out",
                    path.display()
                ))
            })?,
        };

        let (saved, seen) = (checkpoint.path.join(CONFIG), Seen::of(&run));
        Self::resume_with(run, &saved, name, set, (Some(checkpoint), seen))
    }

    fn resume_with(
        path: PathBuf,
        saved: &Path,
        name: Option<&str>,
        set: &[String],
        (from, seen): (Option<Verified>, Seen),
    ) -> anyhow::Result<Self> {
        text_of(&path)?;
        let mut config = Config::load(name.map_or_else(|| text_of(saved), Ok)?, set)?;
        config.resolve_paths()?;

        // The checkpoint's counts: a user may have edited the run's.
        let learned = from.as_ref().map_or_else(|| saved.to_owned(), |from| from.path.join(CONFIG));
        let before = Config::load(text_of(&learned)?, &[])?;
        let begun = from.as_ref().is_none_or(|from| from.step > 0);
        if begun {
            config.memory.keep_auto_choice(&before.memory);
            // The choice may not go with settings that `auto` goes with.
            config = Config::from_text(&config.to_json(), "the resumed run", &[])?;
        }

        let Changes { allowed, refused } = config.changes_since(&before, begun);
        if !refused.is_empty() {
            let refused: Vec<_> = refused.iter().map(Change::to_string).collect();
            let way_out = match name {
                Some(name) => format!("leave `--config {name}` out to resume it as it was begun"),
                None => format!("leave them as they are in {}", learned.display()),
            };
            return Err(BadInput(format!(
                "{} cannot be resumed with another model, vocabulary, data, batch or optimizer; changed are {}. Begin \
                 another run, with its weights by --from, or {way_out}",
                path.display(),
                refused.join(", ")
            ))
            .into());
        }
        Ok(Self { path, config, from, pretrained: None, changes: allowed, seen })
    }
}
