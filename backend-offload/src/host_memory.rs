//! Host memory for the program's own buffers, under the same budget as spilled tensors.
//!
//! Optimizer state competes with spilled tensors, so one limit holds for both.

use crate::bytes::Bytes;
use crate::disk_memory::DiskMemory;
use crate::error::OffloadError;
use crate::stats::TierStats;
use crate::tiers::{Below, Disk, Draft, HostPool, SlabSource, Traffic};
use pager::{Limit, Preference};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

/// The device that owns the host memory. Its thread allocates page-locked memory.
pub(crate) trait Site: Send + Sync {
    /// `None` if no room can be made.
    fn draft(&self, pool: &Arc<HostPool>, len: usize) -> Result<Option<Draft>, OffloadError> {
        Ok(pool.draft(len, SlabSource::Heap))
    }

    fn prefer_for_new(&self, preference: Preference);
}

struct Nowhere;

impl Site for Nowhere {
    fn prefer_for_new(&self, _: Preference) {}
}

/// The host tier of a device. Clones share one budget.
#[derive(Clone)]
pub struct HostMemory {
    pool: Arc<HostPool>,
    site: Arc<dyn Site>,
    disk: Option<(Arc<Disk>, Arc<Traffic>)>,
}

impl HostMemory {
    pub(crate) fn new(below: Below, site: impl Site + 'static) -> Self {
        let disk = below.disk.map(|disk| (disk, below.traffic));
        Self { pool: below.pool, site: Arc::new(site), disk }
    }

    /// No limit but the machine's, for programs whose tensors do not spill.
    pub fn unlimited() -> Self {
        Self::without_device(Limit::NONE, None)
    }

    /// Unlimited host memory above a disk: `bytes` in `folder`, allocated at once.
    ///
    /// # Errors
    /// As for [`OffloadConfig::disk`](crate::OffloadConfig::disk).
    pub fn above_disk(folder: &Path, bytes: u64) -> Result<Self, OffloadError> {
        Ok(Self::without_device(Limit::NONE, Some(Disk::open(folder, bytes)?)))
    }

    /// Host memory of a device that [computes nothing](Self::computes_nothing).
    #[cfg(feature = "test-util")]
    pub fn dry_run() -> Self {
        let memory = Self::unlimited();
        memory.pool.run_dry();
        memory
    }

    fn without_device(limit: Limit, disk: Option<Arc<Disk>>) -> Self {
        let pool = HostPool::new(limit, Limit::NONE);
        Self::new(Below { pool, disk, traffic: Arc::default() }, Nowhere)
    }

    /// Whether the device [computes nothing](crate::OffloadConfig::dry_run), so arithmetic on its buffers can be
    /// skipped.
    pub fn computes_nothing(&self) -> bool {
        self.pool.is_dry()
    }

    /// The disk below. `None` without one, or if the device [computes nothing](crate::OffloadConfig::dry_run).
    pub fn disk(&self) -> Option<DiskMemory> {
        let (disk, traffic) = self.disk.clone().filter(|_| !self.computes_nothing())?;
        Some(DiskMemory::new(self.clone(), disk, traffic))
    }

    /// A buffer of `len` bytes, with unspecified contents, aligned for any number. Errors name `purpose`.
    ///
    /// # Errors
    /// If the budget or the machine has no room, or the disk fails. Host copies of blocks on the device are dropped
    /// first, and other blocks spill.
    pub fn take(&self, len: usize, purpose: impl fmt::Display) -> Result<HostBuffer, OffloadError> {
        if let Some(draft) = self.site.draft(&self.pool, len)? {
            return Ok(HostBuffer(draft));
        }
        let usage = self.pool.usage();
        Err(OffloadError::HostRefused {
            operation: purpose.to_string(),
            wanted: len as u64,
            in_use: usage.in_use,
            budget: usage.limit.get(),
        })
    }

    /// Runs `make`. While tensors of this device spill, tensors that `make` creates from data start on the host: they
    /// evict no block, and later leave without a copy. Otherwise they start there only if the device has no room.
    ///
    /// Spilling is judged by the steps of [`mark_step`](crate::mark_step), or by the whole program. The hint also
    /// applies to other threads meanwhile.
    pub fn first<T>(&self, make: impl FnOnce() -> T) -> T {
        struct After<'a>(&'a HostMemory);
        impl Drop for After<'_> {
            fn drop(&mut self) {
                self.0.site.prefer_for_new(Preference::Policy);
            }
        }
        self.site.prefer_for_new(Preference::Host);
        let _after = After(self);
        make()
    }

    /// Usage of the whole tier, by all devices of the process.
    pub fn usage(&self) -> TierStats {
        let usage = self.pool.usage();
        TierStats {
            in_use: usage.in_use,
            reserved: usage.reserved,
            peak: usage.peak,
            peak_reserved: usage.reserved_peak,
            budget: usage.limit.get(),
        }
    }
}

/// A buffer in the host tier, page-locked if that copies faster. Counts until its drop.
pub struct HostBuffer(Draft);

#[cfg(feature = "burn")]
impl HostBuffer {
    /// Data for a tensor, in the same memory, which counts until the device has the data or keeps it as the tensor's
    /// host copy. Memory that is not page-locked comes back.
    ///
    /// # Errors
    /// The buffer itself.
    pub fn into_bytes(self) -> Result<burn_core::tensor::Bytes, Self> {
        #[cfg(feature = "cube")]
        if self.0.is_pinned() {
            return Ok(crate::cubecl::lent(self.0));
        }
        Err(self)
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({:?})", self.usage())
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({})", Bytes(self.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: u64) -> HostMemory {
        HostMemory::without_device(Limit::bytes(bytes), None)
    }

    #[test]
    fn a_buffer_counts_against_the_budget_of_spilled_tensors_while_it_lives() {
        let memory = memory(100);
        let buffer = memory.take(60, "moments").expect("fits");
        assert!(memory.pool.draft(41, SlabSource::Heap).is_none(), "no spilled block gets what is taken");
        assert_eq!(memory.usage().in_use, 60);
        drop(buffer);
        assert!(memory.pool.draft(100, SlabSource::Heap).is_some());
        assert_eq!(memory.usage().peak, 100);
    }

    #[test]
    fn a_refusal_names_the_purpose_and_the_sizes() {
        let memory = memory(3 << 20);
        let _held = memory.take(2 << 20, "moments").expect("fits");
        let error = memory.take(2 << 20, "the moments of wte").expect_err("too much").to_string();
        for part in ["the moments of wte", "2.00 MiB", "3.00 MiB"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn buffers_of_any_length_are_aligned_for_vectors() {
        let memory = HostMemory::unlimited();
        for len in [1, 4, 63, 64, 1000] {
            let buffer = memory.take(len, "a test").expect("there is memory");
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % 64), (len, 0));
        }
    }
}
