//! Address space for allocations. Pages between them, and freed pages, are inaccessible.

use std::{
    collections::BTreeMap,
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

pub(crate) const PAGE: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Device,
    Pinned,
}

/// Atomic, because the fault handler cannot take a lock.
static RESERVED: [(AtomicU64, AtomicU64); 2] =
    [(AtomicU64::new(0), AtomicU64::new(0)), (AtomicU64::new(0), AtomicU64::new(0))];

pub(crate) fn owner_of(address: u64) -> Option<Owner> {
    [Owner::Device, Owner::Pinned].into_iter().find(|owner| {
        let (start, end) = &RESERVED[*owner as usize];
        (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&address)
    })
}

/// Uses each page once, unless reuse is set, which hides a use after free.
#[derive(Debug)]
pub(super) struct AddressSpace {
    owner: Owner,
    next: u64,
    end: u64,
    reuse: bool,
    retired: BTreeMap<u64, Vec<u64>>,
}

/// Bytes. A used-up reservation is followed by another.
const RESERVATION: u64 = 4 << 40;

impl AddressSpace {
    pub(super) fn new(owner: Owner, reuse: bool) -> Self {
        Self { owner, next: 0, end: 0, reuse, retired: BTreeMap::new() }
    }

    /// Zeroed pages.
    pub(super) fn commit(&mut self, size: u64) -> Option<u64> {
        let size = size.next_multiple_of(PAGE);
        if size > RESERVATION - 2 * PAGE {
            return None;
        }
        if let Some(start) = self.retired.get_mut(&size).and_then(Vec::pop) {
            return map(start, size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED).then_some(start);
        }
        if self.next + size + PAGE > self.end {
            self.reserve()?;
        }
        let start = self.next;
        if !map(start, size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED) {
            return None;
        }
        self.next = start + size + PAGE;
        Some(start)
    }

    pub(super) fn retire(&mut self, start: u64, size: u64) {
        let size = size.next_multiple_of(PAGE);
        map(start, size, libc::PROT_NONE, libc::MAP_FIXED);
        if self.reuse {
            self.retired.entry(size).or_default().push(start);
        }
    }

    fn reserve(&mut self) -> Option<()> {
        // SAFETY: a fresh mapping at an address of the system's choice.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), RESERVATION as usize, libc::PROT_NONE, ANONYMOUS, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start as u64;
        self.next = start + PAGE;
        self.end = start + RESERVATION;
        let (known_start, known_end) = &RESERVED[self.owner as usize];
        known_end.store(self.end, Ordering::Relaxed);
        known_start.store(start, Ordering::Relaxed);
        Some(())
    }
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

fn map(start: u64, size: u64, protection: i32, flags: i32) -> bool {
    let address = ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: the pages lie within our reservation. They belong to no allocation, or to one that is made or freed here.
    unsafe { libc::mmap(address, size as usize, protection, ANONYMOUS | flags, -1, 0) != libc::MAP_FAILED }
}
