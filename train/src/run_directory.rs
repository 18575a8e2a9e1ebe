//! Where a run lives, and whether it goes on or begins.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use tokenizer::Tokenizer;

use crate::checkpoint::{CheckpointError, Checkpoints, Verified, Which};
use crate::config::Config;
use crate::durable;
use crate::exit::BadInput;
use crate::training::{CONFIG, TOKENIZER};
use crate::verbs::{CheckpointArgs, ConfigArgs};

/// Where runs are made that are not told where.
const RUNS: &str = "runs";

/// What `--resume` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resume {
    /// The run directory's latest checkpoint, if there is one.
    Auto,
    /// A run directory, or one of its checkpoints.
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
            Some(Resume::From(path)) => Self::at(path, name, set),
            Some(Resume::Auto) => {
                let named = stem(name);
                let path = out.map_or_else(|| latest_named(&named), Path::to_owned);
                if path.join(CONFIG).exists() {
                    Self::at(&path, name, set)
                } else {
                    Self::fresh(path, name, set)
                }
            }
            None => {
                let path = match out {
                    Some(path) if path.join(CONFIG).exists() => {
                        return Err(BadInput(format!(
                            "{} holds a run; go on with it by --resume auto, or choose another --out",
                            path.display()
                        ))
                        .into());
                    }
                    Some(path) => path.to_owned(),
                    None => unused(&stem(name)),
                };
                Self::fresh(path, name, set)
            }
        }
    }

    /// Makes the directory and puts the configuration there, complete.
    pub(crate) fn begin(&self) -> anyhow::Result<()> {
        let path = self.path.join(CONFIG);
        fs::create_dir_all(&self.path)
            .and_then(|()| durable::write(&path, self.config.to_json().as_bytes()))
            .with_context(|| format!("writing {}", path.display()))
    }

    fn fresh(path: PathBuf, name: Option<&str>, set: &[String]) -> anyhow::Result<Self> {
        Ok(Self { path, config: Config::load(name.unwrap_or(DEFAULT), set)?, from: None })
    }

    fn at(path: &Path, name: Option<&str>, set: &[String]) -> anyhow::Result<Self> {
        let is_run = path.join(CONFIG).exists() && !path.join("manifest.json").exists();
        let (run, from) = if is_run {
            (path.to_owned(), latest(path)?)
        } else {
            let verified = Checkpoints::open(path)?;
            let run = path.parent().and_then(Path::parent).unwrap_or(path);
            (run.to_owned(), Some(verified))
        };
        let saved = run.join(CONFIG).display().to_string();
        let before = Config::load(&saved, &[])?;
        let config = match name {
            Some(name) => Config::load(name, set)?,
            None => Config::load(&saved, set)?,
        };
        let changed = before.changes_what_was_learned(&config);
        if !changed.is_empty() && from.is_some() {
            return Err(BadInput(format!(
                "{} cannot go on with another {}: what was learned depends on it. Leave it as it is in {saved}, or \
                 begin another run",
                run.display(),
                changed.join(", ")
            ))
            .into());
        }
        Ok(Self { path: run, config, from })
    }
}

/// A checkpoint to work with, and what it was trained by.
#[derive(Debug)]
pub(crate) struct Trained {
    /// The run's directory.
    pub(crate) run: PathBuf,
    pub(crate) checkpoint: Verified,
    pub(crate) config: Config,
    pub(crate) tokenizer: Tokenizer,
    /// Whether the configuration still names the data that were learned from.
    pub(crate) own_data: bool,
}

impl Trained {
    /// Finds what `args` name and checks every byte of it.
    pub(crate) fn open(args: &CheckpointArgs) -> anyhow::Result<Self> {
        let ConfigArgs { config: name, set } = &args.config;
        let path = args.from.clone().unwrap_or_else(|| latest_named(&stem(name.as_deref())));
        let (run, checkpoint) = if path.join("manifest.json").exists() {
            let run = path.parent().and_then(Path::parent).unwrap_or(&path);
            (run.to_owned(), Checkpoints::open(&path)?)
        } else {
            let checkpoints = Checkpoints::in_run(&path);
            let found = match (args.best, args.step) {
                (true, _) => Some(checkpoints.find(Which::Best)?),
                (false, Some(step)) => Some(checkpoints.find(Which::Step(step))?),
                (false, None) => latest(&path)?,
            };
            let found = found.ok_or_else(|| {
                let path = path.display();
                BadInput(format!(
                    "{path} holds no checkpoint; train one by `train --out {path}`, or name another by --from"
                ))
            })?;
            (path.clone(), found)
        };
        let saved = Config::load(&checkpoint.path.join(CONFIG).to_string_lossy(), &[])?;
        let config = match name {
            // The run that a name leads to is described by its own file.
            Some(name) if args.from.is_some() => Config::load(name, set)?,
            _ => Config::load(&checkpoint.path.join(CONFIG).to_string_lossy(), set)?,
        };
        let tokenizer = Tokenizer::load(checkpoint.path.join(TOKENIZER))?;
        let own_data = config.data == saved.data && config.train.seed == saved.train.seed;
        Ok(Self { run, checkpoint, config, tokenizer, own_data })
    }
}

/// `None` before the first save.
fn latest(run: &Path) -> Result<Option<Verified>, CheckpointError> {
    match Checkpoints::in_run(run).find(Which::Latest) {
        Err(CheckpointError::Absent { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// The configuration of a run that names none.
pub(crate) const DEFAULT: &str = "toy.json";

fn stem(name: Option<&str>) -> String {
    let stem = Path::new(name.unwrap_or(DEFAULT)).file_stem();
    stem.map_or_else(|| "run".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// `runs/toy`, `runs/toy-2`, …
fn numbered(stem: &str) -> impl Iterator<Item = PathBuf> {
    let name = move |n: u32| if n == 1 { stem.to_owned() } else { format!("{stem}-{n}") };
    (1..).map(move |n| Path::new(RUNS).join(name(n)))
}

fn unused(stem: &str) -> PathBuf {
    numbered(stem).find(|path| !path.join(CONFIG).exists()).expect("numbers do not run out")
}

fn latest_named(stem: &str) -> PathBuf {
    let first = numbered(stem).next();
    let last = numbered(stem).take_while(|path| path.join(CONFIG).exists()).last();
    last.or(first).expect("there is a first name")
}

impl Config {
    /// Keys by which two configurations give other weights or other data for steps already taken.
    fn changes_what_was_learned(&self, other: &Self) -> Vec<&'static str> {
        let (ours, theirs) = (&self.train, &other.train);
        let same = [
            ("model", self.model == other.model),
            ("tokenizer", self.tokenizer == other.tokenizer),
            ("data", self.data == other.data),
            ("train.seed", ours.seed == theirs.seed),
            ("train.micro_batch", ours.micro_batch == theirs.micro_batch),
            ("train.accumulate", ours.accumulate == theirs.accumulate),
            ("train.sequence", self.sequence() == other.sequence()),
            ("train.optimizer", ours.optimizer == theirs.optimizer),
            ("train.overfit_one_batch", ours.overfit_one_batch == theirs.overfit_one_batch),
        ];
        same.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
    }
}
