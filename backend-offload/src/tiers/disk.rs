//! The disk below host memory: one file without a name, all of whose space is taken before the first block sinks.
//!
//! Nothing is left of it when the process ends, however it ends. Reads and writes go around the system's cache where the
//! file system allows it: what is cached there would take the memory that the host budget leaves to others.

use super::alternation::by_turns;
use super::bounce::{Bounce, Means, PIECE};
use super::checksum::Checksum;
use super::extents::{ALIGNMENT, Extents};
use super::system;
use super::transfer::{Direction, Transfer};
use crate::error::OffloadError;
use crate::journal::TARGET;
use pager::Limit;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Panic message where a buffer is neither spare nor in use.
const ALL_UNDER_WAY: &str = "every other buffer is under way";

/// The file and who has which part of it. One for all devices of a process.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: PathBuf,
    file: File,
    len: u64,
    books: Mutex<Books>,
    bounce: Mutex<Bounce>,
    /// Number of reads and writes that fail from now on.
    #[cfg(test)]
    pub(crate) broken: std::sync::atomic::AtomicU8,
}

#[derive(Debug)]
struct Books {
    extents: Extents,
    peak: u64,
}

/// A block's contents on the disk; its part of the file is free when this is dropped.
#[derive(Debug)]
pub(super) struct Sunk {
    disk: Arc<Disk>,
    parts: Vec<Range<u64>>,
    len: usize,
    checksum: u64,
}

/// Bytes on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    pub in_use: u64,
    pub peak: u64,
    pub len: u64,
}

/// Bytes per second that blocks sink at to a folder's disk, and are raised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskSpeed {
    /// Bytes per second to the disk.
    pub write: f64,
    /// Bytes per second from the disk.
    pub read: f64,
}

/// Measures the disk that `folder` is on with `bytes` of its space, for as long as writing and reading them takes.
///
/// # Errors
/// If a disk below host memory could not be there: see [`OffloadConfig::disk`](crate::OffloadConfig::disk).
pub fn disk_speed(folder: &Path, bytes: usize) -> Result<DiskSpeed, OffloadError> {
    let disk = Disk::open(folder, (bytes as u64).next_multiple_of(ALIGNMENT))?;
    let mut block: Vec<u8> = (0..bytes).map(|n| (n >> 3) as u8).collect();
    let begun = Instant::now();
    let sunk = disk.write(&block)?;
    let written = begun.elapsed().as_secs_f64();
    sunk.read(&mut block)?;
    let read = begun.elapsed().as_secs_f64() - written;
    Ok(DiskSpeed { write: bytes as f64 / written, read: bytes as f64 / read })
}

/// Bytes that are free on the disk of `folder`.
pub(crate) fn free_on(folder: &Path) -> Option<u64> {
    system::free_on(folder)
}

impl Disk {
    /// Takes `len` bytes of the disk that `folder` is on.
    pub(crate) fn open(folder: &Path, len: u64) -> Result<Arc<Self>, OffloadError> {
        Self::open_by(folder, len, Means::RingIfAny)
    }

    fn open_by(folder: &Path, len: u64, means: Means) -> Result<Arc<Self>, OffloadError> {
        let failed = |attempted: &'static str| {
            move |error: io::Error| OffloadError::Disk {
                attempted: attempted.to_owned(),
                folder: folder.display().to_string(),
                reason: error.to_string(),
            }
        };
        let file = system::open(folder).map_err(failed("making a file without a name"))?;
        let len = len / ALIGNMENT * ALIGNMENT;
        if len == 0 {
            return Err(failed("taking space")(io::Error::other("the disk budget is below one page")));
        }
        system::reserve(&file, len).map_err(|error| OffloadError::Disk {
            attempted: format!("taking {}", crate::Bytes(len)),
            folder: folder.display().to_string(),
            reason: error.to_string(),
        })?;
        if let Some(kind) = system::no_disk(&file) {
            tracing::warn!(target: TARGET, "{} is on {kind}: it is no disk below host memory", folder.display());
        }
        Ok(Arc::new(Self {
            folder: folder.to_owned(),
            file,
            len,
            #[cfg(test)]
            broken: 0.into(),
            books: Mutex::new(Books { extents: Extents::new(len), peak: 0 }),
            bounce: Mutex::new(Bounce::new(means)),
        }))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn room(&self) -> Limit {
        Limit::bytes(self.books().extents.left())
    }

