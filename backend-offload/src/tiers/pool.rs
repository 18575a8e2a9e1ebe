//! Host memory under one limit: slabs in use and idle.
//!
//! Memory is allocated and freed outside the lock: page-locking takes milliseconds.

use super::books::{Books, Granted, HostUsage};
#[cfg(feature = "cube")]
use super::lent::Lendings;
#[cfg(feature = "cuda")]
use super::slab::PinnedMemory;
use super::slab::{HeapMemory, Slab, SlabSource};
use pager::Limit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(crate) struct HostPool {
    books: Mutex<Books>,
    dry: AtomicBool,
    #[cfg(feature = "cube")]
    lendings: Lendings,
}

/// Counts from its allocation.
#[derive(Debug)]
pub struct Draft(Held);

/// A block's contents on the host. Counts until its last clone drops: uploads may read it.
#[derive(Debug, Clone)]
pub struct Lease(Arc<Held>);

#[derive(Debug)]
struct Held {
    slab: Option<Slab>,
    pool: Arc<HostPool>,
}

impl HostPool {
    pub fn new(limit: Limit, pinned_limit: Limit) -> Arc<Self> {
        Arc::new(Self {
            books: Mutex::new(Books::new(limit, pinned_limit)),
            dry: AtomicBool::new(false),
            #[cfg(feature = "cube")]
            lendings: Lendings::default(),
        })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // No panic leaves the books inconsistent.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Later slabs take no memory and have no limit.
    pub fn run_dry(&self) {
        self.dry.store(true, Ordering::Relaxed);
        self.set_limits(Limit::NONE, Limit::NONE);
    }

    pub fn is_dry(&self) -> bool {
        self.dry.load(Ordering::Relaxed)
    }

    /// Whether a buffer of `len` bytes keeps no contents.
    pub(super) fn is_hollow(&self, len: usize) -> bool {
        self.is_dry() && Slab::is_hollow(len)
    }

    #[cfg(feature = "cube")]
    pub(super) fn lendings(&self) -> &Lendings {
        &self.lendings
    }

    pub fn set_limits(&self, limit: Limit, pinned_limit: Limit) {
        self.books().set_limits(limit, pinned_limit);
    }

    /// Idle slabs count as free.
    pub fn room(&self) -> Limit {
        self.books().room()
    }

    pub fn usage(&self) -> HostUsage {
        self.books().usage()
    }

    pub fn reset_peaks(&self) {
        self.books().reset_peaks();
    }

    pub fn trim(&self) {
        let freed = self.books().clear_shelves();
        drop(freed);
    }

    /// `None` if no slab of this size is idle, or the limit refuses.
    #[cfg(feature = "cube")]
    pub fn idle(self: &Arc<Self>, len: usize, source: SlabSource) -> Option<Draft> {
        let slab = self.books().idle(len, matches!(source, SlabSource::Pinned(_)))?;
        Some(Draft(Held { slab: Some(slab), pool: self.clone() }))
    }

    /// `None` if the limits or the driver refuse.
    #[cfg(feature = "cuda")]
    pub(super) fn lock_for_staging(&self, lock: fn(usize, bool) -> Option<PinnedMemory>) -> Option<Slab> {
        let mut books = self.books();
        let bytes = books.staging_bytes();
        if bytes == 0 || !books.grant_staging(bytes) {
            return None;
        }
        drop(books);
        let memory = lock(bytes as usize, true);
        if memory.is_none() {
            self.books().refuse_staging(bytes);
        }
        memory.map(Slab::Pinned)
    }

    #[cfg(feature = "cuda")]
    pub(super) fn unlocked(&self, bytes: u64) {
        self.books().return_staging(bytes);
    }

    /// `None` if the limit or the machine refuses.
    pub fn draft(self: &Arc<Self>, len: usize, source: SlabSource) -> Option<Draft> {
        let mut freed = Vec::new();
        let granted = self.books().grant(len, matches!(source, SlabSource::Pinned(_)), &mut freed);
        drop(freed);
        let slab = match (granted?, source) {
            (Granted::FromShelf(slab), _) => slab,
            (Granted::ToAllocate { pinned: true }, SlabSource::Pinned(lock)) => {
                match lock(len, !self.is_dry()) {
                    Some(memory) => Slab::Pinned(memory),
                    None => self.pageable(len)?,
                }
            }
            (Granted::ToAllocate { .. }, _) => self.ordinary(len)?,
        };
        Some(Draft(Held { slab: Some(slab), pool: self.clone() }))
    }

    fn ordinary(&self, len: usize) -> Option<Slab> {
        let slab = if self.is_dry() { Slab::dry_run(len) } else { HeapMemory::zeroed(len).map(Slab::Heap) };
        slab.or_else(|| {
            self.books().refund(len);
            None
        })
    }

    fn pageable(&self, len: usize) -> Option<Slab> {
        let mut freed = Vec::new();
        let is_first = self.books().unpin(len, &mut freed);
        drop(freed);
        if is_first {
            tracing::warn!(
                target: crate::journal::TARGET,
                "the driver refuses more page-locked host memory; going on with ordinary memory, which copies slower"
            );
        }
        self.ordinary(len)
    }
}

impl Held {
    fn slab(&self) -> &Slab {
        self.slab.as_ref().expect("a slab is there until it is given back")
    }

