//! Checkpoints: folders of files with checksums, whole or absent, verified before use
//! (`any_flipped_bit_is_found_and_named`).
//!
//! # Crash safety
//!
//! Each step of a save is durable before the next:
//!
//! 1. Sync files and folders in `step-00000250.partial`, then write its manifest.
//! 2. Write the pointer as `latest.partial`.
//! 3. Rename the folder to `step-00000250`.
//! 4. Rename the pointer to `latest`.
//!
//! Readers ignore `.partial` names, and the next save removes them: a save that ends before step 3 did not happen.
//! After it, the manifest with the highest number counts, even if `latest` names another. Only steps 1 and 2 need disk
//! space (`a_disk_that_fills_up_anywhere_in_a_save_leaves_the_store_as_it_was`).
//!
//! A checkpoint of the same step becomes `step-00000250.replaced` and counts until its replacement is in place. Removal
//! first renames to `.partial`: nothing half removed looks damaged.
//!
//! One process saves in a run directory, one checkpoint at a time. Callers wait for the files only; any thread can seal
//! (`a_checkpoint_exists_once_it_is_sealed_on_any_thread`).

mod contents;
mod error;
mod files;
mod manifest;
mod retention;
mod save;
#[cfg(test)]
mod tests;

pub use error::{CheckpointError, Damage};
pub use files::*;
pub use save::Unsealed;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use contents::Fault;
use durable::regular;
use retention::Rule;
use tokenizer::Fingerprint;

pub(crate) const FOLDER: &str = "checkpoints";
const LATEST: &str = "latest";
const BEST: &str = "best";
const PREFIX: &str = "step-";
const REPLACED: &str = ".replaced";
const POINTER_BYTES: u64 = 4 << 10;

/// A run's checkpoints.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    folder: PathBuf,
}

/// Selects a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The last save, at any step.
    Latest,
    /// Marked as best.
    Best,
    /// Of this step.
    Step(u64),
}

/// A saved checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its folder.
    pub path: PathBuf,
    /// File bytes without the manifest.
    pub bytes: u64,
}

/// A run's last save. A later one of the same step differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastSave {
    /// Steps taken.
    pub step: u64,
    sequence: u64,
}

/// A checkpoint that matches its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Its folder.
    pub path: PathBuf,
    /// Steps taken.
    pub step: u64,
    /// File bytes without the manifest.
    pub bytes: u64,
    /// Digest of the weights' file.
    pub weights: Option<Fingerprint>,
}

#[derive(Debug)]
struct Candidate {
    step: u64,
    path: PathBuf,
    /// `None` without a readable manifest.
    sequence: Option<u64>,
}

impl Checkpoints {
    /// A run directory's checkpoints. Creates nothing.
    pub fn in_run(run: &Path) -> Self {
        Self { folder: run.join(FOLDER) }
    }

