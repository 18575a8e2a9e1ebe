//! Regular files opened, mapped and read, with this crate's error.

use std::{fs::File, path::Path};

use durable::regular::{self, Unread};
use memmap2::Mmap;

use crate::error::Error;

/// Opens `path` for reading, or says that it is no regular file. Links are followed.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    regular::open(path).map_err(unread(path))
}

/// Reads a whole file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    regular::read(path, limit).map_err(unread(path))
}

/// Maps `path` unless `check` refuses its size. An empty file cannot be mapped, so `check` has to refuse it.
pub(crate) fn map(path: &Path, check: impl FnOnce(u64) -> Result<(), Error>) -> Result<Mmap, Error> {
    let file = open(path)?;
    check(file.metadata().map_err(Error::read(path))?.len())?;
    // SAFETY: files of this crate are written aside and renamed, never changed in place. A program that truncates one
    // while it is mapped ends this process with SIGBUS; no reading API over a mapping can exclude that.
    unsafe { Mmap::map(&file) }.map_err(Error::read(path))
}

fn unread(path: &Path) -> impl FnOnce(Unread) -> Error {
    let path = path.to_owned();
    move |unread| match unread {
        Unread::System(cause) => Error::Read { path, cause },
        Unread::NotAFile => Error::NotAFile { path },
        Unread::TooLarge { bytes, limit } => Error::FileTooLarge { path, bytes, limit },
    }
}
