//! Disk memory for the program itself, under the disk budget of spilled blocks.
//!
//! An optimizer moves pieces of state from its own threads, through its own host memory. Each read verifies checksums.

use crate::bytes::Bytes;
use crate::error::OffloadError;
#[cfg(feature = "test-util")]
use crate::faults::DiskFault;
use crate::host_memory::{HostBuffer, HostMemory};
use crate::tiers::{ALIGNMENT, Disk, Traffic, checksum};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(feature = "test-util")]
use std::sync::{Mutex, PoisonError};

const PAGE: usize = ALIGNMENT as usize;

/// The disk below a device's host memory. Clones share its budget.
#[derive(Clone)]
pub struct DiskMemory {
    host: HostMemory,
    disk: Arc<Disk>,
    traffic: Arc<Traffic>,
    #[cfg(feature = "test-util")]
    fault: Arc<Mutex<Option<(u64, DiskFault)>>>,
}

/// Disk space in pieces, transferred alone or with neighbours. A drop frees it.
pub struct DiskPieces {
    memory: DiskMemory,
    name: String,
    parts: Vec<Range<u64>>,
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    begin: u64,
    len: usize,
    checksum: AtomicU64,
}

/// Page-aligned host memory for disk transfers.
#[derive(Debug)]
pub struct PageBuffer {
    buffer: HostBuffer,
    begin: usize,
    len: usize,
}

impl DiskMemory {
    pub(crate) fn new(host: HostMemory, disk: Arc<Disk>, traffic: Arc<Traffic>) -> Self {
        Self {
            host,
            disk,
            traffic,
            #[cfg(feature = "test-util")]
            fault: Arc::default(),
        }
    }

    /// The host memory above this disk.
    pub fn host(&self) -> &HostMemory {
        &self.host
    }

    /// Disk bytes of pieces, each rounded up to pages.
    pub fn bytes_of(pieces: impl IntoIterator<Item = usize>) -> u64 {
        pieces.into_iter().map(|len| len.next_multiple_of(PAGE) as u64).sum()
    }

    /// Reserves pieces, to be written before they are read. Errors call them `name`.
    ///
    /// # Errors
    /// If the disk budget has no room.
    pub fn take(&self, lens: &[usize], name: impl fmt::Display) -> Result<DiskPieces, OffloadError> {
        let bytes = Self::bytes_of(lens.iter().copied());
        let parts = self.disk.take(bytes).ok_or_else(|| OffloadError::Disk {
            attempted: format!("finding {} for {name}", Bytes(bytes)),
            folder: self.disk.folder().display().to_string(),
            reason: format!("the disk budget has {} left", Bytes(self.disk.room().get().unwrap_or_default())),
        })?;
        let mut begin = 0;
        let pieces = lens.iter().map(|&len| {
            let piece = Piece { begin, len, checksum: AtomicU64::new(0) };
            begin += len.next_multiple_of(PAGE) as u64;
            piece
        });
        let pieces = pieces.collect();
        Ok(DiskPieces { memory: self.clone(), name: name.to_string(), parts, pieces })
    }

    /// Host memory for transfers of `len` bytes.
    ///
    /// # Errors
    /// As [`HostMemory::take`].
    pub fn buffer(&self, len: usize, purpose: impl fmt::Display) -> Result<PageBuffer, OffloadError> {
        let buffer = self.host.take(Self::buffer_bytes(len), purpose)?;
        let begin = buffer.as_ptr().addr().next_multiple_of(PAGE) - buffer.as_ptr().addr();
        Ok(PageBuffer { buffer, begin, len })
    }

    /// Host bytes of a [`buffer`](Self::buffer).
    pub const fn buffer_bytes(len: usize) -> usize {
        len + PAGE
    }

    /// Fails one transfer in the fault's direction, after `transfers` others.
    #[cfg(feature = "test-util")]
    pub fn fail_after(&self, transfers: u64, fault: DiskFault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some((transfers, fault));
    }

    /// Whether the fault has occurred.
    #[cfg(feature = "test-util")]
    pub fn has_failed(&self) -> bool {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Bytes read and written.
    #[cfg(feature = "test-util")]
    pub fn moved(&self) -> [u64; 2] {
        [&self.traffic.read, &self.traffic.written].map(|bytes| bytes.load(Relaxed))
    }

    #[cfg(feature = "test-util")]
    fn fault(&self, writes: bool) -> Option<DiskFault> {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, kind) = fault.as_mut().filter(|(_, kind)| kind.is_of_writes() == writes)?;
        let (due, kind) = (*left == 0, *kind);
        *left = left.saturating_sub(1);
        if due {
            *fault = None;
        }
        due.then_some(kind)
    }
}

impl DiskPieces {
    /// Disk bytes of all pieces.
    pub fn bytes(&self) -> u64 {
        DiskMemory::bytes_of(self.pieces.iter().map(|piece| piece.len))
    }

