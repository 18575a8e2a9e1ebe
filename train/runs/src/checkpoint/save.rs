//! Saves and removes checkpoints.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use durable::{ASIDE, Aside};

use super::manifest::{self, Manifest};
use super::{
    BEST, CheckpointError, Checkpoints, LATEST, PREFIX, REPLACED, Saved, contents, name_of, pointer_text,
};

/// A checkpoint that exists once sealed.
#[derive(Debug)]
#[must_use]
pub struct Unsealed {
    checkpoints: Checkpoints,
    step: u64,
    sequence: u64,
}

impl Checkpoints {
    /// Saves the files that `write` makes, about `expected_bytes`. A failed save changes no checkpoint.
    pub fn save(
        &self,
        step: u64,
        expected_bytes: u64,
        write: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> Result<Saved, CheckpointError> {
        self.write(step, expected_bytes, write)?.seal()
    }

    /// Writes the files. Neither save nor prune until [`Unsealed::seal`], on any thread, completes the save.
    pub fn write(
        &self,
        step: u64,
        expected_bytes: u64,
        write: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> Result<Unsealed, CheckpointError> {
        self.prepare().map_err(self.saving(step))?;
        self.clear_leftovers()?;
        let free =
            durable::free_bytes(&self.folder).context("asking for free space").map_err(self.saving(step))?;
        if free < expected_bytes {
            let folder = self.folder.clone();
            return Err(CheckpointError::NoSpace { step, folder, needed: expected_bytes, free });
        }

        let partial = self.partial_path_of(step);
        let sequence =
            self.candidates()?.iter().filter_map(|candidate| candidate.sequence).max().unwrap_or(0) + 1;
        let unsealed = Unsealed { checkpoints: self.clone(), step, sequence };
        let written = fs::create_dir(&partial).context("making its folder").and_then(|()| write(&partial));
        unsealed.or_remove(written)?;
        Ok(unsealed)
    }

    fn saving(&self, step: u64) -> impl Fn(anyhow::Error) -> CheckpointError {
        let path = self.path_of(step);
        move |cause| CheckpointError::Save { step, path: path.clone(), cause }
    }

    pub(super) fn clear_leftovers(&self) -> Result<(), CheckpointError> {
        for name in self.names()? {
            let path = self.folder.join(&name);
            if let Some(complete) = name.strip_suffix(ASIDE) {
                let removed = match complete {
                    LATEST | BEST => fs::remove_file(&path),
                    folder if folder.starts_with(PREFIX) => fs::remove_dir_all(&path),
                    _ => Ok(()),
                };
                removed.map_err(CheckpointError::folder("removing", &path))?;
            } else if name
                .strip_suffix(REPLACED)
                .is_some_and(|replacing| self.folder.join(replacing).exists())
            {
                self.discard(&path)?;
            }
        }
        Ok(())
    }

    pub(super) fn discard(&self, path: &Path) -> Result<(), CheckpointError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.folder.join(format!("{name}{ASIDE}"));
        durable::rename(path, &aside)
            .and_then(|()| fs::remove_dir_all(&aside))
            .map_err(CheckpointError::folder("removing", path))
    }

    fn prepare(&self) -> anyhow::Result<()> {
        if !self.folder.is_dir() {
            fs::create_dir_all(&self.folder).context("making the folder of checkpoints")?;
            let run = self.folder.parent().unwrap_or(Path::new("."));
            durable::sync_folder(run).context("making the folder of checkpoints")?;
        }
        Ok(())
    }

    fn put_in_place(&self, partial: &Path, step: u64) -> io::Result<()> {
        let (path, replaced) = (self.path_of(step), self.replaced_path_of(step));
        if !path.exists() {
            return durable::rename(partial, &path);
        }
        durable::rename(&path, &replaced)?;
        durable::rename(partial, &path).inspect_err(|_| {
            // Otherwise readers find the checkpoint as `.replaced`.
            let _ = durable::rename(&replaced, &path);
        })
    }

    /// Folder of the checkpoint of `step` while it is written.
    pub fn partial_path_of(&self, step: u64) -> PathBuf {
        self.folder.join(name_of(step) + ASIDE)
    }
}

impl Unsealed {
    /// Makes the checkpoint durable and visible.
    pub fn seal(self) -> Result<Saved, CheckpointError> {
        let bytes = self.or_remove(self.put_in_place())?;
        // The save has succeeded; the next one removes leftovers.
        let _ = self.checkpoints.clear_leftovers();
        Ok(Saved { path: self.checkpoints.path_of(self.step), bytes })
    }

    /// The files' bytes.
    fn put_in_place(&self) -> anyhow::Result<u64> {
        let Self { checkpoints, step, sequence } = self;
        let partial = checkpoints.partial_path_of(*step);
        let manifest = Manifest::new(*step, *sequence, contents::sync_and_list(&partial)?);
        durable::write(&partial.join(manifest::FILE), manifest.to_text().as_bytes())
            .context("writing its manifest")?;
        let latest = Aside::write(&checkpoints.folder.join(LATEST), pointer_text(*step).as_bytes())
            .context("writing the pointer to it")?;
        checkpoints.put_in_place(&partial, *step).context("renaming its folder")?;
        latest.commit().context("renaming the pointer to it")?;
        Ok(manifest.bytes())
    }

    fn or_remove<T>(&self, done: anyhow::Result<T>) -> Result<T, CheckpointError> {
        done.map_err(|cause| {
            // The first failure counts, not the cleanup's.
            let _ = fs::remove_dir_all(self.checkpoints.partial_path_of(self.step));
            self.checkpoints.saving(self.step)(cause)
        })
    }
}