    pub(crate) fn usage(&self) -> DiskUsage {
        let books = self.books();
        DiskUsage { in_use: self.len - books.extents.left(), peak: books.peak, len: self.len }
    }

    /// Writes `bytes` somewhere.
    pub(super) fn write(self: &Arc<Self>, bytes: &[u8]) -> Result<Sunk, OffloadError> {
        let taken = {
            let mut books = self.books();
            let taken = books.extents.take(bytes.len() as u64);
            books.peak = books.peak.max(self.len - books.extents.left());
            taken
        };
        let parts =
            taken.ok_or_else(|| self.failed("finding room for", bytes.len(), "all of it is in use"))?;
        let mut sunk = Sunk { disk: self.clone(), parts, len: bytes.len(), checksum: 0 };
        let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        let transfer = self.transfer(Direction::Write);
        let written = by_turns(&mut bounce, &transfer, |turns| {
            let (mut rest, mut last) = (bytes, bytes);
            let mut checksum = Checksum::default();
            for (place, len) in sunk.pieces() {
                let (now, later) = rest.split_at(len.min(rest.len()));
                let buffer = match turns.spare() {
                    Some(buffer) => buffer,
                    None => turns.landed()?.expect(ALL_UNDER_WAY).0,
                };
                buffer[..now.len()].copy_from_slice(now);
                buffer[now.len()..len].fill(0);
                if later.is_empty() && now.len() == bytes.len() {
                    turns.run(buffer, len, place);
                } else {
                    turns.start(buffer, len, place)?;
                }
                if !later.is_empty() {
                    checksum.add(now);
                }
                (rest, last) = (later, now);
            }
            while turns.landed()?.is_some() {}
            Ok(checksum.of_last(last))
        });
        sunk.checksum = written.map_err(|error| self.failed("writing", bytes.len(), &error.to_string()))?;
        Ok(sunk)
    }

    fn transfer(&self, direction: Direction) -> Transfer<'_> {
        Transfer {
            file: &self.file,
            direction,
            #[cfg(test)]
            broken: &self.broken,
        }
    }

    /// Does it as if nothing were broken on purpose.
    #[cfg(test)]
    pub(super) fn while_whole<T>(&self, work: impl FnOnce() -> T) -> T {
        use std::sync::atomic::Ordering::Relaxed;
        let broken = self.broken.swap(0, Relaxed);
        let done = work();
        self.broken.store(broken, Relaxed);
        done
    }

    fn failed(&self, attempted: &str, len: usize, reason: &str) -> OffloadError {
        OffloadError::Disk {
            attempted: format!("{attempted} a block of {}", crate::Bytes(len as u64)),
            folder: self.folder.display().to_string(),
            reason: reason.to_owned(),
        }
    }
}

impl Sunk {
    /// Reads the contents back, and compares them with their checksum.
    pub(super) fn read(&self, into: &mut [u8]) -> Result<(), OffloadError> {
        let disk = &self.disk;
        let mut bounce = disk.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        let transfer = disk.transfer(Direction::Read);
        let found = by_turns(&mut bounce, &transfer, |turns| {
            let mut landing = Landing { into, at: 0, checksum: Checksum::default() };
            for (place, len) in self.pieces() {
                let buffer = if let Some(buffer) = turns.spare() {
                    buffer
                } else {
                    let (buffer, len) = turns.landed()?.expect(ALL_UNDER_WAY);
                    landing.take(&buffer[..len]);
                    buffer
                };
                if len >= self.len {
                    turns.run(buffer, len, place);
                } else {
                    turns.start(buffer, len, place)?;
                }
            }
            while let Some((piece, len)) = turns.landed()? {
                landing.take(&piece[..len]);
            }
            Ok(landing.checksum.of_last(&landing.into[landing.at..]))
        });
        let found = found.map_err(|error| disk.failed("reading", self.len, &error.to_string()))?;
        if found != self.checksum {
            return Err(disk.failed("reading", self.len, "its bytes are not those that were written"));
        }
        Ok(())
    }

