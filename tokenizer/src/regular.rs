//! Opening regular files only: a FIFO would wait for ever for a writer, and a device need not end.

use std::{
    fs::{self, File},
    path::Path,
};

use crate::error::Error;

/// Opens `path` for reading, or says that it is no regular file. Links are followed.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    if !fs::metadata(path).map_err(Error::read(path))?.is_file() {
        return Err(Error::NotAFile { path: path.to_owned() });
    }
    File::open(path).map_err(Error::read(path))
}
