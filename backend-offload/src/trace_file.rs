//! The file of a device's [`Recording`](pager::Recording).

use crate::error::OffloadError;
use crate::journal::TARGET;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub(crate) struct TraceFile {
    path: PathBuf,
    file: Arc<File>,
}

impl TraceFile {
    /// Bytes buffered before a write.
    pub const BUFFER: usize = 64 << 10;

    /// The name of each further device's file ends in a number.
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

    /// False if the file cannot be written, with one warning.
    pub fn write(&self, bytes: &[u8]) -> bool {
        let written = self.file.as_ref().write_all(bytes);
        if let Err(error) = &written {
            tracing::warn!(target: TARGET, "recording to {} ends: {error}", self.path.display());
        }
        written.is_ok()
    }
}