    /// Each piece's range in a common buffer.
    pub fn places(&self, pieces: Range<usize>) -> Vec<Range<usize>> {
        let pieces = &self.pieces[pieces];
        let first = pieces.first().map_or(0, |piece| piece.begin);
        let place = |piece: &Piece| {
            let begin = (piece.begin - first) as usize;
            begin..begin + piece.len
        };
        pieces.iter().map(place).collect()
    }

    /// Bytes of a common buffer for these pieces.
    pub fn span(&self, pieces: Range<usize>) -> usize {
        DiskMemory::bytes_of(self.pieces[pieces].iter().map(|piece| piece.len)) as usize
    }

    /// Reads neighbouring pieces and waits.
    ///
    /// # Errors
    /// If the disk fails, or a piece differs from its last contents.
    pub fn read(&self, pieces: Range<usize>, into: &mut PageBuffer) -> Result<(), OffloadError> {
        self.fetch(pieces.clone(), into)?;
        self.verify(pieces, into)
    }

    /// Reads unverified pieces: [`verify`](Self::verify) them before use.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn fetch(&self, pieces: Range<usize>, into: &mut PageBuffer) -> Result<(), OffloadError> {
        let span = self.span(pieces.clone());
        let into = &mut into[..span];
        #[cfg(feature = "test-util")]
        let fault = if span > 0 { self.memory.fault(false) } else { None };
        for (place, part) in self.stretches(pieces.start, span) {
            let read = self.memory.disk.read_pages(place, &mut into[part.clone()]);
            #[cfg(feature = "test-util")]
            let read =
                read.and_then(|()| fault.map_or(Ok(()), |fault| fault.strike(&mut into[part.clone()])));
            read.map_err(|error| self.failed("reading", part.len(), place, &error.to_string()))?;
        }
        self.memory.traffic.read.fetch_add(span as u64, Relaxed);
        Ok(())
    }

    /// Verifies checksums of [fetched](Self::fetch) pieces on the calling thread.
    ///
    /// # Errors
    /// If a piece differs from its last contents.
    pub fn verify(&self, pieces: Range<usize>, fetched: &PageBuffer) -> Result<(), OffloadError> {
        for (piece, place) in self.pieces[pieces.clone()].iter().zip(self.places(pieces)) {
            if checksum(&fetched[place]) != piece.checksum.load(Relaxed) {
                let place = self.stretches_from(piece.begin, 1).next().map_or(0, |(place, _)| place);
                return Err(self.failed(
                    "reading",
                    piece.len,
                    place,
                    "its bytes are not those that were written",
                ));
            }
        }
        Ok(())
    }

    /// Writes neighbouring pieces and waits. After an error they are unusable.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn write(&self, pieces: Range<usize>, from: &PageBuffer) -> Result<(), OffloadError> {
        self.seal(pieces.clone(), from);
        self.put(pieces, from)
    }

    /// Takes checksums before [`put`](Self::put).
    pub fn seal(&self, pieces: Range<usize>, from: &PageBuffer) {
        for (piece, place) in self.pieces[pieces.clone()].iter().zip(self.places(pieces)) {
            piece.checksum.store(checksum(&from[place]), Relaxed);
        }
    }

    /// Writes [sealed](Self::seal) pieces.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn put(&self, pieces: Range<usize>, from: &PageBuffer) -> Result<(), OffloadError> {
        let span = self.span(pieces.clone());
        for (place, part) in self.stretches(pieces.start, span) {
            let written = self.memory.disk.write_pages(place, &from[part.clone()]);
            #[cfg(feature = "test-util")]
            let written =
                written.and_then(|()| self.memory.fault(true).map_or(Ok(()), |fault| fault.strike(&mut [])));
            written.map_err(|error| self.failed("writing", part.len(), place, &error.to_string()))?;
        }
        self.memory.traffic.written.fetch_add(span as u64, Relaxed);
        Ok(())
    }

    fn stretches(&self, first: usize, span: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
        let begin = self.pieces.get(first).map_or(0, |piece| piece.begin);
        self.stretches_from(begin, span)
    }

    fn stretches_from(&self, begin: u64, span: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
        let end = begin + span as u64;
        let mut before = 0;
        self.parts.iter().filter_map(move |part| {
            let (first, last) = (before, before + (part.end - part.start));
            before = last;
            let (from, to) = (begin.max(first), end.min(last));
            (from < to).then(|| (part.start + from - first, (from - begin) as usize..(to - begin) as usize))
        })
    }

    fn failed(&self, attempted: &str, len: usize, place: u64, reason: &str) -> OffloadError {
        let name = &self.name;
        OffloadError::Disk {
            attempted: format!("{attempted} {} of {name} at byte {place} of the file", Bytes(len as u64)),
            folder: self.memory.disk.folder().display().to_string(),
            reason: reason.to_owned(),
        }
    }
}

