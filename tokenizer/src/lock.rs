//! Locks that tell a program still writing a folder from one that is gone.

use std::{
    fs::{File, TryLockError},
    path::Path,
};

use crate::error::Error;

/// Locks the file at `path` until the returned one is dropped. If another program holds it, the folder around it is
/// occupied, for `reason`.
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
