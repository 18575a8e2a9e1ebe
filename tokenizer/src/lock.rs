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
    unless_locked_elsewhere(lock.try_lock(), path, reason)?;
    Ok(lock)
}

fn unless_locked_elsewhere(
    outcome: Result<(), TryLockError>,
    path: &Path,
    reason: &str,
) -> Result<(), Error> {
    if durable::is_ours(outcome).map_err(Error::write(path))? {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(path).to_owned();
    Err(Error::Occupied { path: folder, reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_file_system_without_locks_is_written_to_without_one() {
        let locked = |outcome| unless_locked_elsewhere(Err(outcome), Path::new("set/lock"), "it is written");
        let failed = |kind: ErrorKind| locked(TryLockError::Error(kind.into()));
        failed(ErrorKind::Unsupported).expect("no lock is needed");
        let said = failed(ErrorKind::PermissionDenied).expect_err("a failure").to_string();
        assert!(said.starts_with("writing set/lock: "), "{said}");
        let said = locked(TryLockError::WouldBlock).expect_err("another has it").to_string();
        assert_eq!(said, "set: it is written");
    }
}
