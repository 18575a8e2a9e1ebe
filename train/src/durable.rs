//! Files that are either complete or absent: written aside, synced, then renamed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Added to the name of what is not complete yet.
pub(crate) const ASIDE: &str = ".partial";

/// Replaces `path` with `contents`.
pub(crate) fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    Aside::write(path, contents)?.commit()
}

/// A file that is complete and synced but does not have its name yet. Dropped, it leaves nothing.
pub(crate) struct Aside {
    aside: PathBuf,
    path: PathBuf,
}

impl Aside {
    pub(crate) fn write(path: &Path, contents: &[u8]) -> io::Result<Self> {
        let mut aside = OsString::from(path);
        aside.push(ASIDE);
        let written = Self { aside: aside.into(), path: path.to_owned() };
        let mut file = File::create(&written.aside)?;
        file.write_all(contents)?;
        file.sync_all()?;
        Ok(written)
    }

    pub(crate) fn commit(self) -> io::Result<()> {
        rename(&self.aside, &self.path)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // After a commit there is nothing under this name.
        let _ = fs::remove_file(&self.aside);
    }
}

/// Moves a synced file or folder into place and makes the move itself durable.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    match to.parent() {
        Some(parent) if parent != Path::new("") => sync_folder(parent),
        _ => sync_folder(Path::new(".")),
    }
}

#[cfg(unix)]
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Elsewhere folders cannot be opened for syncing; the rename is as durable as the system makes it.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "systems that can sync folders can fail to")]
pub(crate) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Bytes that may still be written in `folder`.
#[cfg(unix)]
pub(crate) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Elsewhere a full disk shows when it is full.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "systems that can tell can fail to")]
pub(crate) fn free_bytes(_: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}
