//! Where a state is: in host memory, or on the disk below it.

use std::ops::Range;
use std::sync::Arc;

use backend_offload::{DiskMemory, HostBuffer, HostMemory};

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

/// The numbers of a state.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each parameter, and a box would be one more allocation for nothing"
)]
pub(crate) enum Kept {
    /// Parts that the format leaves empty have no buffer: a driver locks no pages of nothing.
    Host([Option<HostBuffer>; PARTS]),
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
        for ((part, bytes), what) in parts.iter_mut().zip(layout.bytes(len)).zip(PURPOSES) {
            if bytes > 0 {
                let buffer = part.insert(memory.host.take(bytes, format_args!("{what} of {name}"))?);
                if computes {
                    buffer.fill(0);
                }
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
    pub(crate) fn in_host_memory(&self) -> Option<&[Option<HostBuffer>; PARTS]> {
        match self {
            Self::Host(parts) => Some(parts),
            Self::Disk(_) => None,
        }
    }

    pub(crate) fn in_host_memory_mut(&mut self) -> Option<&mut [Option<HostBuffer>; PARTS]> {
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
        self.in_host_memory().map_or(0, |parts| parts.iter().flatten().map(|part| part.len() as u64).sum())
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::Disk(on_disk) => on_disk.bytes(),
        }
    }
}

pub(crate) fn arrays(layout: Layout, parts: &mut [Option<HostBuffer>; PARTS]) -> Arrays<'_> {
    layout.arrays(parts.each_mut().map(|part| part.as_deref_mut().unwrap_or_default()))
}
