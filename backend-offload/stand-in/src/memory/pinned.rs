//! Page-locked host memory, accessed at the copy. Other host memory is pageable, accessed at the call.

use std::{collections::BTreeMap, ops::Range};

use super::{
    address_space::{AddressSpace, Owner},
    device::FRESH,
    rows::{Rows, fill},
};
use crate::findings::{Fault, Finding};

#[derive(Debug)]
pub(crate) struct PinnedMemory {
    space: AddressSpace,
    blocks: BTreeMap<u64, u64>,
    freed_ranges: BTreeMap<u64, u64>,
    used: u64,
    limit: u64,
    /// Whether new memory is written.
    fresh: bool,
}

impl PinnedMemory {
    pub(crate) fn new(limit: u64, fresh: bool) -> Self {
        Self {
            space: AddressSpace::new(Owner::Pinned, false),
            blocks: BTreeMap::new(),
            freed_ranges: BTreeMap::new(),
            used: 0,
            limit,
            fresh,
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// `None` beyond the limit.
    pub(crate) fn allocate(&mut self, size: u64) -> Option<u64> {
        if size > self.limit - self.used {
            return None;
        }
        let start = self.space.commit(size)?;
        if self.fresh {
            // SAFETY: the pages were just committed and nothing else uses them.
            unsafe { fill(Rows::plain(start, size), FRESH) }
        }
        self.blocks.insert(start, start + size);
        self.used += size;
        Some(start)
    }

    /// A freed or partly page-locked range is a fault.
    pub(crate) fn check(&self, range: &Range<u64>, actor: &str) -> Result<bool, Fault> {
        let at = range.start;
        match find(&self.blocks, at) {
            Some(block) if range.end > block.end => Err(Fault::new(
                Finding::OutsideMemory,
                format!(
                    "{actor} touches {} bytes at offset {} of {} bytes of pinned memory",
                    range.end - at,
                    at - block.start,
                    block.end - block.start
                ),
            )),
            Some(_) => Ok(true),
            None if find(&self.freed_ranges, at).is_some() => Err(Fault::new(
                Finding::FreedPinned,
                format!("{actor} touches {} bytes at {at:#x}, which were freed", range.end - at),
            )),
            None => Ok(false),
        }
    }

    /// Of the allocation at this address.
    pub(crate) fn start_of(&self, at: u64) -> u64 {
        find(&self.blocks, at).map_or(at, |block| block.start)
    }

    pub(crate) fn starting_at(&self, start: u64) -> Result<Option<Range<u64>>, Fault> {
        if self.freed_ranges.contains_key(&start) {
            let circumstances = format!("pinned memory at {start:#x} is freed once more");
            return Err(Fault::new(Finding::DoubleFree, circumstances));
        }
        Ok(self.blocks.get(&start).map(|end| start..*end))
    }

    pub(crate) fn release(&mut self, start: u64) {
        let Some(end) = self.blocks.remove(&start) else { return };
        self.space.retire(start, end - start);
        self.used -= end - start;
        self.freed_ranges.insert(start, end);
    }
}

fn find(blocks: &BTreeMap<u64, u64>, at: u64) -> Option<Range<u64>> {
    blocks.range(..=at).next_back().map(|(start, end)| *start..*end).filter(|block| block.contains(&at))
}