    /// Whether `path` has a checkpoint's name or manifest.
    pub fn is_one(path: &Path) -> bool {
        let named = std::path::absolute(path).ok().and_then(|path| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            step_of(name.strip_suffix(REPLACED).unwrap_or(&name))
        });
        named.is_some() || path.join(manifest::FILE).exists()
    }

    /// A checkpoint's run directory.
    pub fn run_of(path: &Path) -> Option<PathBuf> {
        let path = std::path::absolute(path).ok()?;
        let folder = path.parent()?;
        (folder.file_name()? == FOLDER).then_some(folder.parent()?.to_owned())
    }

    /// Verifies the checkpoint `path`.
    pub fn open(path: &Path) -> Result<Verified, CheckpointError> {
        let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let siblings = Self { folder: parent.to_owned() };
        if !path.is_dir() {
            let what = path.file_name().unwrap_or_default().to_string_lossy();
            return Err(siblings.absent(format!("checkpoint {what}")));
        }
        verify(path).map_err(|fault| siblings.damaged(path, fault))
    }

    /// Finds and verifies a checkpoint. The error for a damaged one names the latest whole one.
    pub fn find(&self, which: Which) -> Result<Verified, CheckpointError> {
        match which {
            Which::Latest => self.find_latest(),
            Which::Best => match self.best()? {
                Some(step) => self.find_pointed(step, &self.candidates()?),
                None => Err(self.absent("checkpoint marked as best".to_owned())),
            },
            Which::Step(step) => {
                match self.candidates()?.into_iter().find(|candidate| candidate.step == step) {
                    Some(candidate) => Self::open(&candidate.path),
                    None => Err(self.absent(format!("checkpoint of step {step}"))),
                }
            }
        }
    }

    /// Checkpoint folders, unverified, latest save first.
    pub fn folders(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        Ok(self.candidates()?.into_iter().map(|candidate| candidate.path).collect())
    }

    /// Step of `latest`, unverified.
    pub fn latest(&self) -> Result<Option<u64>, CheckpointError> {
        self.pointed(LATEST)
    }

    /// The last save with a readable manifest, otherwise unverified.
    pub fn last_save(&self) -> Result<Option<LastSave>, CheckpointError> {
        let last = self.candidates()?.into_iter().next();
        Ok(last.and_then(|last| Some(LastSave { step: last.step, sequence: last.sequence? })))
    }

    /// Step of `best`, unverified.
    pub fn best(&self) -> Result<Option<u64>, CheckpointError> {
        self.pointed(BEST)
    }

    /// Marks `step`'s checkpoint as best.
    pub fn mark_best(&self, step: u64) -> Result<(), CheckpointError> {
        if !self.path_of(step).is_dir() {
            return Err(self.absent(format!("checkpoint of step {step}")));
        }
        let pointer = self.folder.join(BEST);
        durable::write(&pointer, pointer_text(step).as_bytes())
            .map_err(CheckpointError::folder("writing", &pointer))
    }

    /// Marks no checkpoint as best.
    pub fn unmark_best(&self) -> Result<(), CheckpointError> {
        let pointer = self.folder.join(BEST);
        match fs::remove_file(&pointer) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(CheckpointError::folder("removing", &pointer)),
        }
    }

    /// Keeps `keep_last` saves, multiples of `keep_every`, latest and best; removes the rest.
    pub fn prune(&self, keep_last: usize, keep_every: Option<u64>) -> Result<(), CheckpointError> {
        let rule = Rule { keep_last, keep_every, pointed: [self.latest()?, self.best()?] };
        let candidates = self.candidates()?;
        let steps: Vec<_> = candidates.iter().map(|candidate| candidate.step).collect();
        let removable = rule.removable(&steps);
        for candidate in candidates.iter().filter(|candidate| removable.contains(&candidate.step)) {
            self.discard(&candidate.path)?;
        }
        self.clear_leftovers()
    }

    fn find_latest(&self) -> Result<Verified, CheckpointError> {
        let candidates = self.candidates()?;
        let Some(pointed) = self.latest()? else {
            let first = candidates.first().ok_or_else(|| self.absent("checkpoint".to_owned()))?;
            let whole = candidates.iter().find_map(|candidate| verify(&candidate.path).ok());
            return whole.map_or_else(|| Self::open(&first.path), Ok);
        };
        let at = candidates.iter().position(|candidate| candidate.step == pointed);
        let newer = match at {
            Some(at) if candidates[at].sequence.is_some() => &candidates[..at],
            _ => &[],
        };
        match newer.iter().find_map(|candidate| verify(&candidate.path).ok()) {
            Some(newer) => Ok(newer),
            None => self.find_pointed(pointed, &candidates),
        }
    }

    fn find_pointed(&self, step: u64, candidates: &[Candidate]) -> Result<Verified, CheckpointError> {
        match candidates.iter().find(|candidate| candidate.step == step) {
            Some(candidate) => Self::open(&candidate.path),
            None => Err(self.damaged(&self.path_of(step), Fault::new("the folder", Damage::Missing))),
        }
    }

    /// Latest first; unreadable manifests last.
    fn candidates(&self) -> Result<Vec<Candidate>, CheckpointError> {
        let mut candidates = Vec::new();
        for name in self.names()? {
            let (name, replaced) = match name.strip_suffix(REPLACED) {
                Some(name) => (name, true),
                None => (name.as_str(), false),
            };
            let Some(step) = step_of(name) else { continue };
            let path = self.path_of(step);
            if replaced && path.exists() {
                continue;
            }
            let path = if replaced { self.replaced_path_of(step) } else { path };
            let sequence = contents::read_manifest(&path).ok().map(|manifest| manifest.sequence);
            candidates.push(Candidate { step, path, sequence });
        }
        candidates.sort_by_key(|candidate| std::cmp::Reverse((candidate.sequence, candidate.step)));
        Ok(candidates)
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let read = || -> io::Result<Vec<String>> {
            let entries = match fs::read_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries?,
            };
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        };
        read().map_err(CheckpointError::folder("reading", &self.folder))
    }

    fn pointed(&self, name: &str) -> Result<Option<u64>, CheckpointError> {
        let pointer = self.folder.join(name);
        let text = match regular::read(&pointer, POINTER_BYTES).map_err(io::Error::from) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CheckpointError::folder("reading", &pointer)(error)),
        };
        match step_of(text.trim_end()) {
            Some(step) => Ok(Some(step)),
            None => Err(CheckpointError::Pointer { pointer, text, whole: self.latest_whole(None) }),
        }
    }

    fn absent(&self, what: String) -> CheckpointError {
        let mut steps: Vec<_> =
            self.candidates().unwrap_or_default().iter().map(|candidate| candidate.step).collect();
        steps.sort_unstable();
        CheckpointError::Absent { what, folder: self.folder.clone(), steps }
    }

    fn damaged(&self, path: &Path, Fault { file, damage }: Fault) -> CheckpointError {
        let whole = self.latest_whole(Some(path));
        CheckpointError::Damaged { path: path.to_owned(), file, damage: Box::new(damage), whole }
    }

    fn latest_whole(&self, but: Option<&Path>) -> Option<PathBuf> {
        let candidates = self.candidates().ok()?;
        let mut others = candidates.into_iter().filter(|candidate| Some(candidate.path.as_path()) != but);
        others.find_map(|candidate| verify(&candidate.path).ok()).map(|whole| whole.path)
    }

    /// A step's folder, which may not exist.
    pub fn path_of(&self, step: u64) -> PathBuf {
        self.folder.join(name_of(step))
    }

    fn replaced_path_of(&self, step: u64) -> PathBuf {
        self.folder.join(name_of(step) + REPLACED)
    }
}

fn verify(path: &Path) -> Result<Verified, Fault> {
    let manifest = contents::verify(path)?;
    let weights = manifest.files.iter().find(|file| file.name == WEIGHTS).map(|file| file.sha256);
    Ok(Verified { path: path.to_owned(), step: manifest.step, bytes: manifest.bytes(), weights })
}

fn name_of(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

fn pointer_text(step: u64) -> String {
    name_of(step) + "\n"
}

fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name_of(step) == name).then_some(step)
}
