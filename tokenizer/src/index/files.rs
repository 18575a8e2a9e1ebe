//! An index's files: a header of 64 bytes, then entries.
//!
//! The header: kind (8 bytes), format (4), bytes of an entry (4), number of entries (8), mark of the set's tokens (8),
//! SHA-256 of the entries (32), which a resumed build verifies.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    IndexProblem,
    format::{FORMAT, HEADER_BYTES},
};
use crate::{error::Error, fingerprint::Fingerprint, regular};

const BUFFER: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A chunk's positions, sorted by context.
    Run,
    /// A stretch's positions in order, each with the number of tokens in common with the previous context.
    Stretch,
    /// Positions by context, then the minima of every 64.
    Order,
    Followers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) entries: u64,
    pub(super) mark: [u8; 8],
    pub(super) digest: Fingerprint,
}

impl Kind {
    fn magic(self) -> [u8; 8] {
        *match self {
            Self::Run => b"lm-run\0\0",
            Self::Stretch => b"lm-strch",
            Self::Order => b"lm-order",
            Self::Followers => b"lm-follo",
        }
    }

    pub(super) fn entry_bytes(self) -> usize {
        match self {
            Self::Followers => 3,
            Self::Run | Self::Order => 4,
            Self::Stretch => 5,
        }
    }
}

impl Header {
    pub(super) const BYTES: usize = HEADER_BYTES;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.kind.magic());
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.kind.entry_bytes() as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.entries.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.mark);
        bytes[32..].copy_from_slice(&self.digest.bytes());
        bytes
    }

    pub(super) fn parse(
        bytes: &[u8],
        found: u64,
        kind: Kind,
        entries: u64,
        mark: [u8; 8],
    ) -> Result<Self, IndexProblem> {
        let bytes: &[u8; Self::BYTES] = bytes.first_chunk().ok_or(IndexProblem::NoHeader { found })?;
        let mut digest = [0; 32];
        digest.copy_from_slice(&bytes[32..]);
        let header = Self { kind, entries, mark, digest: Fingerprint::from_bytes(digest) };
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if bytes[..8] == kind.magic() && version != FORMAT {
            return Err(IndexProblem::Format { found: version });
        }
        if *bytes != header.to_bytes() {
            return Err(IndexProblem::Magic);
        }
        let expected = Self::BYTES as u64 + entries * kind.entry_bytes() as u64;
        if expected == found { Ok(header) } else { Err(IndexProblem::Size { expected, found }) }
    }
}

#[derive(Debug)]
pub(super) struct EntryWriter {
    path: PathBuf,
    file: File,
    digest: Sha256,
    kind: Kind,
    bytes: u64,
    waiting: Vec<u8>,
}

impl EntryWriter {
    pub(super) fn create(path: &Path, kind: Kind) -> Result<Self, Error> {
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(durable::aside(path));
        let mut file = file.map_err(Error::write(path))?;
        file.write_all(&[0; Header::BYTES]).map_err(Error::write(path))?;
        let waiting = Vec::with_capacity(BUFFER);
        Ok(Self { path: path.to_owned(), file, digest: Sha256::new(), kind, bytes: 0, waiting })
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.waiting.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.digest.update(&self.waiting);
        self.bytes += self.waiting.len() as u64;
        self.file.write_all(&self.waiting).map_err(Error::write(&self.path))?;
        self.waiting.clear();
        Ok(())
    }

    pub(super) fn reader_so_far(&mut self) -> Result<EntryReader, Error> {
        self.flush()?;
        let path = durable::aside(&self.path);
        let file = File::open(&path).map_err(Error::read(&path))?;
        Ok(EntryReader { path, file, kind: self.kind, entries: self.bytes / self.kind.entry_bytes() as u64 })
    }

    pub(super) fn finish(self, mark: [u8; 8]) -> Result<Fingerprint, Error> {
        let (path, _, digest) = self.complete(mark)?;
        durable::complete(&path).map_err(Error::write(&path))?;
        Ok(digest)
    }

    /// Without a sync: a resumed build verifies the checksum.
    pub(super) fn finish_piece(self, mark: [u8; 8]) -> Result<EntryReader, Error> {
        let (path, reading, _) = self.complete(mark)?;
        fs::rename(durable::aside(&path), &path).map_err(Error::write(&path))?;
        Ok(EntryReader { path, ..reading })
    }

    fn complete(mut self, mark: [u8; 8]) -> Result<(PathBuf, EntryReader, Fingerprint), Error> {
        let reading = self.reader_so_far()?;
        let digest = Fingerprint::finish(self.digest);
        let header = Header { kind: self.kind, entries: reading.entries, mark, digest };
        self.file.seek(SeekFrom::Start(0)).map_err(Error::write(&self.path))?;
        self.file.write_all(&header.to_bytes()).map_err(Error::write(&self.path))?;
        Ok((self.path, EntryReader { file: self.file, ..reading }, digest))
    }
}

#[derive(Debug)]
pub(super) struct EntryReader {
    path: PathBuf,
    file: File,
    kind: Kind,
    entries: u64,
}

impl EntryReader {
    pub(super) fn open_verified(path: &Path, kind: Kind, entries: u64, mark: [u8; 8]) -> Result<Self, Error> {
        let mut file = regular::open(path)?;
        let found = file.metadata().map_err(Error::read(path))?.len();
        let mut head = Vec::new();
        (&file).take(Header::BYTES as u64).read_to_end(&mut head).map_err(Error::read(path))?;
        let header = Header::parse(&head, found, kind, entries, mark)
            .map_err(|problem| Error::index(path, problem))?;
        let mut digest = Sha256::new();
        io::copy(&mut file, &mut digest).map_err(Error::read(path))?;
        check_digest(path, header.digest, Fingerprint::finish(digest))?;
        Ok(Self { path: path.to_owned(), file, kind, entries })
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) fn read(&self, from: u64, count: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let width = self.kind.entry_bytes();
        bytes.resize(count * width, 0);
        let start = Header::BYTES as u64 + from * width as u64;
        read_at(&self.file, bytes, start).map_err(Error::read(&self.path))
    }
}

pub(super) fn check_digest(path: &Path, expected: Fingerprint, found: Fingerprint) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::index(path, IndexProblem::Checksum { expected, found }))
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], start: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, start)
}

#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut start: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, bytes, start)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes = &mut bytes[read..];
        start += read as u64;
    }
    Ok(())
}
