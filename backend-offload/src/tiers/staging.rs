//! Page-locked buffers for copies of ordinary host memory. They count within both limits.

#[cfg(feature = "cuda")]
use super::books::STAGING_BUFFERS;
use super::pool::HostPool;
#[cfg(feature = "cuda")]
use super::slab::Slab;
use super::slab::SlabSource;
use std::sync::Arc;

#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only CUDA can pin host memory"))]
pub struct StagingSource {
    pool: Arc<HostPool>,
    source: SlabSource,
}

#[cfg(feature = "cuda")]
#[derive(Debug)]
pub struct StagingBuffer {
    slab: Slab,
    pool: Arc<HostPool>,
}

impl StagingSource {
    pub(crate) fn new(pool: Arc<HostPool>, source: SlabSource) -> Self {
        Self { pool, source }
    }

    /// `None` if a limit or the driver refuses, or in a dry run.
    #[cfg(feature = "cuda")]
    pub fn take(&self) -> Option<[StagingBuffer; STAGING_BUFFERS]> {
        let SlabSource::Pinned(lock) = self.source else { return None };
        if self.pool.is_dry() {
            return None;
        }
        let buffer = || {
            let slab = self.pool.lock_for_staging(lock)?;
            Some(StagingBuffer { slab, pool: self.pool.clone() })
        };
        let (first, second) = (buffer()?, buffer()?);
        (first.slab.bytes().len() == second.slab.bytes().len()).then_some([first, second])
    }
}

#[cfg(feature = "cuda")]
impl StagingBuffer {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.slab.bytes_mut()
    }

    pub fn len(&self) -> usize {
        self.slab.bytes().len()
    }
}

#[cfg(feature = "cuda")]
impl Drop for StagingBuffer {
    fn drop(&mut self) {
        self.pool.unlocked(self.slab.bytes().len() as u64);
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::super::slab::PinnedMemory;
    use super::*;
    use pager::Limit;
    use std::ptr::NonNull;

    const MIB: u64 = 1 << 20;

    fn locked(len: usize, _: bool) -> Option<PinnedMemory> {
        let start = NonNull::new(Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr())?;
        // SAFETY: the bytes were just leaked, for good.
        Some(unsafe { PinnedMemory::new(start, len, |_, _| {}, 0) })
    }

    fn source(pool: &Arc<HostPool>, lock: fn(usize, bool) -> Option<PinnedMemory>) -> StagingSource {
        StagingSource::new(pool.clone(), SlabSource::Pinned(lock))
    }

    #[test]
    fn slabs_leave_page_locked_room_for_the_buffers_of_a_device_and_both_stay_within_the_limits() {
        let pool = HostPool::new(Limit::bytes(64 * MIB), Limit::bytes(16 * MIB));
        let slab = || pool.draft(MIB as usize, SlabSource::Pinned(locked)).expect("within the host's limit");
        let slabs: Vec<_> = (0..20).map(|_| slab()).collect();
        assert_eq!(slabs.iter().filter(|slab| slab.is_pinned()).count(), 12);
        let taken = [(); 2].map(|()| source(&pool, locked).take().expect("there is room"));
        assert!(taken.iter().flatten().all(|buffer| buffer.len() == MIB as usize));
        assert_eq!(pool.usage().in_use, 24 * MIB, "they count");
        assert!(source(&pool, locked).take().is_none(), "the limit holds");
        drop((slabs, taken));
        assert_eq!((pool.usage().in_use, slab().is_pinned()), (0, true));
    }

    #[test]
    fn a_driver_that_refuses_a_buffer_is_asked_once_and_the_buffer_does_not_count() {
        let pool = HostPool::new(Limit::bytes(64 * MIB), Limit::bytes(16 * MIB));
        assert!(source(&pool, |_, _| None).take().is_none());
        assert_eq!(pool.usage().in_use, 0);
        assert!(source(&pool, |_, _| panic!("it was refused")).take().is_none());
    }

    #[test]
    fn where_all_memory_is_page_locked_nothing_is_kept_free_for_buffers() {
        let pool = HostPool::new(Limit::bytes(16 * MIB), Limit::bytes(16 * MIB));
        let slab = pool.draft(16 * MIB as usize, SlabSource::Pinned(locked)).expect("the whole host");
        assert!(slab.is_pinned());
    }
}
