//! A build's folder: keeps finished pieces and becomes the index.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    IndexManifest,
    files::{EntryReader, EntryWriter, Kind},
    manifest::{self, IndexPlan},
};
use crate::{error::Error, lock};

const LOCK: &str = "build.lock";
const PLAN: &str = "build.json";
pub(super) const ORDER: &str = "order.bin";
pub(super) const FOLLOWERS: &str = "followers.bin";

/// `OUT.partial`, locked.
#[derive(Debug)]
pub(super) struct BuildFolder {
    out: PathBuf,
    folder: PathBuf,
    mark: [u8; 8],
    _lock: File,
}

/// Another build's pieces are discarded.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pieces {
    index: IndexPlan,
    chunk_tokens: u64,
}

/// The planned index's manifest; `None` for an absent or empty folder. Anything else is an error.
pub(super) fn finished(out: &Path, plan: &IndexPlan) -> Result<Option<IndexManifest>, Error> {
    let mut entries = match fs::read_dir(out) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(Error::read(out))?,
    };
    if entries.next().is_none() {
        return Ok(None);
    }
    if !out.join(manifest::NAME).exists() {
        let reason = "the folder holds files but no index; choose another --out, or empty it".to_owned();
        return Err(Error::Occupied { path: out.to_owned(), reason });
    }
    let made = IndexManifest::read(out)?;
    plan.check(out, &made)?;
    Ok(Some(made))
}

impl BuildFolder {
    /// Locks the folder, and clears it unless its pieces fit the plan.
    pub(super) fn begin(out: &Path, plan: &IndexPlan, chunk_tokens: u64) -> Result<Self, Error> {
        let folder = durable::aside(out);
        fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        let reason = "another run is building this index right now; wait for it, or choose another --out";
        let lock = lock::exclusive(&folder.join(LOCK), reason)?;
        let begun = Self { out: out.to_owned(), folder, mark: plan.mark(), _lock: lock };
        let (pieces, path) = (Pieces { index: plan.clone(), chunk_tokens }, begun.folder.join(PLAN));
        let left: Option<Pieces> = fs::read(&path).ok().and_then(|json| serde_json::from_slice(&json).ok());
        if left.as_ref() != Some(&pieces) {
            begun.clear(|_| false)?;
            let json = serde_json::to_vec(&pieces).expect("strings and numbers always serialise");
            durable::write(&path, &json).map_err(Error::write(&path))?;
        }
        Ok(begun)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Verifies and reuses the piece, or writes it with `fill`. `true` if reused.
    pub(super) fn piece(
        &self,
        name: &str,
        kind: Kind,
        entries: u64,
        fill: impl FnOnce(&mut EntryWriter) -> Result<(), Error>,
    ) -> Result<(EntryReader, bool), Error> {
        let path = self.path(name);
        if let Ok(reading) = EntryReader::open_verified(&path, kind, entries, self.mark) {
            return Ok((reading, true));
        }
        let mut writing = EntryWriter::create(&path, kind)?;
        fill(&mut writing)?;
        Ok((writing.finish_piece(self.mark)?, false))
    }

    pub(super) fn publish(self, manifest: &IndexManifest) -> Result<(), Error> {
        let path = self.path(manifest::NAME);
        self.clear(|name| [ORDER, FOLLOWERS].contains(&name))?;
        durable::write(&path, &manifest.to_json()).map_err(Error::write(&path))?;
        let lock_path = self.path(LOCK);
        fs::remove_file(&lock_path).map_err(Error::write(&lock_path))?;
        durable::sync_folder(&self.folder).map_err(Error::write(&self.folder))?;
        durable::rename(&self.folder, &self.out).map_err(Error::write(&self.out))
    }

    fn clear(&self, keep: impl Fn(&str) -> bool) -> Result<(), Error> {
        for entry in fs::read_dir(&self.folder).map_err(Error::read(&self.folder))? {
            let path = entry.map_err(Error::read(&self.folder))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name != LOCK && !keep(&name) {
                fs::remove_file(&path).map_err(Error::write(&path))?;
            }
        }
        Ok(())
    }
}