    fn slab_mut(&mut self) -> &mut Slab {
        self.slab.as_mut().expect("a slab is there until it is given back")
    }
}

impl Draft {
    pub fn seal(self) -> Lease {
        Lease(Arc::new(self.0))
    }

    #[cfg(feature = "cube")]
    pub fn is_pinned(&self) -> bool {
        self.0.slab().is_pinned()
    }

    #[cfg(feature = "cube")]
    pub(crate) fn pool(&self) -> &Arc<HostPool> {
        &self.0.pool
    }
}

impl Deref for Draft {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.slab().bytes()
    }
}

impl DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.slab_mut().bytes_mut()
    }
}

impl Lease {
    pub fn bytes(&self) -> &[u8] {
        self.0.slab().bytes()
    }

    pub fn is_pinned(&self) -> bool {
        self.0.slab().is_pinned()
    }

    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// `None` while an upload still reads them.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.0).map(|held| held.slab_mut().bytes_mut())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(slab) = self.slab.take() else { return };
        let freed = self.pool.books().put_back(slab);
        drop(freed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::PinnedMemory;
    use super::*;
    use std::ptr::NonNull;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{OnceLock, mpsc};
    use std::thread;
    use std::time::Duration;

    const HUNDRED: Limit = Limit::bytes(100);

    fn copy(pool: &Arc<HostPool>, len: usize) -> Option<Lease> {
        let mut draft = pool.draft(len, SlabSource::Heap)?;
        draft.fill(7);
        Some(draft.seal())
    }

    #[test]
    fn the_limit_is_hard_and_counts_live_copies() {
        let pool = HostPool::new(HUNDRED, HUNDRED);
        let first = copy(&pool, 60).expect("fits");
        assert!(copy(&pool, 41).is_none());
        let clone = first.clone();
        drop(first);
        assert_eq!(pool.room(), Limit::bytes(40), "a clone keeps the bytes counted");
        drop(clone);
        assert_eq!(pool.room(), HUNDRED);
        assert!(copy(&pool, 100).is_some());
    }

    #[test]
    fn a_slab_of_the_same_size_is_used_again() {
        let pool = HostPool::new(HUNDRED, HUNDRED);
        let address = copy(&pool, 50).expect("fits").bytes().as_ptr();
        assert_eq!(pool.usage().reserved, 50);
        assert_eq!(copy(&pool, 50).expect("fits").bytes().as_ptr(), address);
    }

    #[test]
    fn idle_slabs_give_way_to_a_copy_of_another_size() {
        let pool = HostPool::new(HUNDRED, HUNDRED);
        drop(copy(&pool, 80));
        assert!(copy(&pool, 90).is_some());
        assert!(pool.usage().reserved <= 100);
    }

    #[test]
    fn room_for_a_copy_frees_no_more_idle_slabs_than_it_needs() {
        let pool = HostPool::new(HUNDRED, HUNDRED);
        drop(copy(&pool, 100));
        drop([10, 20, 30].map(|len| copy(&pool, len)));
        let _kept = copy(&pool, 50).expect("fits once the longest idle slab is gone");
        assert_eq!(pool.usage().reserved, 100);
    }

    #[test]
    fn page_locked_slabs_in_the_way_of_another_are_freed_one_by_one() {
        let pool = HostPool::new(Limit::NONE, HUNDRED);
        let draft = |len| pool.draft(len, SlabSource::Pinned(locked)).map(Draft::seal);
        drop([20, 30, 40].map(draft));
        let kept = draft(25).expect("no limit");
        assert_eq!((kept.is_pinned(), pool.usage().reserved), (true, 95), "the slab of 20 bytes gave way");
    }

    #[test]
    fn trimming_leaves_only_slabs_in_use() {
        let pool = HostPool::new(HUNDRED, HUNDRED);
        let kept = copy(&pool, 10);
        drop(copy(&pool, 50));
        pool.trim();
        assert_eq!(pool.usage().reserved, 10);
        drop(kept);
    }

    #[test]
    fn a_draft_that_is_never_sealed_takes_no_room() {
        let pool = HostPool::new(HUNDRED, HUNDRED);
        let draft = pool.draft(60, SlabSource::Heap).expect("fits");
        assert_eq!(pool.room(), Limit::bytes(40), "it counts while it is written");
        drop(draft);
        assert_eq!(pool.room(), HUNDRED);
    }

    #[test]
    fn pinned_memory_that_is_refused_is_replaced_and_counted() {
        let pool = HostPool::new(HUNDRED, HUNDRED);
        let draft = pool.draft(10, SlabSource::Pinned(|_, _| None)).expect("ordinary memory serves");
        assert!(!draft.seal().is_pinned());
        assert_eq!(pool.usage().pageable_fallbacks, 1);
    }

    fn locked(len: usize, _: bool) -> Option<PinnedMemory> {
        let start = Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr();
        // SAFETY: the bytes were just leaked, for good.
        Some(unsafe { PinnedMemory::new(NonNull::new(start)?, len, |_, _| {}, 0) })
    }

    #[test]
    fn no_bytes_are_never_locked_and_refuse_nothing_to_others() {
        let some = |len, live| locked(len, live).filter(|_| len > 0);
        let pool = HostPool::new(HUNDRED, HUNDRED);
        let draft = |len| pool.draft(len, SlabSource::Pinned(some)).map(Draft::seal);
        assert_eq!(draft(0).map(|none| none.bytes().len()), Some(0));
        assert!(draft(40).expect("within both").is_pinned());
        assert_eq!(pool.usage().pageable_fallbacks, 0);
    }

    #[test]
    fn memory_that_serves_again_is_locked_once_and_a_refused_lock_does_not_count() {
        let pool = HostPool::new(HUNDRED, HUNDRED);
        for len in [30, 30, 20] {
            drop(pool.draft(len, SlabSource::Pinned(locked)).expect("there is room"));
        }
        drop(pool.draft(10, SlabSource::Pinned(|_, _| None)).expect("ordinary memory serves"));
        assert_eq!(pool.usage().page_locks, 2);
    }

    #[test]
    fn page_locked_memory_has_a_limit_of_its_own_and_ordinary_memory_serves_beyond() {
        let pool = HostPool::new(HUNDRED, Limit::bytes(40));
        let draft = |len| pool.draft(len, SlabSource::Pinned(locked)).map(Draft::seal);
        let (first, second) = (draft(40).expect("within both"), draft(40).expect("within the host's"));
        assert!(first.is_pinned() && !second.is_pinned());
        assert_eq!(pool.usage().pageable_fallbacks, 1);
        drop(first);
        assert!(draft(20).expect("an idle locked slab gave way").is_pinned());
        assert!(draft(61).is_none(), "the limit of the host holds");
    }

    /// A driver that locks at most 50 bytes.
    static LOCKED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn locked_by_small_driver(len: usize, _: bool) -> Option<PinnedMemory> {
        ASKED.fetch_add(1, Ordering::Relaxed);
        let mut all = LOCKED.lock().expect("no panic");
        if all.iter().map(|(_, len)| len).sum::<usize>() + len > 50 {
            return None;
        }
        let start = NonNull::from(Box::leak(vec![0u8; len].into_boxed_slice())).cast::<u8>();
        all.push((start.addr().get(), len));
        let unlock = |start: NonNull<u8>, _| {
            LOCKED.lock().expect("no panic").retain(|(other, _)| *other != start.addr().get());
        };
        // SAFETY: the bytes were just leaked, for good.
        Some(unsafe { PinnedMemory::new(start, len, unlock, 0) })
    }

    #[test]
    fn a_refused_page_lock_is_tried_again_only_after_page_locked_memory_was_freed() {
        let pool = HostPool::new(Limit::NONE, Limit::NONE);
        let take = |len| {
            let before = ASKED.load(Ordering::Relaxed);
            let draft = pool.draft(len, SlabSource::Pinned(locked_by_small_driver)).expect("there is memory");
            (draft.seal(), ASKED.load(Ordering::Relaxed) - before)
        };
        let (first, _) = take(30);
        let (refused, asked) = take(40);
        assert!(first.is_pinned() && !refused.is_pinned() && asked == 1);
        let others = [take(40), take(41), take(100)];
        assert!(others.iter().all(|(lease, asked)| !lease.is_pinned() && *asked == 0));
        assert_eq!(pool.usage().pageable_fallbacks, 4);
        assert_eq!(pool.usage().reserved, 30 + 40 + 40 + 41 + 100);

        let (small, asked) = take(10);
        assert!(small.is_pinned() && asked == 1, "less was never refused");
        drop(first);
        let (next, asked) = take(39);
        assert!(next.is_pinned() && asked == 1, "the idle 30 gave way");
        drop((others, refused, next));
        assert_eq!(
            (take(1000).1, LOCKED.lock().expect("no panic").len()),
            (0, 2),
            "nothing gave way in vain"
        );
    }

    #[test]
    fn the_reserved_peak_counts_idle_slabs_too_and_idle_slabs_do_not_pile_up() {
        let pool = HostPool::new(Limit::NONE, Limit::NONE);
        for len in 1..=100 {
            drop(copy(&pool, len));
        }
        let HostUsage { in_use, reserved, reserved_peak, .. } = pool.usage();
        assert_eq!(in_use, 0);
        assert!(reserved <= 100, "{reserved} bytes idle where 100 were ever in use");
        assert!(reserved_peak >= reserved && reserved_peak <= 200, "{reserved_peak}");
    }

    #[test]
    fn ordinary_memory_stays_within_its_peak_and_unrequested_sizes_go_first() {
        let pool = HostPool::new(Limit::NONE, Limit::NONE);
        let of_old_size: Vec<_> = (0..10).map(|_| copy(&pool, 40)).collect();
        let mut of_new_sizes: Vec<_> = of_old_size.into_iter().map(|old| (old, copy(&pool, 20)).1).collect();
        assert_eq!((pool.usage().in_use, pool.usage().reserved), (200, 400));
        let mut of_newer_sizes = Vec::new();
        for _ in 0..5 {
            let used = of_new_sizes.pop().flatten().expect("there are ten");
            let address = used.bytes().as_ptr();
            drop(used);
            let again = copy(&pool, 20);
            assert_eq!(
                again.as_ref().map(|again| again.bytes().as_ptr()),
                Some(address),
                "its size is asked for"
            );
            of_new_sizes.insert(0, again);
            of_newer_sizes.push(copy(&pool, 30));
            assert!(pool.usage().reserved <= 420, "{:?}", pool.usage());
        }
        assert_eq!(pool.usage().in_use, 350);
    }

    #[test]
    fn a_failed_allocation_never_counts_and_sizes_are_known_from_their_first_request() {
        let pool = HostPool::new(Limit::NONE, Limit::NONE);
        assert!(pool.draft(isize::MAX as usize, SlabSource::Heap).is_none(), "no machine has it");
        assert_eq!(pool.usage().peak, 0);
        drop((0..10).map(|_| copy(&pool, 40)).collect::<Vec<_>>());
        drop(copy(&pool, 40));
        drop(copy(&pool, 20));
        let reserved = pool.usage().reserved;
        drop(copy(&pool, 30));
        assert!(reserved <= 400 && pool.usage().reserved <= 400, "{reserved}, {:?}", pool.usage());
        let allocated = pool.usage().reserved;
        drop(copy(&pool, 20));
        assert_eq!(pool.usage().reserved, allocated, "its slab is still there");
    }

    #[test]
    fn a_substitute_for_page_locked_memory_counts_as_ordinary() {
        let pool = HostPool::new(Limit::NONE, Limit::NONE);
        drop((0..10).map(|_| copy(&pool, 40)).collect::<Vec<_>>());
        let instead = pool.draft(100, SlabSource::Pinned(|_, _| None)).expect("ordinary memory serves");
        assert!(pool.usage().reserved <= 400 && instead.len() == 100, "{:?}", pool.usage());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_dry_pool_has_no_limit_and_takes_almost_no_memory() {
        const LEN: usize = 1 << 40;
        let pool = HostPool::new(HUNDRED, HUNDRED);
        assert!(pool.draft(LEN, SlabSource::Heap).is_none());
        pool.run_dry();
        let mut draft = pool.draft(LEN, SlabSource::Heap).expect("its address is all that it takes");
        draft[LEN - 1] = 1;
        assert_eq!((draft.len(), pool.usage().in_use), (LEN, LEN as u64));
    }

    static POOL: OnceLock<Arc<HostPool>> = OnceLock::new();

    fn lock_during_other_use(len: usize, _: bool) -> Option<PinnedMemory> {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(POOL.get().expect("set before").room()));
        receiver.recv_timeout(Duration::from_secs(20)).expect("others go on while memory is locked");
        locked(len, true)
    }

    #[test]
    fn page_locking_blocks_no_other_device() {
        let pool = POOL.get_or_init(|| HostPool::new(HUNDRED, HUNDRED));
        assert!(pool.draft(10, SlabSource::Pinned(lock_during_other_use)).is_some());
    }
}
