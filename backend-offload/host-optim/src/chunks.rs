//! A state on disk, in chunks. A step changes one after another and writes it back in place.
//!
//! Each chunk begins at a [piece](crate::pieces::PIECE)
//! (`a_state_on_the_disk_has_the_bits_of_one_in_memory_whatever_chunk_and_threads`). At most three chunks are in host
//! memory (`three_chunks_are_in_host_memory_at_a_time_and_no_more`).
//!
//! A failed transfer or a panic mixes two steps. Every later access of the torn state fails.

mod pipeline;

use std::ops::{Add, Mul, Range};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use backend_offload::{DiskMemory, DiskPieces, OffloadError, PageBuffer};

use crate::error::HostOptimError;
use crate::format::Format;
use crate::layout::{Arrays, Layout, Moments, PARTS};
use crate::pieces::PIECE;

pub(crate) use pipeline::Pipeline;

/// 6 MiB in f32.
pub(crate) const CHUNK: usize = 1 << 19;

const _: () = assert!(CHUNK.is_multiple_of(PIECE), "numbers would depend on it");

const SLABS: usize = 3;

#[derive(Debug)]
pub(crate) struct OnDisk(Arc<ChunkStore>);

/// Shared by the reading and writing threads.
#[derive(Debug)]
pub(crate) struct ChunkStore {
    disk: DiskMemory,
    name: String,
    layout: Layout,
    len: usize,
    chunk: usize,
    /// All parts of one chunk, then those of the next.
    pieces: DiskPieces,
    torn: AtomicBool,
    failure: OnceLock<OffloadError>,
}

/// Bytes of states that step one after another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskBytes {
    on_disk: u64,
    chunks: u64,
    slab: u64,
}

impl Format {
    /// Bytes on disk for `len` elements; `narrow` for bf16 weights.
    pub fn disk_bytes(self, len: u64, moments: Moments, narrow: bool) -> DiskBytes {
        DiskBytes::new(Layout::new(self, moments, narrow), len as usize, CHUNK)
    }
}

impl DiskBytes {
    pub(crate) fn new(layout: Layout, len: usize, chunk: usize) -> Self {
        let chunk_bytes = |len: usize| DiskMemory::bytes_of(layout.bytes(len));
        let (whole, rest) = ((len / chunk) as u64, len % chunk);
        let on_disk = whole * chunk_bytes(chunk) + if rest > 0 { chunk_bytes(rest) } else { 0 };
        let slab = DiskMemory::buffer_bytes(chunk_bytes(len.min(chunk)) as usize) as u64;
        Self { on_disk, chunks: len.div_ceil(chunk) as u64, slab }
    }

    /// Bytes on disk.
    pub fn on_disk(self) -> u64 {
        self.on_disk
    }

    /// Bytes of host memory for chunks.
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
        let [on_disk, chunks] = [self.on_disk, self.chunks].map(|one| one.saturating_mul(count));
        Self { on_disk, chunks, ..self }
    }
}

impl OnDisk {
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
        let chunk_store =
            ChunkStore { disk, name, layout, len, chunk, pieces, torn: AtomicBool::new(false), failure };

        let mut slab = chunk_store.take_slab(0..PARTS)?;
        for (n, range) in chunk_store.ranges().enumerate() {
            slab.fill(0);
            fill(range, &mut chunk_store.arrays(n, &mut slab));
            chunk_store.pieces.write(parts_of(n, 0..PARTS), &slab)?;
        }
        Ok(Self(Arc::new(chunk_store)))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.pieces.bytes()
    }

    pub(crate) fn chunk_store(&self) -> &Arc<ChunkStore> {
        &self.0
    }

    /// Calls `change` for each chunk in order. The state is torn until all are [written](Self::when_written).
    pub(crate) fn stream(
        &mut self,
        pipeline: &mut Pipeline,
        mut change: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<(), HostOptimError> {
        self.0.check_not_torn()?;
        // Set first: a panic leaves the state torn.
        self.0.torn.store(true, Relaxed);
        for (n, range) in self.0.ranges().enumerate() {
            let mut slab = pipeline.next_chunk(&self.0)?;
            change(range, &mut self.0.arrays(n, &mut slab));
            pipeline.write(&self.0, n, slab);
        }
        Ok(())
    }

    pub(crate) fn when_written(&self, pipeline: &mut Pipeline, then: impl FnOnce() + Send + 'static) {
        pipeline.when_written(&self.0, then);
    }

    /// Valid once the pipeline has ended.
    pub(crate) fn check_written(&self) -> Result<(), HostOptimError> {
        match self.0.failure.get() {
            Some(failure) => Err(failure.clone().into()),
            None => self.0.check_not_torn(),
        }
    }

    pub(crate) fn read(
        &self,
        parts: Range<usize>,
        mut read: impl FnMut(Range<usize>, &[&[u8]]),
    ) -> Result<(), HostOptimError> {
        let chunk_store = &*self.0;
        chunk_store.check_not_torn()?;
        let mut slab = chunk_store.take_slab(parts.clone())?;
        for (n, range) in chunk_store.ranges().enumerate() {
            let pieces = parts_of(n, parts.clone());
            chunk_store.pieces.read(pieces.clone(), &mut slab)?;
            let shown: Vec<_> =
                chunk_store.pieces.places(pieces).into_iter().map(|place| &slab[place]).collect();
            read(range, &shown);
        }
        Ok(())
    }

    pub(crate) fn is_torn(&self) -> bool {
        self.0.torn.load(Relaxed)
    }
}

impl ChunkStore {
    fn check_not_torn(&self) -> Result<(), HostOptimError> {
        let is_torn = self.torn.load(Relaxed);
        if is_torn { Err(HostOptimError::Torn { name: self.name.clone() }) } else { Ok(()) }
    }

    fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        ranges(self.len, self.chunk)
    }

    fn largest(&self, parts: Range<usize>) -> usize {
        let bytes = self.layout.bytes(self.len.min(self.chunk));
        DiskMemory::bytes_of(bytes[parts].iter().copied()) as usize
    }

    fn take_slab(&self, parts: Range<usize>) -> Result<PageBuffer, OffloadError> {
        self.disk.buffer(self.largest(parts), format_args!("chunks of the state of {}", self.name))
    }

    /// Does nothing after a failed write of this state.
    fn write(&self, chunk: usize, slab: &PageBuffer) {
        if self.failure.get().is_none()
            && let Err(failure) = self.pieces.put(parts_of(chunk, 0..PARTS), slab)
        {
            _ = self.failure.set(failure);
        }
    }

    fn finish_writes(&self) -> bool {
        let is_whole = self.failure.get().is_none();
        self.torn.store(!is_whole, Relaxed);
        is_whole
    }

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

fn parts_of(chunk: usize, parts: Range<usize>) -> Range<usize> {
    chunk * PARTS + parts.start..chunk * PARTS + parts.end
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
