//! A state on the disk, in chunks, which come to host memory one after another to be changed.
//!
//! A chunk is as many elements of every part, the last one fewer. It begins where a [piece](crate::pieces::PIECE) of the
//! parameter does, so that blocks of codes and the bits that round moments are those of a state in host memory, and so are all
//! numbers.
//!
//! Chunks are written where they were read. When a transfer fails, or whatever changes them panics, some are of the step that
//! did not end and some of the one before: then the state is torn, and nobody gets a number of it again.

mod pipeline;

use std::ops::{Add, Mul, Range};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use backend_offload::{DiskMemory, DiskPieces, OffloadError, PageBuffer};

use crate::error::HostOptimError;
use crate::layout::{Arrays, Layout, PARTS};
use crate::pieces::PIECE;

pub(crate) use pipeline::Pipeline;

/// Elements of a chunk: 6 MiB in f32.
pub(crate) const CHUNK: usize = 1 << 19;

const _: () = assert!(CHUNK.is_multiple_of(PIECE), "numbers would depend on it");

/// Chunks that are in host memory at a time.
const SLABS: usize = 3;

/// A parameter's state on the disk, as the step that changes it has it.
#[derive(Debug)]
pub(crate) struct OnDisk(Arc<Stored>);

/// The same, as those have it who read and write it beside the step.
#[derive(Debug)]
pub(crate) struct Stored {
    disk: DiskMemory,
    name: String,
    layout: Layout,
    len: usize,
    chunk: usize,
    /// All parts of one chunk after another.
    pieces: DiskPieces,
    torn: AtomicBool,
    /// Why a chunk could not be written.
    failure: OnceLock<OffloadError>,
}

/// Bytes that states on the disk take: there, and of host memory while they are stepped, one after another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskBytes {
    on_disk: u64,
    chunks: u64,
    /// Host memory for the largest chunk.
    slab: u64,
}

impl DiskBytes {
    /// Bytes of a state in chunks of so many elements.
    pub(crate) fn of(layout: Layout, len: usize, chunk: usize) -> Self {
        let of_chunk = |len: usize| DiskMemory::bytes_of(layout.bytes(len));
        let (whole, rest) = ((len / chunk) as u64, len % chunk);
        let on_disk = whole * of_chunk(chunk) + if rest > 0 { of_chunk(rest) } else { 0 };
        let slab = DiskMemory::buffer_bytes(of_chunk(len.min(chunk)) as usize) as u64;
        Self { on_disk, chunks: len.div_ceil(chunk) as u64, slab }
    }

    /// Bytes of the disk.
    pub fn on_disk(self) -> u64 {
        self.on_disk
    }

    /// Bytes of host memory for chunks on their way.
    pub fn on_host(self) -> u64 {
        self.chunks.min(SLABS as u64) * self.slab
    }
}

impl Add for DiskBytes {
    type Output = Self;

    fn add(self, others: Self) -> Self {
        Self {
            on_disk: self.on_disk.saturating_add(others.on_disk),
            chunks: self.chunks.saturating_add(others.chunks),
            slab: self.slab.max(others.slab),
        }
    }
}

impl Mul<u64> for DiskBytes {
    type Output = Self;

    fn mul(self, count: u64) -> Self {
        let [on_disk, chunks] = [self.on_disk, self.chunks].map(|of_one| of_one.saturating_mul(count));
        Self { on_disk, chunks, ..self }
    }
}

