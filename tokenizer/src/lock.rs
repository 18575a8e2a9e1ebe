//! Locks that show whether a folder's writer runs.

use std::{
    fs::{File, TryLockError},
    path::Path,
};

use crate::error::Error;

/// Locks `path` until the file is dropped. If another program holds it, fails with [`Error::Occupied`] and `reason`.
pub(crate) fn exclusive(path: &Path, reason: &str) -> Result<File, Error> {
    let lock = File::options().write(true).create(true).truncate(false).open(path);
    let lock = lock.map_err(Error::write(path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let folder = path.parent().unwrap_or(path).to_owned();
            Err(Error::Occupied { path: folder, reason: reason.to_owned() })
        }
        Err(TryLockError::Error(error)) => Err(Error::write(path)(error)),
    }
}