impl Drop for DiskPieces {
    fn drop(&mut self) {
        self.memory.disk.give_back(&self.parts);
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.begin..][..self.len]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.begin..][..self.len]
    }
}

impl fmt::Debug for DiskMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskMemory({})", self.disk.folder().display())
    }
}

impl fmt::Debug for DiskPieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskPieces({} of {})", Bytes(self.bytes()), self.name)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn memory(pages: u64) -> (tempfile::TempDir, DiskMemory) {
        let folder = tempfile::tempdir().expect("a folder");
        let host = HostMemory::above_disk(folder.path(), pages * ALIGNMENT).expect("there is room");
        let disk = host.disk().expect("it was named");
        (folder, disk)
    }

    fn filled(memory: &DiskMemory, len: usize, seed: u8) -> PageBuffer {
        let mut buffer = memory.buffer(len, "a test").expect("there is memory");
        buffer.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n / 7) as u8 ^ seed);
        buffer
    }

    #[test]
    fn pieces_read_alone_or_together_have_the_written_bytes_wherever_they_lie() {
        let (_folder, memory) = memory(9);
        // Free space in two parts, each too small for all pieces.
        let mut held: Vec<_> = (0..9).map(|n| memory.take(&[PAGE], n).expect("room")).collect();
        let _between = held.swap_remove(4);
        drop(held);
        let pieces = memory.take(&[PAGE + 1, 0, 5, 3 * PAGE], "a state").expect("room");
        assert_eq!((pieces.bytes(), pieces.parts.len()), (6 * ALIGNMENT, 2));

        let from = filled(&memory, pieces.span(0..4), 1);
        pieces.write(0..4, &from).expect("a disk");
        let mut into = memory.buffer(pieces.span(0..4), "a test").expect("memory");
        for some in [0..4, 0..1, 1..2, 2..3, 2..4, 3..4] {
            into.fill(0);
            pieces.read(some.clone(), &mut into).expect("as they were written");
            for (here, there) in pieces.places(some.clone()).into_iter().zip(&pieces.places(0..4)[some]) {
                assert_eq!(into[here], from[there.clone()]);
            }
        }

        let again = filled(&memory, pieces.span(2..4), 2);
        pieces.write(2..4, &again).expect("a disk");
        pieces.read(0..4, &mut into).expect("as they were written");
        assert_eq!(into[..=PAGE], from[..=PAGE]);
        assert_eq!(into[3 * PAGE..6 * PAGE], again[PAGE..4 * PAGE]);

        let [written, read] =
            [&memory.traffic.written, &memory.traffic.read].map(|bytes| bytes.load(Relaxed) / ALIGNMENT);
        assert_eq!((written, read), (6 + 4, 6 + 2 + 1 + 4 + 3 + 6), "in pages");

        drop(pieces);
        assert_eq!(memory.disk.usage().in_use, ALIGNMENT, "its place is free");
    }

    #[test]
    fn a_state_above_the_disk_budget_is_refused_with_its_name_and_sizes() {
        let (_folder, memory) = memory(3);
        let _held = memory.take(&[PAGE], "one").expect("room");
        let message = memory.take(&[2 * PAGE, 1], "the state of wte").expect_err("too much").to_string();
        for part in ["finding 12.00 KiB for the state of wte", "has 8.00 KiB left"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_changed_byte_on_the_disk_is_reported_with_its_piece_and_place() {
        let (_folder, memory) = memory(4);
        let _before = memory.take(&[PAGE], "another").expect("room");
        let pieces = memory.take(&[PAGE, 100], "the state of wte").expect("room");
        let mut buffer = filled(&memory, pieces.span(0..2), 3);
        pieces.write(0..2, &buffer).expect("a disk");
        let mut page = filled(&memory, PAGE, 0);
        memory.disk.read_pages(2 * ALIGNMENT, &mut page).expect("a disk");
        page[99] ^= 1;
        memory.disk.write_pages(2 * ALIGNMENT, &page).expect("a disk");
        pieces.read(0..1, &mut buffer).expect("it is another piece");
        let message = pieces.read(0..2, &mut buffer).expect_err("it changed").to_string();
        let expected = "reading 100 B of the state of wte at byte 8192 of the file on the disk at";
        assert!(message.contains(expected) && message.contains("not those that were written"), "{message}");
    }

    #[test]
    fn a_truncated_file_fails_the_read() {
        let (_folder, memory) = memory(4);
        let pieces = memory.take(&[2 * PAGE], "the state of wte").expect("room");
        let mut buffer = filled(&memory, pieces.span(0..1), 3);
        pieces.write(0..1, &buffer).expect("a disk");
        memory.disk.truncate(ALIGNMENT);
        let message = pieces.read(0..1, &mut buffer).expect_err("half of it is gone").to_string();
        assert!(
            message.contains("the state of wte at byte 0 of the file") && message.contains("fill"),
            "{message}"
        );
    }
}