impl OnDisk {
    /// A state as `fill` makes it of zeros, chunk by chunk.
    pub(crate) fn new(
        disk: &DiskMemory,
        name: &str,
        layout: Layout,
        (len, chunk): (usize, usize),
        mut fill: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<Self, HostOptimError> {
        assert!(chunk.is_multiple_of(PIECE), "numbers would depend on the chunk");
        let lens = ranges(len, chunk).flat_map(|range| layout.bytes(range.len())).collect::<Vec<_>>();
        let pieces = disk.take(&lens, format_args!("the state of {name}"))?;
        let (disk, name, failure) = (disk.clone(), name.to_owned(), OnceLock::new());
        let stored = Stored { disk, name, layout, len, chunk, pieces, torn: AtomicBool::new(false), failure };
        let mut slab = stored.slab_of(0..PARTS)?;
        for (n, range) in stored.ranges().enumerate() {
            slab.fill(0);
            fill(range, &mut stored.arrays(n, &mut slab));
            stored.pieces.write(parts_of(n, 0..PARTS), &slab)?;
        }
        Ok(Self(Arc::new(stored)))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.pieces.bytes()
    }

    pub(crate) fn stored(&self) -> &Arc<Stored> {
        &self.0
    }

    /// Lets `change` change one chunk after another, as `pipeline` brings them. The state is torn until all are
    /// [written](Self::when_written).
    pub(crate) fn stream(
        &mut self,
        pipeline: &mut Pipeline,
        mut change: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<(), HostOptimError> {
        self.0.is_whole()?;
        // A panic leaves it so, too.
        self.0.torn.store(true, Relaxed);
        for (n, range) in self.0.ranges().enumerate() {
            let mut slab = pipeline.next_of(&self.0)?;
            change(range, &mut self.0.arrays(n, &mut slab));
            pipeline.write(&self.0, n, slab);
        }
        Ok(())
    }

    /// Runs `then` once all changed chunks are written; never if one could not be.
    pub(crate) fn when_written(&self, pipeline: &mut Pipeline, then: impl FnOnce() + Send + 'static) {
        pipeline.when_written(&self.0, then);
    }

    /// Whether what a pipeline that has ended was to write is there.
    pub(crate) fn is_written(&self) -> Result<(), HostOptimError> {
        match self.0.failure.get() {
            Some(failure) => Err(failure.clone().into()),
            None => self.0.is_whole(),
        }
    }

    /// Shows `read` these parts of one chunk after another.
    pub(crate) fn read(
        &self,
        parts: Range<usize>,
        mut read: impl FnMut(Range<usize>, &[&[u8]]),
    ) -> Result<(), HostOptimError> {
        let stored = &*self.0;
        stored.is_whole()?;
        let mut slab = stored.slab_of(parts.clone())?;
        for (n, range) in stored.ranges().enumerate() {
            let pieces = parts_of(n, parts.clone());
            stored.pieces.read(pieces.clone(), &mut slab)?;
            let shown: Vec<_> = stored.pieces.places(pieces).into_iter().map(|place| &slab[place]).collect();
            read(range, &shown);
        }
        Ok(())
    }

    pub(crate) fn is_torn(&self) -> bool {
        self.0.torn.load(Relaxed)
    }
}

impl Stored {
    fn is_whole(&self) -> Result<(), HostOptimError> {
        let is_torn = self.torn.load(Relaxed);
        if is_torn { Err(HostOptimError::Torn { name: self.name.clone() }) } else { Ok(()) }
    }

    fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        ranges(self.len, self.chunk)
    }

    /// Bytes of these parts of a chunk; the first one is as large as any.
    fn largest(&self, parts: Range<usize>) -> usize {
        let bytes = self.layout.bytes(self.len.min(self.chunk));
        DiskMemory::bytes_of(bytes[parts].iter().copied()) as usize
    }

    /// Host memory for these parts of a chunk.
    fn slab_of(&self, parts: Range<usize>) -> Result<PageBuffer, OffloadError> {
        self.disk.buffer(self.largest(parts), format_args!("chunks of the state of {}", self.name))
    }

    /// Writes a chunk that was sealed, unless one of this state could not be.
    fn write(&self, chunk: usize, slab: &PageBuffer) {
        if self.failure.get().is_none()
            && let Err(failure) = self.pieces.put(parts_of(chunk, 0..PARTS), slab)
        {
            _ = self.failure.set(failure);
        }
    }

    /// All chunks are written, or one could not be.
    fn ends_whole(&self) -> bool {
        let is_whole = self.failure.get().is_none();
        self.torn.store(!is_whole, Relaxed);
        is_whole
    }

    /// The numbers of a chunk in `slab`.
    fn arrays<'s>(&self, chunk: usize, slab: &'s mut PageBuffer) -> Arrays<'s> {
        let places = self.pieces.places(parts_of(chunk, 0..PARTS));
        let (mut rest, mut at): (&mut [u8], _) = (slab, 0);
        let parts = std::array::from_fn(|part| {
            let place = places[part].clone();
            let (part, later) = std::mem::take(&mut rest)[place.start - at..].split_at_mut(place.len());
            (rest, at) = (later, place.end);
            part
        });
        self.layout.arrays(parts)
    }
}

fn ranges(len: usize, chunk: usize) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
    (0..len.div_ceil(chunk)).map(move |n| n * chunk..len.min((n + 1) * chunk))
}

/// Numbers of these parts' pieces of a chunk.
fn parts_of(chunk: usize, parts: Range<usize>) -> Range<usize> {
    chunk * PARTS + parts.start..chunk * PARTS + parts.end
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
