//! Where a state is: in host memory, or on the disk below it.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use backend_offload::{DiskMemory, HostBuffer, HostMemory, OffloadError};

use crate::chunks::{CHUNK, OnDisk, Pipeline, Stored};
use crate::error::HostOptimError;
use crate::layout::{Arrays, Layout, PARTS, PURPOSES};

/// Memory that a state is made in. Its gradients wait in host memory, whichever it is.
#[derive(Debug, Clone)]
pub struct StateMemory {
    pub(crate) host: HostMemory,
    pub(crate) disk: Option<DiskMemory>,
    /// Elements of a chunk on the disk.
    pub(crate) chunk: usize,
}

impl From<&HostMemory> for StateMemory {
    fn from(host: &HostMemory) -> Self {
        Self { host: host.clone(), disk: None, chunk: CHUNK }
    }
}

impl From<&DiskMemory> for StateMemory {
    fn from(disk: &DiskMemory) -> Self {
        Self { host: disk.host().clone(), disk: Some(disk.clone()), chunk: CHUNK }
    }
}

impl From<HostMemory> for StateMemory {
    fn from(host: HostMemory) -> Self {
        Self::from(&host)
    }
}

impl From<DiskMemory> for StateMemory {
    fn from(disk: DiskMemory) -> Self {
        Self::from(&disk)
    }
}

/// Bytes from which on a part of a state is large: it lies in pages of its own.
const LARGE: usize = 1 << 20;
/// Bytes by which large parts begin apart: whole lines of the cache, and few of a page.
const APART: usize = 5 * 64;

/// A part of a state in host memory. Large ones of a state begin at places of a page of their own: a processor fetches nothing ahead
/// over the end of a page, and parts that begin at the same place come to their next pages all at once.
#[derive(Debug)]
pub(crate) struct Part {
    buffer: HostBuffer,
    /// Bytes of the buffer before it.
    lead: usize,
}

impl Part {
    /// `len` bytes for the part with this number.
    fn take(
        memory: &HostMemory,
        which: usize,
        len: usize,
        purpose: impl fmt::Display,
    ) -> Result<Self, OffloadError> {
        // Weights and gradients have no lead: their buffers are exchanged for each other.
        let lead = if len < LARGE { 0 } else { APART * (which + 1) };
        Ok(Self { buffer: memory.take(lead + len, purpose)?, lead })
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.lead..]
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.lead..]
    }
}

/// The numbers of a state.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each parameter, and a box would be one more allocation for nothing"
)]
pub(crate) enum Kept {
    /// Parts that the format leaves empty have no buffer: a driver locks no pages of nothing.
    Host([Option<Part>; PARTS]),
    Disk(OnDisk),
}

impl Kept {
    /// A state of `len` elements, as `fill` makes it of zeros, stretch by stretch.
    pub(crate) fn new(
        memory: &StateMemory,
        name: &str,
        layout: Layout,
        len: usize,
        mut fill: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<Self, HostOptimError> {
        if let Some(disk) = &memory.disk {
            return Ok(Self::Disk(OnDisk::new(disk, name, layout, (len, memory.chunk), fill)?));
        }
        let computes = !memory.host.computes_nothing();
        let mut parts = [const { None }; PARTS];
        for (which, bytes) in layout.bytes(len).into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
            let purpose = format_args!("{} of {name}", PURPOSES[which]);
            let part = parts[which].insert(Part::take(&memory.host, which, bytes, purpose)?);
            if computes {
                part.fill(0);
            }
        }
        if computes {
            fill(0..len, &mut arrays(layout, &mut parts));
        }
        Ok(Self::Host(parts))
    }

    /// The part of the disk that a pipeline reads and writes.
    pub(crate) fn stored(&self) -> Option<&Arc<Stored>> {
        match self {
            Self::Host(_) => None,
            Self::Disk(on_disk) => Some(on_disk.stored()),
        }
    }

