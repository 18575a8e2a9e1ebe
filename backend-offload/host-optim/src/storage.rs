//! Storage of a state: in host memory, or on disk.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use backend_offload::{DiskMemory, HostBuffer, HostMemory, OffloadError};

use crate::chunks::{CHUNK, ChunkStore, OnDisk, Pipeline};
use crate::error::HostOptimError;
use crate::layout::{Arrays, Layout, PARTS, PURPOSES};

/// Memory for a state; gradients always use host memory.
#[derive(Debug, Clone)]
pub struct StateMemory {
    pub(crate) host: HostMemory,
    pub(crate) disk: Option<DiskMemory>,
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

/// Bytes from which parts get an offset.
const LARGE: usize = 1 << 20;
/// Whole cache lines, small against a page.
const APART: usize = 5 * 64;

/// Large parts have distinct page offsets: at a page's end, past which the processor does not prefetch, they wait in
/// turn.
#[derive(Debug)]
pub(crate) struct PartBuffer {
    buffer: HostBuffer,
    /// Unused bytes at the start of the buffer.
    lead: usize,
}

impl PartBuffer {
    fn take(
        memory: &HostMemory,
        which: usize,
        len: usize,
        purpose: impl fmt::Display,
    ) -> Result<Self, OffloadError> {
        let lead = if len < LARGE { 0 } else { APART * (which + 1) };
        Ok(Self { buffer: memory.take(lead + len, purpose)?, lead })
    }
}

impl Deref for PartBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.lead..]
    }
}

impl DerefMut for PartBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.lead..]
    }
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one exists per parameter; a box would only add an allocation")]
pub(crate) enum Storage {
    /// Empty parts have no buffer: a driver cannot lock zero pages.
    Host([Option<PartBuffer>; PARTS]),
    Disk(OnDisk),
}

impl Storage {
    /// Zeros, changed by `fill` range by range.
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
            let part = parts[which].insert(PartBuffer::take(&memory.host, which, bytes, purpose)?);
            if computes {
                part.fill(0);
            }
        }
        if computes {
            fill(0..len, &mut arrays(layout, &mut parts));
        }
        Ok(Self::Host(parts))
    }

    pub(crate) fn pipeline<'s>(
        storages: impl IntoIterator<Item = &'s Self>,
    ) -> Result<Pipeline, HostOptimError> {
        Pipeline::new(storages.into_iter().filter_map(Self::chunk_store).cloned().collect())
    }

    pub(crate) fn chunk_store(&self) -> Option<&Arc<ChunkStore>> {
        match self {
            Self::Host(_) => None,
            Self::Disk(on_disk) => Some(on_disk.chunk_store()),
        }
    }

    /// Calls `change` once in host memory, by chunk on disk. Until all are [written](Self::when_written), numbers
    /// cannot be read.
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

    /// Runs `then` once all changes are stored, unless a write failed.
    pub(crate) fn when_written(&self, pipeline: &mut Pipeline, then: impl FnOnce() + Send + 'static) {
        match self {
            Self::Host(_) => then(),
            Self::Disk(on_disk) => on_disk.when_written(pipeline, then),
        }
    }

    pub(crate) fn check_written(&self) -> Result<(), HostOptimError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Disk(on_disk) => on_disk.check_written(),
        }
    }

    /// Range by range, in order.
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

    pub(crate) fn host_parts(&self) -> Option<&[Option<PartBuffer>; PARTS]> {
        match self {
            Self::Host(parts) => Some(parts),
            Self::Disk(_) => None,
        }
    }

    pub(crate) fn host_parts_mut(&mut self) -> Option<&mut [Option<PartBuffer>; PARTS]> {
        match self {
            Self::Host(parts) => Some(parts),
            Self::Disk(_) => None,
        }
    }

    /// Whether a step began and did not end.
    pub(crate) fn is_torn(&self) -> bool {
        matches!(self, Self::Disk(on_disk) if on_disk.is_torn())
    }

    pub(crate) fn host_bytes(&self) -> u64 {
        let parts = self.host_parts().into_iter().flatten().flatten();
        parts.map(|part| part.buffer.len() as u64).sum()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::Disk(on_disk) => on_disk.bytes(),
        }
    }
}

pub(crate) fn arrays(layout: Layout, parts: &mut [Option<PartBuffer>; PARTS]) -> Arrays<'_> {
    layout.arrays(parts.each_mut().map(|part| part.as_deref_mut().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::layout::Moments;

    #[test]
    fn large_parts_start_at_distinct_page_offsets_and_all_bytes_count() {
        const LINE: usize = 64;
        for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
            for (len, is_large) in [(1000, false), (1 << 20, true)] {
                let memory = HostMemory::unlimited();
                let layout = Layout::new(format, Moments::Two, true);
                let state = Storage::new(&(&memory).into(), "w", layout, len, |_, _| {}).expect("memory");
                let parts = state.host_parts().expect("it is there").each_ref();
                let large = parts.into_iter().flatten().filter(|part| part.len() >= LARGE);
                let leads: Vec<_> = large.map(|part| part.lead).collect();
                assert_eq!(leads.len(), if is_large { 3 } else { 0 }, "{format:?}");
                for (n, lead) in leads.iter().enumerate() {
                    // Gradient and weights start at offset 0 of their page.
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
