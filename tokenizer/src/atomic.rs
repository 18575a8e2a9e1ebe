//! Files that are either complete or absent: written aside, synced, then renamed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use crate::error::Error;

/// Replaces `path` with `contents`.
pub(crate) fn write(path: &Path, contents: &[u8]) -> Result<(), Error> {
    let aside = aside(path);
    let attempt = || {
        let mut file = File::create(&aside)?;
        file.write_all(contents)?;
        file.sync_all()
    };
    if let Err(cause) = attempt() {
        // The first failure is the one worth reporting.
        let _ = fs::remove_file(&aside);
        return Err(Error::Write { path: path.to_owned(), cause });
    }
    rename(&aside, path)
}

/// Moves a synced file or folder into place and makes the move itself durable.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(Error::write(to))?;
    let parent = match to.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    sync_folder(parent)
}

#[cfg(unix)]
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::write(folder))
}

/// Elsewhere folders cannot be opened for syncing; the rename is as durable as the system makes it.
#[cfg(not(unix))]
pub(crate) fn sync_folder(_: &Path) -> Result<(), Error> {
    Ok(())
}

/// The name under which `path` is written until it is complete.
pub(crate) fn aside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".partial");
    name.into()
}
