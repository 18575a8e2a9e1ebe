//! Opening and mapping regular files only: a FIFO would wait for ever for a writer, and a device need not end.

use std::{
    fs::{self, File},
    path::Path,
};

use memmap2::Mmap;

use crate::error::Error;

/// Opens `path` for reading, or says that it is no regular file. Links are followed.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    if !fs::metadata(path).map_err(Error::read(path))?.is_file() {
        return Err(Error::NotAFile { path: path.to_owned() });
    }
    File::open(path).map_err(Error::read(path))
}

/// Maps `path` unless `check` refuses its size. An empty file cannot be mapped, so `check` has to refuse it.
pub(crate) fn map(path: &Path, check: impl FnOnce(u64) -> Result<(), Error>) -> Result<Mmap, Error> {
    let file = open(path)?;
    check(file.metadata().map_err(Error::read(path))?.len())?;
    // SAFETY: files of this crate are written aside and renamed, never changed in place. A program that truncates one
    // while it is mapped ends this process with SIGBUS; no reading API over a mapping can exclude that.
    unsafe { Mmap::map(&file) }.map_err(Error::read(path))
}
