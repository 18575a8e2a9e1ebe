//! The disk below host memory: one nameless file, allocated before the first spill.
//!
//! A full disk is refused at the start
//! (`a_full_disk_is_refused_at_the_start_and_one_that_fills_up_later_does_no_harm`). Folders in memory or on another
//! machine draw a warning (`a_folder_in_memory_is_accepted_with_a_warning`).
//!
//! The file vanishes with the process (`a_killed_run_leaves_nothing_on_the_disk`). A needed name is removed at once
//! (`a_file_system_without_nameless_files_gets_files_whose_names_vanish_at_once`).
//!
//! Transfers bypass the system's cache where possible: it takes memory that the host budget leaves to others.

mod reading;

pub(super) use self::reading::Landing;
use super::bounce::{BACKGROUND_BUFFERS, Bounce, Means, PIECE, Part};
use super::checksum::Checksum;
use super::extents::{ALIGNMENT, Extents};
use super::system;
use super::transfer::Direction;
use crate::error::OffloadError;
use crate::journal::TARGET;
use pager::Limit;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Disk {
    folder: PathBuf,
    file: Arc<File>,
    len: u64,
    /// Lock order: before the books.
    bounce: Mutex<Bounce>,
    books: Mutex<Books>,
    spilled: AtomicU64,
    devices: AtomicUsize,
    #[cfg(test)]
    pub(crate) broken: Arc<std::sync::atomic::AtomicU8>,
}

#[derive(Debug)]
pub(super) struct Joined(Arc<Disk>);

#[derive(Debug)]
struct Books {
    extents: Extents,
    peak: u64,
}

/// A block's contents, on disk or in buffers. A drop frees the space.
#[derive(Debug)]
pub(super) struct Spilled {
    disk: Arc<Disk>,
    number: u64,
    parts: Vec<Range<u64>>,
    len: usize,
    checksum: u64,
}

#[derive(Debug)]
pub(super) struct Writing {
    spilled: Spilled,
    begun: usize,
    /// Bounds of the last piece begun.
    last: usize,
    end: usize,
    checksum: Checksum,
}

#[derive(Debug)]
pub(super) enum BackgroundWrite {
    UnderWay(Writing),
    Done(Spilled),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    pub in_use: u64,
    pub peak: u64,
    pub len: u64,
}

/// Speed of a folder's disk, for spills and loads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskSpeed {
    /// Bytes per second to the disk.
    pub write: f64,
    /// Bytes per second from the disk.
    pub read: f64,
}

/// Measures the disk of `folder` by writing and reading `bytes` bytes.
///
/// # Errors
/// If the folder is unsuitable; see [`OffloadConfig::disk`](crate::OffloadConfig::disk).
pub fn disk_speed(folder: &Path, bytes: usize) -> Result<DiskSpeed, OffloadError> {
    let disk = Disk::open(folder, (bytes as u64).next_multiple_of(ALIGNMENT))?;
    let mut block: Vec<u8> = (0..bytes).map(|n| (n >> 3) as u8).collect();
    let begun = Instant::now();
    let spilled = disk.write(&block)?;
    disk.wait_for_writes()?;
    let written = begun.elapsed().as_secs_f64();
    spilled.read(&mut block)?;
    let read = begun.elapsed().as_secs_f64() - written;
    Ok(DiskSpeed { write: bytes as f64 / written, read: bytes as f64 / read })
}

pub(crate) fn free_on(folder: &Path) -> Option<u64> {
    system::free_on(folder)
}

impl Disk {
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

