//! The limit on host copies, and the slabs that wait to be used again.

use super::slab::{Slab, SlabSource};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host memory of all devices of this process.
#[derive(Debug)]
pub(crate) struct HostTier {
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    limit: u64,
    in_use: u64,
    idle: u64,
    peak: u64,
    /// Idle slabs by size, pinned ones apart.
    shelves: HashMap<(bool, usize), Vec<Slab>>,
    pageable_fallbacks: u64,
}

/// A snapshot of the tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostUsage {
    pub limit: u64,
    pub in_use: u64,
    pub reserved: u64,
    pub peak: u64,
    pub pageable_fallbacks: u64,
}

/// A block's contents on the host. Cheap to clone; its bytes count until the last clone is gone, so that an
/// upload still reading from it cannot be overcommitted.
#[derive(Debug, Clone)]
pub(crate) struct HostCopy(Arc<Lease>);

#[derive(Debug)]
struct Lease {
    slab: Option<Slab>,
    tier: Arc<HostTier>,
}

impl HostTier {
    pub fn new(limit: u64) -> Arc<Self> {
        let books =
            Books { limit, in_use: 0, idle: 0, peak: 0, shelves: HashMap::new(), pageable_fallbacks: 0 };
        Arc::new(Self { books: Mutex::new(books) })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // The books are consistent after every statement that can panic.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_limit(&self, limit: u64) {
        self.books().limit = limit;
    }

    /// Bytes that can still be taken; idle slabs give way.
    pub fn room(&self) -> u64 {
        let books = self.books();
        books.limit.saturating_sub(books.in_use)
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
        let mut books = self.books();
        books.shelves.clear();
        books.idle = 0;
    }

    /// A copy of `len` bytes, its contents written by `fill`. `None` if the limit (or the machine) refuses.
    pub fn copy<E>(
        self: &Arc<Self>,
        len: usize,
        source: SlabSource,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Option<HostCopy>, E> {
        let Some(mut slab) = self.take(len, source) else { return Ok(None) };
        let filled = fill(slab.bytes_mut());
        let lease = Lease { slab: Some(slab), tier: self.clone() };
        filled.map(|()| Some(HostCopy(Arc::new(lease))))
    }

    fn take(&self, len: usize, source: SlabSource) -> Option<Slab> {
        let mut books = self.books();
        let bytes = len as u64;
        if books.in_use.saturating_add(bytes) > books.limit {
            return None;
        }
        let wants_pinned = matches!(source, SlabSource::Pinned(_));
        for pinned in [wants_pinned, false] {
            if let Some(slab) = books.shelves.get_mut(&(pinned, len)).and_then(Vec::pop) {
                books.idle -= bytes;
                books.taken(bytes);
                return Some(slab);
            }
        }
        if books.in_use + books.idle + bytes > books.limit {
            books.shelves.clear();
            books.idle = 0;
        }
        let slab = match source {
            SlabSource::Pinned(allocate) => {
                if let Some(memory) = allocate(len) {
                    Slab::Pinned(memory)
                } else {
                    if books.pageable_fallbacks == 0 {
                        tracing::warn!(
                            target: "backend_offload",
                            "the driver refuses more page-locked host memory; going on with ordinary memory, which copies slower"
                        );
                    }
                    books.pageable_fallbacks += 1;
                    heap(len)?
                }
            }
            SlabSource::Heap => heap(len)?,
        };
        books.taken(bytes);
        Some(slab)
    }
}

impl Books {
    fn taken(&mut self, bytes: u64) {
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
    }
}

/// Zeroed memory, or nothing: an allocation this large must not abort the process.
fn heap(len: usize) -> Option<Slab> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(len).ok()?;
    memory.resize(len, 0);
    Some(Slab::Heap(memory.into_boxed_slice()))
}

impl HostCopy {
    pub fn bytes(&self) -> &[u8] {
        self.0.slab.as_ref().expect("a lease holds its slab until it drops").bytes()
    }

    pub fn is_pinned(&self) -> bool {
        self.0.slab.as_ref().is_some_and(Slab::is_pinned)
    }

    /// The contents for changing in place, unless an upload still reads them.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let slab = Arc::get_mut(&mut self.0)?.slab.as_mut()?;
        Some(slab.bytes_mut())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(slab) = self.slab.take() else { return };
        let len = slab.bytes().len();
        let mut books = self.tier.books();
        books.in_use -= len as u64;
        books.idle += len as u64;
        books.shelves.entry((slab.is_pinned(), len)).or_default().push(slab);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(tier: &Arc<HostTier>, len: usize) -> Option<HostCopy> {
        let filled: Result<_, ()> = tier.copy(len, SlabSource::Heap, |bytes| {
            bytes.fill(7);
            Ok(())
        });
        filled.expect("filling cannot fail")
    }

    #[test]
    fn the_limit_is_hard_and_counts_live_copies() {
        let tier = HostTier::new(100);
        let first = copy(&tier, 60).expect("fits");
        assert!(copy(&tier, 41).is_none());
        let clone = first.clone();
        drop(first);
        assert_eq!(tier.room(), 40, "a clone keeps the bytes counted");
        drop(clone);
        assert_eq!(tier.room(), 100);
        assert!(copy(&tier, 100).is_some());
    }

    #[test]
    fn a_slab_of_the_same_size_is_used_again() {
        let tier = HostTier::new(100);
        let address = copy(&tier, 50).expect("fits").bytes().as_ptr();
        assert_eq!(tier.usage().reserved, 50);
        assert_eq!(copy(&tier, 50).expect("fits").bytes().as_ptr(), address);
    }

    #[test]
    fn idle_slabs_give_way_to_a_copy_of_another_size() {
        let tier = HostTier::new(100);
        drop(copy(&tier, 80));
        assert!(copy(&tier, 90).is_some());
        assert!(tier.usage().reserved <= 100);
    }

    #[test]
    fn trimming_leaves_only_what_is_in_use() {
        let tier = HostTier::new(100);
        let kept = copy(&tier, 10);
        drop(copy(&tier, 50));
        tier.trim();
        assert_eq!(tier.usage().reserved, 10);
        drop(kept);
    }

    #[test]
    fn a_copy_that_could_not_be_filled_takes_no_room() {
        let tier = HostTier::new(100);
        let failed: Result<Option<HostCopy>, &str> = tier.copy(60, SlabSource::Heap, |_| Err("no"));
        assert!(failed.is_err());
        assert_eq!(tier.room(), 100);
    }

    #[test]
    fn pinned_memory_that_is_refused_is_replaced_and_counted() {
        let tier = HostTier::new(100);
        let refused: Result<_, ()> = tier.copy(10, SlabSource::Pinned(|_| None), |_| Ok(()));
        let copy = refused.expect("filling cannot fail").expect("ordinary memory serves");
        assert!(!copy.is_pinned());
        assert_eq!(tier.usage().pageable_fallbacks, 1);
    }
}
