//! The file a device's [`Recording`](pager::Recording) is written to while the program runs.

use crate::error::OffloadError;
use crate::journal::TARGET;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// A recording under way.
#[derive(Debug, Clone)]
pub(crate) struct TraceFile {
    path: PathBuf,
    file: Arc<File>,
}

impl TraceFile {
    /// Bytes that wait in memory before they are written.
    pub const BUFFER: usize = 64 << 10;

    /// Opens the file anew. The devices after a process's first one add a number to its name.
    pub fn create(mut path: PathBuf, others: u32) -> Result<Self, OffloadError> {
        if others > 0 {
            path.as_mut_os_string().push(format!(".{others}"));
        }
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file: Arc::new(file) }),
            Err(error) => {
                Err(OffloadError::Trace { path: path.display().to_string(), reason: error.to_string() })
            }
        }
    }

    /// False if nothing more can be written, which is said once.
    pub fn write(&self, bytes: &[u8]) -> bool {
        let written = self.file.as_ref().write_all(bytes);
        if let Err(error) = &written {
            tracing::warn!(target: TARGET, "recording to {} ends: {error}", self.path.display());
        }
        written.is_ok()
    }
}
