//! The host pool's idle slabs, by page-locking and size.

use super::slab::Slab;
use std::collections::HashMap;

#[derive(Debug, Default)]
pub(super) struct Shelves {
    by_size: HashMap<(bool, usize), Shelf>,
    bytes: u64,
    requests: u64,
}

#[derive(Debug, Default)]
struct Shelf {
    slabs: Vec<Slab>,
    asked: u64,
}

impl Shelves {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn pinned_bytes(&self) -> u64 {
        let pinned = self.by_size.iter().filter(|((pinned, _), _)| *pinned);
        pinned.map(|((_, len), shelf)| (*len * shelf.slabs.len()) as u64).sum()
    }

    /// Page-locked if possible and wanted.
    pub(super) fn take(&mut self, len: usize, wants_pinned: bool) -> Option<Slab> {
        self.requests += 1;
        for pinned in [wants_pinned, false] {
            let Some(shelf) = self.by_size.get_mut(&(pinned, len)) else { continue };
            shelf.asked = self.requests;
            if let Some(slab) = shelf.slabs.pop() {
                self.bytes -= len as u64;
                return Some(slab);
            }
        }
        None
    }

    pub(super) fn note_request(&mut self, len: usize, pinned: bool) {
        self.by_size.entry((pinned, len)).or_default().asked = self.requests;
    }

    pub(super) fn put(&mut self, slab: Slab) {
        let len = slab.bytes().len();
        self.bytes += len as u64;
        self.by_size.entry((slab.is_pinned(), len)).or_default().slabs.push(slab);
    }

    /// Removes at least `excess` bytes of one kind, if possible; longest unrequested sizes first.
    pub(super) fn trim(&mut self, mut excess: u64, pinned: bool) -> Vec<Slab> {
        let mut freed = Vec::new();
        while excess > 0 {
            let shelves = self.by_size.iter_mut();
            let shelves =
                shelves.filter(|((is_pinned, _), shelf)| *is_pinned == pinned && !shelf.slabs.is_empty());
            let Some(((_, len), shelf)) = shelves.min_by_key(|(_, shelf)| shelf.asked) else { break };
            let (len, count) = (*len as u64, excess.div_ceil((*len as u64).max(1)));
            let kept = (shelf.slabs.len() as u64).saturating_sub(count) as usize;
            let removed = len * (shelf.slabs.len() - kept) as u64;
            freed.extend(shelf.slabs.drain(kept..));
            self.bytes -= removed;
            excess = excess.saturating_sub(removed);
        }
        freed
    }

    pub(super) fn clear(&mut self) -> Vec<Slab> {
        self.bytes = 0;
        self.by_size.drain().flat_map(|(_, shelf)| shelf.slabs).collect()
    }
}