    /// Lets `change` change all `len` elements: at once where they are in host memory, and else chunk by chunk, as `pipeline` brings
    /// them. After an error the numbers are of no use, which whoever asks for them is told; and so until all are
    /// [written](Self::when_written).
    pub(crate) fn change(
        &mut self,
        pipeline: &mut Pipeline,
        layout: Layout,
        len: usize,
        mut change: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<(), HostOptimError> {
        match self {
            Self::Host(parts) => change(0..len, &mut arrays(layout, parts)),
            Self::Disk(on_disk) => on_disk.stream(pipeline, change)?,
        }
        Ok(())
    }

    /// Runs `then` once everything that was changed is where it is kept; never if that failed.
    pub(crate) fn when_written(&self, pipeline: &mut Pipeline, then: impl FnOnce() + Send + 'static) {
        match self {
            Self::Host(_) => then(),
            Self::Disk(on_disk) => on_disk.when_written(pipeline, then),
        }
    }

    /// Whether everything that was changed is where it is kept, once the pipeline has ended.
    pub(crate) fn is_written(&self) -> Result<(), HostOptimError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Disk(on_disk) => on_disk.is_written(),
        }
    }

    /// Shows `read` the bytes of these neighbouring parts, stretch by stretch, in order.
    pub(crate) fn read(
        &self,
        parts: Range<usize>,
        len: usize,
        mut read: impl FnMut(Range<usize>, &[&[u8]]),
    ) -> Result<(), HostOptimError> {
        match self {
            Self::Host(kept) => {
                let kept = kept.each_ref().map(|part| part.as_deref().unwrap_or_default());
                read(0..len, &kept[parts]);
            }
            Self::Disk(on_disk) => on_disk.read(parts, read)?,
        }
        Ok(())
    }

    /// The parts in host memory.
    pub(crate) fn in_host_memory(&self) -> Option<&[Option<Part>; PARTS]> {
        match self {
            Self::Host(parts) => Some(parts),
            Self::Disk(_) => None,
        }
    }

    pub(crate) fn in_host_memory_mut(&mut self) -> Option<&mut [Option<Part>; PARTS]> {
        match self {
            Self::Host(parts) => Some(parts),
            Self::Disk(_) => None,
        }
    }

    /// Whether a step of it began and did not end.
    pub(crate) fn is_torn(&self) -> bool {
        matches!(self, Self::Disk(on_disk) if on_disk.is_torn())
    }

    pub(crate) fn host_bytes(&self) -> u64 {
        let parts = self.in_host_memory().into_iter().flatten().flatten();
        parts.map(|part| part.buffer.len() as u64).sum()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::Disk(on_disk) => on_disk.bytes(),
        }
    }
}

pub(crate) fn arrays(layout: Layout, parts: &mut [Option<Part>; PARTS]) -> Arrays<'_> {
    layout.arrays(parts.each_mut().map(|part| part.as_deref_mut().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::layout::Moments;

    #[test]
    fn large_parts_begin_at_places_of_a_page_of_their_own_and_all_their_bytes_count() {
        const LINE: usize = 64;
        for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
            for (len, is_large) in [(1000, false), (1 << 20, true)] {
                let memory = HostMemory::unlimited();
                let layout = Layout::of(format, Moments::Two, true);
                let state = Kept::new(&(&memory).into(), "w", layout, len, |_, _| {}).expect("memory");
                let parts = state.in_host_memory().expect("it is there").each_ref();
                let large = parts.into_iter().flatten().filter(|part| part.len() >= LARGE);
                let leads: Vec<_> = large.map(|part| part.lead).collect();
                assert_eq!(leads.len(), if is_large { 3 } else { 0 }, "{format:?}");
                for (n, lead) in leads.iter().enumerate() {
                    // Beside a gradient and weights, which begin at the beginning.
                    let others = leads[..n].iter().chain([&0, &4096]);
                    assert!(
                        others.map(|other| other.abs_diff(*lead)).all(|apart| apart >= 4 * LINE),
                        "{leads:?}"
                    );
                    assert_eq!(lead % LINE, 0, "numbers are where vectors are read");
                }
                let bytes = (layout.bytes(len).iter().sum::<usize>() + leads.iter().sum::<usize>()) as u64;
                assert_eq!([state.host_bytes(), memory.usage().in_use], [bytes; 2], "{format:?}");
                assert_eq!(parts.map(|part| part.as_ref().map_or(0, |part| part.len())), layout.bytes(len));
            }
        }
    }
}
