//! A state on the disk, in chunks: one is read while another is changed and the one before it is written.
//!
//! A chunk is as many elements of every part, the last one fewer. It begins where a [piece](crate::pieces::PIECE) of the
//! parameter does, so that blocks of codes and the bits that round moments are those of a state in host memory, and so are all
//! numbers.
//!
//! Chunks are written where they were read. When a transfer fails, or whatever changes them panics, some are of the step that
//! did not end and some of the one before: then the state is torn, and nobody gets a number of it again.

use std::ops::Range;
use std::sync::mpsc::channel;
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

use backend_offload::{DiskMemory, DiskPieces, OffloadError, PageBuffer};

use crate::error::HostOptimError;
use crate::layout::{Arrays, Layout, PARTS};
use crate::pieces::PIECE;

/// Elements of a chunk: 6 MiB in f32.
pub(crate) const CHUNK: usize = 1 << 19;

const _: () = assert!(CHUNK.is_multiple_of(PIECE), "numbers would depend on it");

/// Chunks that are in host memory at a time.
const SLABS: usize = 3;

/// Host memory for the chunks of one parameter on their way.
#[derive(Debug, Default)]
pub(crate) struct Slabs(Vec<PageBuffer>);

/// A parameter's state on the disk.
#[derive(Debug)]
pub(crate) struct OnDisk {
    disk: DiskMemory,
    name: String,
    layout: Layout,
    len: usize,
    chunk: usize,
    /// All parts of one chunk after another.
    pieces: DiskPieces,
    torn: bool,
}

/// Bytes of the disk, and of host memory for chunks on their way, of a state in chunks of so many elements.
pub(crate) fn bytes_on_disk(layout: Layout, len: usize, chunk: usize) -> [u64; 2] {
    let of_chunk = |range: Range<usize>| DiskMemory::bytes_of(layout.bytes(range.len()));
    let count = len.div_ceil(chunk);
    let (whole, rest) = (len / chunk, len % chunk);
    let disk = whole as u64 * of_chunk(0..chunk) + if rest > 0 { of_chunk(0..rest) } else { 0 };
    let largest = of_chunk(0..len.min(chunk)) as usize;
    [disk, (count.min(SLABS) * DiskMemory::buffer_bytes(largest)) as u64]
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
        let (disk, name) = (disk.clone(), name.to_owned());
        let state = Self { disk, name, layout, len, chunk, pieces, torn: false };
        if let Some(mut slab) = state.slabs_for(0..PARTS, 1)?.0.pop() {
            for (n, range) in state.ranges().enumerate() {
                slab.fill(0);
                fill(range, &mut state.arrays(n, &mut slab));
                state.pieces.write(parts_of(n, 0..PARTS), &slab)?;
            }
        }
        Ok(state)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.bytes()
    }

    pub(crate) fn slabs(&self) -> Result<Slabs, HostOptimError> {
        self.slabs_for(0..PARTS, SLABS)
    }

    /// Host memory for these parts of as many chunks, or of all where they are fewer.
    fn slabs_for(&self, parts: Range<usize>, most: usize) -> Result<Slabs, HostOptimError> {
        // The first is as large as any.
        let (count, len) = (self.ranges().len(), self.len.min(self.chunk));
        let len = DiskMemory::bytes_of(self.layout.bytes(len)[parts].iter().copied()) as usize;
        let purpose = format_args!("chunks of the state of {}", self.name);
        let slabs = (0..count.min(most)).map(|_| self.disk.buffer(len, purpose));
        Ok(Slabs(slabs.collect::<Result<_, OffloadError>>()?))
    }

    /// Lets `change` change one chunk after another, while the next one is read and the one before is written.
    pub(crate) fn stream(
        &mut self,
        Slabs(slabs): Slabs,
        change: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<(), HostOptimError> {
        self.is_whole()?;
        // A panic leaves it so, too.
        self.torn = true;
        match <[PageBuffer; 1]>::try_from(slabs) {
            Ok([slab]) => self.change_only_chunk(slab, change)?,
            Err(slabs) => self.change_chunks(slabs, change)?,
        }
        self.torn = false;
        Ok(())
    }

    fn change_only_chunk(
        &self,
        mut slab: PageBuffer,
        mut change: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<(), OffloadError> {
        self.pieces.read(parts_of(0, 0..PARTS), &mut slab)?;
        change(0..self.len, &mut self.arrays(0, &mut slab));
        self.pieces.write(parts_of(0, 0..PARTS), &slab)
    }

    fn change_chunks(
        &self,
        slabs: Vec<PageBuffer>,
        mut change: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<(), HostOptimError> {
        let (to_read, spare) = channel();
        let (to_change, filled) = channel();
        let (to_write, changed) = channel::<(usize, PageBuffer)>();
        for slab in slabs {
            to_read.send(slab).expect("it is received below");
        }
        // Whoever fails hangs up, and so do the others then.
        let read_all = || -> Result<(), OffloadError> {
            for n in 0..self.ranges().len() {
                let Ok(mut slab) = spare.recv() else { break };
                self.pieces.read(parts_of(n, 0..PARTS), &mut slab)?;
                if to_change.send(slab).is_err() {
                    break;
                }
            }
            drop((spare, to_change));
            Ok(())
        };
        let write_all = || -> Result<(), OffloadError> {
            for (n, slab) in changed {
                self.pieces.write(parts_of(n, 0..PARTS), &slab)?;
                // Nobody reads any more behind the last chunks.
                _ = to_read.send(slab);
            }
            drop(to_read);
            Ok(())
        };
        scope(|scope| {
            let reader = beside(scope, read_all)?;
            let writer = beside(scope, write_all)?;
            for (n, range) in self.ranges().enumerate() {
                let Ok(mut slab) = filled.recv() else { break };
                change(range, &mut self.arrays(n, &mut slab));
                if to_write.send((n, slab)).is_err() {
                    break;
                }
            }
            drop((filled, to_write));
            let [read, written] = [reader, writer].map(|thread| thread.join().expect("it does not panic"));
            Ok(read.and(written)?)
        })
    }

    /// Shows `read` these parts of one chunk after another.
    pub(crate) fn read(
        &self,
        parts: Range<usize>,
        mut read: impl FnMut(Range<usize>, &[&[u8]]),
    ) -> Result<(), HostOptimError> {
        self.is_whole()?;
        let Some(mut slab) = self.slabs_for(parts.clone(), 1)?.0.pop() else { return Ok(()) };
        for (n, range) in self.ranges().enumerate() {
            let pieces = parts_of(n, parts.clone());
            self.pieces.read(pieces.clone(), &mut slab)?;
            let shown: Vec<_> = self.pieces.places(pieces).into_iter().map(|place| &slab[place]).collect();
            read(range, &shown);
        }
        Ok(())
    }

    pub(crate) fn is_torn(&self) -> bool {
        self.torn
    }

    fn is_whole(&self) -> Result<(), HostOptimError> {
        if self.torn { Err(HostOptimError::Torn { name: self.name.clone() }) } else { Ok(()) }
    }

    fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        ranges(self.len, self.chunk)
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

fn beside<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    work: impl FnOnce() -> T + Send + 's,
) -> Result<ScopedJoinHandle<'s, T>, HostOptimError> {
    let thread = Builder::new().name("state on disk".to_owned()).spawn_scoped(scope, work);
    thread.map_err(|error| HostOptimError::Updates { reason: format!("no thread for them: {error}") })
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