        Ok(Self::over(file, folder, len, means))
    }

    fn over(file: File, folder: &Path, len: u64, means: Means) -> Arc<Self> {
        let file = Arc::new(file);
        let bounce = Bounce::new(file.clone(), len, means);
        Arc::new(Self {
            folder: folder.to_owned(),
            file,
            len,
            #[cfg(test)]
            broken: bounce.broken.clone(),
            bounce: Mutex::new(bounce),
            books: Mutex::new(Books { extents: Extents::new(len), peak: 0 }),
            spilled: AtomicU64::new(0),
            devices: AtomicUsize::new(0),
        })
    }

    pub(super) fn join(self: Arc<Self>) -> Joined {
        self.devices.fetch_add(1, Ordering::Relaxed);
        Joined(self)
    }

    pub(super) fn has_one_device(&self) -> bool {
        self.devices.load(Ordering::Relaxed) == 1
    }

    fn bounce(&self) -> MutexGuard<'_, Bounce> {
        self.bounce.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(crate) fn take(&self, len: u64) -> Option<Vec<Range<u64>>> {
        let mut books = self.books();
        let taken = books.extents.take(len);
        books.peak = books.peak.max(self.len - books.extents.left());
        taken
    }

    pub(crate) fn give_back(&self, parts: &[Range<u64>]) {
        self.books().extents.give_back(parts);
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits. `into` is page-aligned.
    pub(crate) fn read_pages(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        system::read(&self.file, into, place)
    }

    pub(crate) fn write_pages(&self, place: u64, from: &[u8]) -> io::Result<()> {
        system::write(&self.file, from, place)
    }

    /// The last pieces may still be in flight.
    pub(super) fn write(self: &Arc<Self>, bytes: &[u8]) -> Result<Spilled, OffloadError> {
        let repeated = self.bounce().repeat_failed();
        repeated.map_err(|failure| self.failed_to_write(failure))?;
        let number = self.spilled.fetch_add(1, Ordering::Relaxed);
        let parts = self.take(bytes.len() as u64).ok_or_else(|| {
            self.failed("finding room for", (number, bytes.len()), None, "all of it is in use")
        })?;
        self.writing(number, parts, bytes.len()).finish(bytes)
    }

    /// `None` without room in the file.
    pub(super) fn begin_in_background(self: &Arc<Self>, len: usize) -> Option<Writing> {
        let parts = self.take(len as u64)?;
        let number = self.spilled.fetch_add(1, Ordering::Relaxed);
        Some(self.writing(number, parts, len))
    }

    fn writing(self: &Arc<Self>, number: u64, parts: Vec<Range<u64>>, len: usize) -> Writing {
        let spilled = Spilled { disk: self.clone(), number, parts, len, checksum: 0 };
        Writing { spilled, begun: 0, last: 0, end: 0, checksum: Checksum::default() }
    }

    fn wait_for_writes(&self) -> Result<(), OffloadError> {
        self.bounce().wait_for_all_writes().map_err(|failure| self.failed_to_write(failure))
    }

    /// As far as buffers are free. Cancels other reads ahead, except `loading`.
    pub(super) fn read_ahead(&self, soon: &[&Spilled], loading: Option<&Spilled>) {
        let Ok(mut bounce) = self.bounce.try_lock() else { return };
        bounce
            .keep_ahead(|number| soon.iter().copied().chain(loading).any(|spilled| spilled.number == number));
        for part in soon.iter().flat_map(|spilled| spilled.pieces()) {
            if !bounce.read_ahead(part) {
                return;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn ahead(&self) -> usize {
        self.bounce().reads()
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn break_every(&self, fault: (crate::faults::DiskFault, u64)) {
        self.bounce().breaks_every = Some(fault);
    }

    #[cfg(test)]
    pub(crate) fn truncate(&self, len: u64) {
        self.file.set_len(len).expect("it is this program's file");
    }

    #[cfg(test)]
    pub(super) fn while_whole<T>(&self, work: impl FnOnce() -> T) -> T {
        let broken = self.broken.swap(0, Ordering::Relaxed);
        let done = work();
        self.broken.store(broken, Ordering::Relaxed);
        done
    }

    fn failed_to_write(&self, (part, error): (Part, io::Error)) -> OffloadError {
        self.failed("writing", (part.owner, part.block), Some(part.place), &error.to_string())
    }

    fn failed(
        &self,
        attempted: &str,
        (number, len): (u64, usize),
        place: Option<u64>,
        reason: &str,
    ) -> OffloadError {
        let place = place.map(|place| format!(" at byte {place} of the file")).unwrap_or_default();
        OffloadError::Disk {
            attempted: format!("{attempted} block {number} ({}){place}", crate::Bytes(len as u64)),
            folder: self.folder.display().to_string(),
            reason: reason.to_owned(),
        }
    }
}

impl Writing {
    /// True once all pieces have begun.
    fn write_pieces(
        &mut self,
        bounce: &mut Bounce,
        bytes: &[u8],
        pieces: usize,
        spare: impl Fn(&mut Bounce, u64) -> Option<usize>,
    ) -> bool {
        for part in self.spilled.pieces().skip(self.begun).take(pieces) {
            let Some(slot) = spare(bounce, self.spilled.number) else { return false };
            self.checksum.add(&bytes[self.last..self.end]);
            (self.last, self.end) = (self.end, bytes.len().min(self.end + part.len));
            bounce.fill(slot, &bytes[self.last..self.end], part.len);
            bounce.begin(slot, part, Direction::Write, true);
            self.begun += 1;
        }
        self.end == bytes.len()
    }

    /// `bytes` is the whole block, unchanged since the write began.
    pub(super) fn finish(mut self, bytes: &[u8]) -> Result<Spilled, OffloadError> {
        let disk = self.spilled.disk.clone();
        // Released before the block, whose drop locks the buffers.
        let mut bounce = disk.bounce();
        // If every piece failed, no buffer is left.
        self.write_pieces(&mut bounce, bytes, usize::MAX, Bounce::spare);
        let left = bounce.leave_behind(self.spilled.number);
        drop(bounce);
        left.map_err(|error| self.spilled.failed("writing", &error.to_string()))?;
        Ok(self.sealed(bytes))
    }

    /// Copies no more than free background buffers hold.
    pub(super) fn continue_in_background(mut self, bytes: &[u8]) -> Result<BackgroundWrite, OffloadError> {
        let disk = self.spilled.disk.clone();
        let Ok(mut bounce) = disk.bounce.try_lock() else { return Ok(BackgroundWrite::UnderWay(self)) };
        bounce.reap();
        let error = bounce.error_of(self.spilled.number);
        // Failed writes come first: the next spill waits for them.
        let all = !bounce.has_failed()
            && self.write_pieces(&mut bounce, bytes, BACKGROUND_BUFFERS, |bounce, _| {
                bounce.spare_in_background()
            });
        drop(bounce);
        if let Some(error) = error {
            return Err(self.spilled.failed("writing", &error.to_string()));
        }
        Ok(if all { BackgroundWrite::Done(self.sealed(bytes)) } else { BackgroundWrite::UnderWay(self) })
    }

    fn sealed(self, bytes: &[u8]) -> Spilled {
        let mut spilled = self.spilled;
        spilled.checksum = self.checksum.of_last(&bytes[self.last..self.end]);
        spilled
    }
}

impl Spilled {
    fn failed(&self, attempted: &str, reason: &str) -> OffloadError {
        let place = self.parts.first().map(|part| part.start);
        self.disk.failed(attempted, (self.number, self.len), place, reason)
    }

    fn pieces(&self) -> impl Iterator<Item = Part> {
        let (owner, block) = (self.number, self.len);
        self.parts.iter().flat_map(move |part| {
            let end = part.end;
            part.clone().step_by(PIECE).map(move |place| {
                let len = (end - place).min(PIECE as u64) as usize;
                Part { owner, place, len, block }
            })
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Deref for Joined {
    type Target = Arc<Disk>;

    fn deref(&self) -> &Arc<Disk> {
        &self.0
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.devices.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        // No late write may reach another block.
        let mut bounce = self.disk.bounce();
        bounce.forget(self.number, None);
        if !bounce.is_lost(self.number) {
            self.disk.give_back(&self.parts);
        }
    }
}

#[cfg(test)]
pub(crate) fn in_memory(pages: u64) -> Option<Arc<Disk>> {
    in_memory_by(Means::RingIfAny, pages)
}

/// Transfers end in an order set by `seed`.
#[cfg(test)]
pub(crate) fn scheduled(pages: u64, seed: u64) -> Option<Arc<Disk>> {
    in_memory_by(Means::Schedule(seed), pages)
}

#[cfg(test)]
fn in_memory_by(means: Means, pages: u64) -> Option<Arc<Disk>> {
    let folder = Path::new("/dev/shm");
    let folder = if folder.is_dir() { folder.to_owned() } else { std::env::temp_dir() };
    (pages > 0).then(|| Disk::open_by(&folder, pages * ALIGNMENT, means).expect("there is room"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
