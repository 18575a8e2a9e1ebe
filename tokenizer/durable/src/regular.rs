//! Reads regular files only: a FIFO could wait forever, a device never end. Files read whole have a size limit
//! (`endless_files_are_refused_wherever_a_file_is_given`).

use std::{
    error, fmt,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

/// Why a file was not read. Converts into an [`io::Error`].
#[derive(Debug)]
pub enum Unread {
    /// The system's error.
    System(io::Error),
    /// A folder, a FIFO, a socket or a device.
    NotAFile,
    /// More than the caller's limit.
    TooLarge {
        /// Size of the file.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
}

impl fmt::Display for Unread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(out),
            Self::NotAFile => out.write_str("it is no regular file"),
            Self::TooLarge { bytes, limit } => {
                write!(out, "it has {bytes} bytes, and a file of its kind may have {limit}")
            }
        }
    }
}

impl error::Error for Unread {}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<Unread> for io::Error {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::System(error) => error,
            Unread::NotAFile => Self::new(io::ErrorKind::InvalidInput, unread),
            Unread::TooLarge { .. } => Self::new(io::ErrorKind::FileTooLarge, unread),
        }
    }
}

/// What some editors write before UTF-8.
pub const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Opens `path`, following links.
pub fn open(path: &Path) -> Result<File, Unread> {
    if !fs::metadata(path)?.is_file() {
        return Err(Unread::NotAFile);
    }
    Ok(File::open(path)?)
}

/// Reads a file of at most `limit` bytes, whatever its stated size.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Unread> {
    let file = open(path)?;
    let bytes = file.metadata()?.len();
    if bytes > limit {
        return Err(Unread::TooLarge { bytes, limit });
    }
    let mut contents = Vec::with_capacity(bytes as usize);
    let read = file.take(limit + 1).read_to_end(&mut contents)? as u64;
    if read > limit {
        return Err(Unread::TooLarge { bytes: read, limit });
    }
    Ok(contents)
}

/// Reads a UTF-8 file of at most `limit` bytes, without the byte-order mark that some editors write.
pub fn read_text(path: &Path, limit: u64) -> Result<String, Unread> {
    let mut bytes = read(path, limit)?;
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_refused_above() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "words").expect("written");
        assert_eq!(read_text(&path, 5).expect("it fits"), "words");
        fs::write(&path, "\u{feff}words").expect("written");
        assert_eq!(read_text(&path, 8).expect("it fits"), "words");
        fs::write(&path, "words").expect("written");
        let refused = read(&path, 4).expect_err("a byte too many");
        assert!(matches!(refused, Unread::TooLarge { bytes: 5, limit: 4 }), "{refused}");
        assert_eq!(io::Error::from(refused).kind(), io::ErrorKind::FileTooLarge);
        // A sparse file, larger than memory.
        File::options().write(true).open(&path).and_then(|file| file.set_len(200 << 30)).expect("set");
        assert!(matches!(read(&path, 4), Err(Unread::TooLarge { bytes, .. }) if bytes == 200 << 30));
        fs::write(&path, [0xFF]).expect("written");
        assert_eq!(
            io::Error::from(read_text(&path, 5).expect_err("no text")).kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[cfg(unix)]
    #[test]
    fn folders_devices_and_absent_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        for odd in [folder.path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            assert!(matches!(read(odd, 5), Err(Unread::NotAFile)), "{}", odd.display());
        }
        let absent = io::Error::from(open(&folder.path().join("absent")).expect_err("it is not there"));
        assert_eq!(absent.kind(), io::ErrorKind::NotFound, "{absent}");
    }
}