    /// Places in the file and lengths, in order.
    fn pieces(&self) -> impl Iterator<Item = (u64, usize)> {
        let pieces = |part: &Range<u64>| {
            let end = part.end;
            part.clone().step_by(PIECE).map(move |begin| (begin, (end - begin).min(PIECE as u64) as usize))
        };
        self.parts.iter().flat_map(pieces)
    }

    /// Bytes of the contents.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// Contents on their way back, piece by piece.
struct Landing<'a> {
    into: &'a mut [u8],
    /// Where the next piece begins; the last one in the end.
    at: usize,
    checksum: Checksum,
}

impl Landing<'_> {
    fn take(&mut self, piece: &[u8]) {
        let end = self.into.len().min(self.at + piece.len());
        let now = &mut self.into[self.at..end];
        now.copy_from_slice(&piece[..now.len()]);
        if end < self.into.len() {
            self.checksum.add(&self.into[self.at..end]);
            self.at = end;
        }
    }
}

impl Drop for Sunk {
    fn drop(&mut self) {
        self.disk.books().extents.give_back(&self.parts);
    }
}

/// A disk of so many pages in memory, if there can be one: tests of what becomes of blocks wait for no drive.
#[cfg(test)]
pub(crate) fn in_memory(pages: u64) -> Option<Arc<Disk>> {
    let folder = Path::new("/dev/shm");
    let folder = if folder.is_dir() { folder.to_owned() } else { std::env::temp_dir() };
    (pages > 0).then(|| Disk::open(&folder, pages * ALIGNMENT).expect("there is room"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::super::bounce::Page;
    use super::*;

    fn disk(len: u64) -> (tempfile::TempDir, Arc<Disk>) {
        disk_by(Means::RingIfAny, len)
    }

    fn disk_by(means: Means, len: u64) -> (tempfile::TempDir, Arc<Disk>) {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Disk::open_by(folder.path(), len, means).expect("there is room");
        (folder, disk)
    }

    /// Runs a test by threads and, if the kernel has one, by a ring.
    fn by_each_means(len: u64, test: impl Fn(&Path, &Arc<Disk>)) {
        for means in [Means::Threads, Means::RingIfAny] {
            let (folder, disk) = disk_by(means, len);
            test(folder.path(), &disk);
        }
    }

    fn contents(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 31 + n / 251 + seed) as u8).collect()
    }

    #[test]
    fn what_is_written_is_read_back_whatever_its_size() {
        by_each_means(128 << 20, sinks_and_raises_any_size);
    }

    fn sinks_and_raises_any_size(folder: &Path, disk: &Arc<Disk>) {
        let sizes =
            [1, 4095, 4096, 4097, PIECE, PIECE + 1, 2 * PIECE + 4096 * 3 + 5, 5 * PIECE, 6 * PIECE + 77];
        let sunk: Vec<_> = sizes.map(|len| disk.write(&contents(len, len)).expect("room")).into();
        for (len, sunk) in sizes.into_iter().zip(&sunk) {
            let mut read = vec![0; len];
            sunk.read(&mut read).expect("as it was written");
            assert_eq!(read, contents(len, len));
        }
        let names = std::fs::read_dir(folder).expect("a folder").count();
        assert_eq!(names, 0, "the file has no name");
        let used: u64 = sizes.into_iter().map(|len| (len as u64).next_multiple_of(ALIGNMENT)).sum();
        assert_eq!((disk.usage().in_use, disk.usage().peak), (used, used));
        drop(sunk);
        assert_eq!(disk.room(), Limit::bytes(128 << 20));
    }

    #[test]
    fn a_block_in_several_parts_is_read_in_their_order() {
        let (_folder, disk) = disk(8 * ALIGNMENT);
        let mut pages: Vec<_> = (0..8).map(|n| Some(disk.write(&contents(4096, n)).expect("room"))).collect();
        for n in [6, 1, 4] {
            pages[n] = None;
        }
        let sunk = disk.write(&contents(3 * 4096 - 9, 99)).expect("three pages are free");
        assert_eq!(sunk.parts.len(), 3);
        let mut read = vec![0; 3 * 4096 - 9];
        sunk.read(&mut read).expect("as it was written");
        assert_eq!(read, contents(3 * 4096 - 9, 99));
        let told = disk.write(&[1]).expect_err("no page is free").to_string();
        assert!(told.contains("a block of 1 B") && told.contains("in use"), "{told}");
    }

    /// The disk transfers some pieces while others are copied, so that one that fails is not the last one started.
    #[test]
    fn a_piece_that_fails_fails_its_block_and_takes_no_room() {
        by_each_means(64 << 20, |_, disk| a_failed_piece_fails_its_block(disk));
    }

    fn a_failed_piece_fails_its_block(disk: &Arc<Disk>) {
        let fails = |times: u8| disk.broken.store(times, std::sync::atomic::Ordering::Relaxed);
        let block = contents(6 * PIECE + 77, 5);
        fails(1);
        let told = disk.write(&block).expect_err("its first piece fails").to_string();
        assert!(told.contains("broken on purpose"), "{told}");
        assert_eq!(disk.usage().in_use, 0);
        fails(0);
        let sunk = disk.write(&block).expect("room");
        let mut read = vec![0; block.len()];
        fails(1);
        assert!(sunk.read(&mut read).is_err());
        fails(0);
        sunk.read(&mut read).expect("as it was written");
        assert!(read == block);
    }

    /// The kernel may take entries at first and refuse them later, while it still has pieces to move.
    #[test]
    fn a_ring_that_takes_no_more_leaves_the_rest_to_threads() {
        let (_folder, disk) = disk(64 << 20);
        let block = contents(6 * PIECE + 77, 5);
        let sunk = disk.write(&block).expect("room");
        let refuse = |after| {
            let mut bounce = disk.bounce.lock().expect("nobody panicked");
            bounce.ring().is_some_and(|ring| {
                ring.takes = after;
                ring.is_of_use()
            })
        };
        let had_ring = refuse(Some(2));
        let mut read = vec![0; block.len()];
        sunk.read(&mut read).expect("as it was written");
        assert!(read == block);
        assert!(!refuse(None), "it was refused once");
        let again = disk.write(&block).expect("room");
        again.read(&mut read).expect("as it was written");
        assert!(read == block);
        if !had_ring {
            eprintln!("this kernel has no ring: nothing was tested but threads");
        }
    }

    #[test]
    fn a_byte_that_changed_on_the_disk_is_no_contents() {
        let (_folder, disk) = disk(1 << 20);
        let sunk = disk.write(&contents(10_000, 3)).expect("room");
        let place = sunk.parts[0].start + 4096;
        let mut page = Page([0; ALIGNMENT as usize]);
        system::read(&disk.file, &mut page.0, place).expect("a page");
        page.0[7] ^= 1;
        system::write(&disk.file, &page.0, place).expect("a page");
        let told = sunk.read(&mut vec![0; 10_000]).expect_err("changed").to_string();
        assert!(told.contains("9.77 KiB") && told.contains("not those that were written"), "{told}");
    }

    #[test]
    fn a_disk_that_cannot_be_had_is_refused_when_it_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let absent = Disk::open(&folder.path().join("nowhere"), 1 << 20).expect_err("no such folder");
        assert!(absent.to_string().contains("nowhere"), "{absent}");
        let endless = Disk::open(folder.path(), 8 << 40).expect_err("no disk here is so large");
        assert!(endless.to_string().contains("taking 8.00 TiB"), "{endless}");
        assert!(Disk::open(folder.path(), 4095).is_err());
    }
}
