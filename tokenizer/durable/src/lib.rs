//! Files that are either complete or absent: written aside, synced, then renamed. Reading, where a name may lead to
//! something that is no file: [`regular`].

pub mod regular;

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// Ends the name of a file or folder that is not complete yet.
pub const ASIDE: &str = ".partial";

/// The name under which `path` is written until it is complete.
pub fn aside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ASIDE);
    name.into()
}

/// Replaces `path` with `contents`.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    Aside::write(path, contents)?.commit()
}

/// Replaces `path` with the file that `fill` writes under the name it is given. If `fill` or anything after it fails,
/// `path` is as it was and nothing is left beside it.
pub fn write_with<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    Aside::write_with(path, fill)?.commit().map_err(E::from)
}

/// Gives its name to the file that was written as [`aside`]`(path)`. After a failure that file is gone and `path` as it was.
pub fn complete(path: &Path) -> io::Result<()> {
    Aside::of(path).synced()?.commit()
}

/// A file that is complete and synced but does not have its name yet. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct Aside {
    aside: PathBuf,
    path: PathBuf,
}

impl Aside {
    /// Writes `contents` beside `path`.
    pub fn write(path: &Path, contents: &[u8]) -> io::Result<Self> {
        Self::write_with(path, |aside| fs::write(aside, contents))
    }

    fn write_with<E: From<io::Error>>(
        path: &Path,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Self, E> {
        let written = Self::of(path);
        fill(&written.aside)?;
        Ok(written.synced()?)
    }

    fn of(path: &Path) -> Self {
        Self { aside: aside(path), path: path.to_owned() }
    }

    fn synced(self) -> io::Result<Self> {
        // Not every system syncs what is open for reading only.
        File::options().write(true).open(&self.aside)?.sync_all()?;
        Ok(self)
    }

    /// Gives the file its name.
    pub fn commit(self) -> io::Result<()> {
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

/// Elsewhere folders cannot be opened for syncing; the rename is as durable as the system makes it.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "systems that can sync folders can fail to")]
pub fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Bytes that the disk has left for files in `folder`.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Elsewhere a full disk shows when it is full.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "systems that can tell can fail to")]
pub fn free_bytes(_: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_the_old_file_and_nothing_beside_it() {
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
    fn a_file_that_somebody_else_wrote_aside_gets_its_name_or_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        assert_eq!(complete(&path).expect_err("nobody wrote it").kind(), io::ErrorKind::NotFound);
        fs::write(aside(&path), b"words").expect("written");
        complete(&path).expect("it is there");
        assert_eq!(fs::read(&path).expect("there"), b"words");
        // A folder of its name is in the way.
        let taken = folder.path().join("taken");
        fs::create_dir_all(taken.join("below")).expect("made");
        fs::write(aside(&taken), b"words").expect("written");
        complete(&taken).expect_err("the name is taken");
        assert!(taken.join("below").is_dir() && !aside(&taken).exists());
    }

    #[test]
    fn a_file_put_aside_and_dropped_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        drop(Aside::write(&folder.path().join("file"), b"words").expect("written"));
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    }
}
