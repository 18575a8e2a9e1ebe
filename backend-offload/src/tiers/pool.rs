//! Host memory under one limit: slabs in use, and idle ones that wait to be used again.

use super::slab::{Slab, SlabSource};
use pager::Limit;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host memory of all devices of this process.
#[derive(Debug)]
pub(crate) struct HostPool {
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    limit: Limit,
    in_use: u64,
    idle: u64,
    peak: u64,
    /// Idle slabs by size, pinned ones apart.
    shelves: HashMap<(bool, usize), Vec<Slab>>,
    pageable_fallbacks: u64,
}

/// A snapshot of the pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostUsage {
    pub limit: Limit,
    pub in_use: u64,
    pub reserved: u64,
    pub peak: u64,
    pub pageable_fallbacks: u64,
}

/// A slab to be written. Its bytes count from the moment it is taken.
#[derive(Debug)]
pub(crate) struct Draft(Held);

/// A block's contents on the host. Cheap to clone; its bytes count until the last clone is gone, so that an
/// upload still reading from it cannot be overcommitted.
#[derive(Debug, Clone)]
pub(crate) struct Lease(Arc<Held>);

/// A slab in use; given back to its pool when dropped.
#[derive(Debug)]
struct Held {
    slab: Option<Slab>,
    pool: Arc<HostPool>,
}

impl HostPool {
    pub fn new(limit: Limit) -> Arc<Self> {
        let books =
            Books { limit, in_use: 0, idle: 0, peak: 0, shelves: HashMap::new(), pageable_fallbacks: 0 };
        Arc::new(Self { books: Mutex::new(books) })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // The books are consistent after every statement that can panic.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_limit(&self, limit: Limit) {
        self.books().limit = limit;
    }

    /// Bytes that can still be taken; idle slabs give way.
    pub fn room(&self) -> Limit {
        let books = self.books();
        books.limit.less(books.in_use)
    }

    pub fn usage(&self) -> HostUsage {
        let books = self.books();
        HostUsage {
            limit: books.limit,
            in_use: books.in_use,
            reserved: books.in_use + books.idle,
            peak: books.peak,
            pageable_fallbacks: books.pageable_fallbacks,
        }
    }

    /// Gives all idle slabs back to the machine.
    pub fn trim(&self) {
        self.books().give_idle_back();
    }

    /// A slab of `len` bytes with whatever was last in it. `None` if the limit (or the machine) refuses.
    pub fn draft(self: &Arc<Self>, len: usize, source: SlabSource) -> Option<Draft> {
        let slab = self.books().take(len, source)?;
        Some(Draft(Held { slab: Some(slab), pool: self.clone() }))
    }
}

impl Books {
    fn take(&mut self, len: usize, source: SlabSource) -> Option<Slab> {
        let bytes = len as u64;
        if !self.limit.allows_more(self.in_use, bytes) {
            return None;
        }
        let wants_pinned = matches!(source, SlabSource::Pinned(_));
        for pinned in [wants_pinned, false] {
            if let Some(slab) = self.shelves.get_mut(&(pinned, len)).and_then(Vec::pop) {
                self.idle -= bytes;
                self.taken(bytes);
                return Some(slab);
            }
        }
        if !self.limit.allows_more(self.in_use + self.idle, bytes) {
            self.give_idle_back();
        }
        let slab = match source {
            SlabSource::Pinned(allocate) => match allocate(len) {
                Some(memory) => Slab::Pinned(memory),
                None => self.fallback(len)?,
            },
            SlabSource::Heap => heap(len)?,
        };
        self.taken(bytes);
        Some(slab)
    }

    fn taken(&mut self, bytes: u64) {
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
    }

    fn fallback(&mut self, len: usize) -> Option<Slab> {
        if self.pageable_fallbacks == 0 {
            tracing::warn!(
                target: crate::journal::TARGET,
                "the driver refuses more page-locked host memory; going on with ordinary memory, which copies slower"
            );
        }
        self.pageable_fallbacks += 1;
        heap(len)
    }

    fn give_idle_back(&mut self) {
        self.shelves.clear();
        self.idle = 0;
    }
}

/// Zeroed memory, or nothing: an allocation this large must not abort the process.
fn heap(len: usize) -> Option<Slab> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(len).ok()?;
    memory.resize(len, 0);
    Some(Slab::Heap(memory.into_boxed_slice()))
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
    /// The contents are complete.
    pub fn seal(self) -> Lease {
        Lease(Arc::new(self.0))
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

    /// The contents for changing in place, unless an upload still reads them.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.0).map(|held| held.slab_mut().bytes_mut())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(slab) = self.slab.take() else { return };
        let len = slab.bytes().len();
        let mut books = self.pool.books();
        books.in_use -= len as u64;
        books.idle += len as u64;
        books.shelves.entry((slab.is_pinned(), len)).or_default().push(slab);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUNDRED: Limit = Limit::bytes(100);

    fn copy(pool: &Arc<HostPool>, len: usize) -> Option<Lease> {
        let mut draft = pool.draft(len, SlabSource::Heap)?;
        draft.fill(7);
        Some(draft.seal())
    }

    #[test]
    fn the_limit_is_hard_and_counts_live_copies() {
        let pool = HostPool::new(HUNDRED);
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
        let pool = HostPool::new(HUNDRED);
        let address = copy(&pool, 50).expect("fits").bytes().as_ptr();
        assert_eq!(pool.usage().reserved, 50);
        assert_eq!(copy(&pool, 50).expect("fits").bytes().as_ptr(), address);
    }

    #[test]
    fn idle_slabs_give_way_to_a_copy_of_another_size() {
        let pool = HostPool::new(HUNDRED);
        drop(copy(&pool, 80));
        assert!(copy(&pool, 90).is_some());
        assert!(pool.usage().reserved <= 100);
    }

    #[test]
    fn trimming_leaves_only_slabs_in_use() {
        let pool = HostPool::new(HUNDRED);
        let kept = copy(&pool, 10);
        drop(copy(&pool, 50));
        pool.trim();
        assert_eq!(pool.usage().reserved, 10);
        drop(kept);
    }

    #[test]
    fn a_draft_that_is_never_sealed_takes_no_room() {
        let pool = HostPool::new(HUNDRED);
        let draft = pool.draft(60, SlabSource::Heap).expect("fits");
        assert_eq!(pool.room(), Limit::bytes(40), "it counts while it is written");
        drop(draft);
        assert_eq!(pool.room(), HUNDRED);
    }

    #[test]
    fn pinned_memory_that_is_refused_is_replaced_and_counted() {
        let pool = HostPool::new(HUNDRED);
        let draft = pool.draft(10, SlabSource::Pinned(|_| None)).expect("ordinary memory serves");
        assert!(!draft.seal().is_pinned());
        assert_eq!(pool.usage().pageable_fallbacks, 1);
    }
}
