//! Locks that show whether a folder's writer is running.

use std::{
    fs::{File, TryLockError},
    path::Path,
};

use crate::error::Error;

/// Locks `path` until the file is dropped. Fails with [`Error::Occupied`] and `reason` if another program holds the
/// lock.
pub(crate) fn exclusive(path: &Path, reason: &str) -> Result<File, Error> {
    let lock = File::create(path).map_err(Error::write(path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let folder = path.parent().unwrap_or(path).to_owned();
            Err(Error::Occupied { path: folder, reason: reason.to_owned() })
        }
        Err(TryLockError::Error(error)) => Err(Error::write(path)(error)),
    }
}
