//! Files that are complete or absent: written under another name, synced, then renamed.

pub mod regular;

use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

/// Suffix of incomplete files and folders.
pub const ASIDE: &str = ".partial";

/// The name of the incomplete `path`.
pub fn aside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ASIDE);
    name.into()
}

/// Whether the file of this [`File::try_lock`] is ours, and no other process's. On a file system without locks it is.
pub fn is_ours(outcome: Result<(), TryLockError>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Replaces `path` with `contents`.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    Aside::write(path, contents)?.commit()
}

/// Replaces `path` with the file that `fill` writes. On failure, `path` is unchanged and the partial file removed.
pub fn write_with<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    Aside::write_with(path, fill)?.commit().map_err(E::from)
}

/// Syncs [`aside`]`(path)` and renames it to `path`. On failure, removes it and leaves `path` unchanged.
pub fn complete(path: &Path) -> io::Result<()> {
    Aside::new(path).synced()?.commit()
}

/// A complete, synced file without its final name; a drop removes it.
#[derive(Debug)]
pub struct Aside {
    aside: PathBuf,
    path: PathBuf,
}

impl Aside {
    /// Writes `contents` to [`aside`]`(path)`.
    pub fn write(path: &Path, contents: &[u8]) -> io::Result<Self> {
        Self::write_with(path, |aside| fs::write(aside, contents))
    }

    fn write_with<E: From<io::Error>>(
        path: &Path,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Self, E> {
        let written = Self::new(path);
        // A link of this name would lead elsewhere.
        match fs::remove_file(&written.aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        fill(&written.aside)?;
        Ok(written.synced()?)
    }

    fn new(path: &Path) -> Self {
        Self { aside: aside(path), path: path.to_owned() }
    }

    fn synced(self) -> io::Result<Self> {
        // Some systems do not sync a file opened for reading only.
        File::options().write(true).open(&self.aside)?.sync_all()?;
        Ok(self)
    }

    /// Gives the file its final name.
    pub fn commit(self) -> io::Result<()> {
        rename(&self.aside, &self.path)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.aside);
    }
}

/// Renames a synced file or folder, durably.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    match to.parent() {
        Some(parent) if parent != Path::new("") => sync_folder(parent),
        _ => sync_folder(Path::new(".")),
    }
}

/// Makes the names in `folder` durable.
#[cfg(unix)]
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Does nothing: this system cannot sync folders.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "systems that can sync folders can fail to")]
pub fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Free bytes for files in `folder`.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Unknown on this system.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "systems that can tell can fail to")]
pub fn free_bytes(_: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_only_the_old_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        write(&path, b"old").expect("written");
        let refused = write_with(&path, |aside| {
            fs::write(aside, b"ne")?;
            Err(io::Error::other("refused half way"))
        });
        assert_eq!(refused.expect_err("it was refused").to_string(), "refused half way");
        assert_eq!(fs::read(&path).expect("still there"), b"old");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
        write_with(&path, |aside| fs::write(aside, b"new")).expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"new");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    }

    #[test]
    fn complete_renames_the_partial_file_or_removes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        assert_eq!(complete(&path).expect_err("nobody wrote it").kind(), io::ErrorKind::NotFound);
        fs::write(aside(&path), b"words").expect("written");
        complete(&path).expect("it is there");
        assert_eq!(fs::read(&path).expect("there"), b"words");
        let taken = folder.path().join("taken");
        fs::create_dir_all(taken.join("below")).expect("made");
        fs::write(aside(&taken), b"words").expect("written");
        complete(&taken).expect_err("the name is taken");
        assert!(taken.join("below").is_dir() && !aside(&taken).exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_under_the_partial_name_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, target) = (folder.path().join("file"), folder.path().join("target"));
        fs::write(&target, b"mine").expect("written");
        std::os::unix::fs::symlink(&target, aside(&path)).expect("linked");
        write(&path, b"words").expect("written");
        assert_eq!(fs::read(&target).expect("there"), b"mine");
        assert_eq!(fs::read(&path).expect("there"), b"words");
    }

    #[test]
    fn dropping_an_uncommitted_file_removes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        drop(Aside::write(&folder.path().join("file"), b"words").expect("written"));
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    }
}
