//! Builds a set in `OUT.partial`, syncs it and renames it to `OUT`. A lock shows whether a run is alive; the next run
//! clears a dead one's files.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::OnBadRecord;
use crate::{
    data::shard::{MANIFEST, Manifest},
    error::Error,
    lock,
};

const LOCK: &str = "prepare.lock";

/// Removed if dropped before [`Staging::publish`].
pub(super) struct Staging {
    out: PathBuf,
    folder: PathBuf,
    lock: Option<File>,
}

/// The equal set's manifest; `None` for an absent or empty folder. Anything else is an error.
pub(super) fn existing(
    out: &Path,
    plan: &Manifest,
    on_bad_record: OnBadRecord,
) -> Result<Option<Manifest>, Error> {
    let occupied = |reason: String| Err(Error::Occupied { path: out.to_owned(), reason });

    let mut entries = match fs::read_dir(out) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::read(out)(error)),
    };
    if entries.next().is_none() {
        return Ok(None);
    }

    if !out.join(MANIFEST).exists() {
        return occupied(
            "the folder holds files but no set of shards; choose another --out, or empty it".to_owned(),
        );
    }

    let manifest = Manifest::read(out)?;
    match difference(&manifest, plan, on_bad_record) {
        None => Ok(Some(manifest)),
        Some(what) => occupied(format!(
            "the folder holds a complete set made with {what}; choose another --out, or remove it to make this one"
        )),
    }
}

fn difference(made: &Manifest, plan: &Manifest, on_bad_record: OnBadRecord) -> Option<&'static str> {
    if on_bad_record == OnBadRecord::Fail && !made.bad_records.is_empty() {
        return Some("bad records left out");
    }
    if made.tokenizer.eos != plan.tokenizer.eos && made.tokenizer.sha256 == plan.tokenizer.sha256 {
        return Some("documents that are closed otherwise");
    }
    if made.tokenizer != plan.tokenizer {
        return Some("another tokenizer");
    }
    if made.inputs != plan.inputs {
        return Some("other input files, or of other sizes");
    }
    if made.split != plan.split {
        return Some("another split");
    }
    (made.shard_tokens != plan.shard_tokens).then_some("another --shard-tokens")
}

impl Staging {
    pub(super) fn begin(out: &Path) -> Result<Self, Error> {
        let folder = durable::aside(out);
        fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        let lock_path = folder.join(LOCK);
        let reason = "another run is writing this set right now; wait for it, or choose another --out";
        let lock = lock::exclusive(&lock_path, reason)?;
        let staging = Self { out: out.to_owned(), folder, lock: Some(lock) };
        staging.clear_remains()?;
        Ok(staging)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn clear_remains(&self) -> Result<(), Error> {
        for entry in fs::read_dir(&self.folder).map_err(Error::read(&self.folder))? {
            let path = entry.map_err(Error::read(&self.folder))?.path();
            if path.file_name().is_none_or(|name| name != LOCK) {
                fs::remove_file(&path).map_err(Error::write(&path))?;
            }
        }
        Ok(())
    }

    pub(super) fn publish(mut self, manifest: &Manifest) -> Result<(), Error> {
        let path = self.folder.join(MANIFEST);
        durable::write(&path, &manifest.to_json()).map_err(Error::write(&path))?;
        let lock_path = self.folder.join(LOCK);
        fs::remove_file(&lock_path).map_err(Error::write(&lock_path))?;
        durable::sync_folder(&self.folder).map_err(Error::write(&self.folder))?;
        durable::rename(&self.folder, &self.out).map_err(Error::write(&self.out))?;
        self.lock = None;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // Left-overs are harmless: another name, and no manifest.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
