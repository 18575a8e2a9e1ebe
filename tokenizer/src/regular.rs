//! Opens regular files, with this crate's error.

use std::{fs::File, path::Path};

use durable::regular::{self, Unread};
use memmap2::Mmap;

use crate::error::Error;

/// Follows links.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    regular::open(path).map_err(unread(path))
}

pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    regular::read(path, limit).map_err(unread(path))
}

/// Maps `path` unless `check` refuses its size; it must refuse 0: empty files cannot be mapped.
pub(crate) fn map(path: &Path, check: impl FnOnce(u64) -> Result<(), Error>) -> Result<Mmap, Error> {
    let file = open(path)?;
    check(file.metadata().map_err(Error::read(path))?.len())?;
    // SAFETY: this crate's files are renamed into place and never changed. Foreign truncation ends the process with
    // SIGBUS, which no mapping can exclude.
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
