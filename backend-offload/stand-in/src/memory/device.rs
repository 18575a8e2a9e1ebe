//! Device memory: allocations with guards, their written ranges, and freed ranges.
//!
//! An allocation ends near the end of a page. The rest of its pages holds a pattern, checked at its free and after its
//! kernels.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{
    address_space::{AddressSpace, Owner, PAGE},
    extents::Extents,
    granules::{Granules, Place},
    pool::Pool,
    rows::{Rows, fill},
    written::Written,
};
use crate::{
    findings::{Fault, Finding},
    report,
    settings::Memory,
};

pub(crate) const FRESH: u8 = 0xCB;
const GUARD: u8 = 0xA5;
/// As on CUDA; also the least guard before an allocation.
const ALIGNMENT: u64 = 512;

#[derive(Debug)]
struct Block {
    range: Range<u64>,
    pages: Range<u64>,
    device: usize,
    place: Place,
    freed: bool,
    written: Written,
    extents: Extents,
}

#[derive(Debug)]
pub(crate) struct DeviceMemory {
    space: AddressSpace,
    blocks: BTreeMap<u64, Block>,
    freed_ranges: BTreeMap<u64, u64>,
    capacity: u64,
    /// Bytes of granules in use.
    used: [u64; 4],
    granules: [Granules; 4],
    pools: [Pool; 4],
}

impl DeviceMemory {
    pub(crate) fn new(settings: &Memory) -> Self {
        Self {
            space: AddressSpace::new(Owner::Device, settings.reuse),
            blocks: BTreeMap::new(),
            freed_ranges: BTreeMap::new(),
            capacity: settings.device,
            used: [0; 4],
            granules: [(); 4].map(|()| Granules::new(settings.granule)),
            pools: [Pool::default(); 4],
        }
    }

    pub(crate) fn pool(&mut self, device: usize) -> &mut Pool {
        &mut self.pools[device]
    }

    /// Bytes unavailable to other processes.
    pub(crate) fn mapped(&self, device: usize) -> u64 {
        self.used[device] + self.pools[device].unused()
    }

    /// Returns the bytes unmapped.
    pub(crate) fn after_host_wait(&mut self) -> u64 {
        (0..self.pools.len()).map(|device| self.unmap(device, self.pools[device].release_threshold)).sum()
    }

    pub(crate) fn unmap(&mut self, device: usize, mapped: u64) -> u64 {
        let unmapped = self.pools[device].trim_to(mapped, self.used[device]);
        report::count(|counters| counters.device.unmapped_bytes += unmapped);
        unmapped
    }

    pub(crate) fn used(&self, device: usize) -> u64 {
        self.used[device]
    }

    pub(crate) fn fits(&self, size: u64, device: usize) -> bool {
        self.granules[device].needed(size) <= self.capacity - self.used[device]
    }

    /// `None` if there is no room. Zero until the caller poisons it, in stream order.
    pub(crate) fn allocate(&mut self, size: u64, device: usize) -> Option<u64> {
        if !self.fits(size, device) {
            return None;
        }
        let length = (size.next_multiple_of(ALIGNMENT) + ALIGNMENT).next_multiple_of(PAGE);
        let page = self.space.commit(length)?;
        let pages = page..page + length;
        let start = pages.end - size.next_multiple_of(ALIGNMENT);
        let bytes = self.granules[device].needed(size);
        let place = self.granules[device].take(size);
        let block = Block {
            range: start..start + size,
            pages,
            device,
            place,
            freed: false,
            written: Written::default(),
            extents: Extents::default(),
        };
        for guard in block.guards() {
            // SAFETY: the pages were just committed and nothing else uses them.
            unsafe { fill(Rows::plain(guard.start, guard.end - guard.start), GUARD) }
        }
        self.used[device] += bytes;
        self.pools[device].allocated(bytes);
        self.blocks.insert(start, block);
        Some(start)
    }

    /// Later calls must not use the memory; its bytes live until [`release`](Self::release).
    pub(crate) fn mark_freed(&mut self, start: u64) -> Result<Range<u64>, Fault> {
        let was_freed = self.freed_ranges.contains_key(&start);
        match self.blocks.get_mut(&start) {
            Some(block) if !block.freed => {
                block.freed = true;
                Ok(block.range.clone())
            }
            None if !was_freed => Err(Fault::new(
                Finding::OutsideMemory,
                format!("{start:#x} is freed, but no allocation of device memory starts there"),
            )),
            _ => Err(Fault::new(
                Finding::DoubleFree,
                format!("device memory at {start:#x} is freed once more"),
            )),
        }
    }

    pub(crate) fn release(&mut self, start: u64) -> Result<(), Fault> {
        let block = self.blocks.remove(&start).expect("only what was marked is released");
        let intact = block.check_guards("its free");
        self.space.retire(block.pages.start, block.pages.end - block.pages.start);
        let bytes = self.granules[block.device].give_back(block.place);
        self.used[block.device] -= bytes;
        self.pools[block.device].freed(bytes);
        self.freed_ranges.insert(block.range.start, block.range.end);
        intact
    }

    /// The range must lie within one allocation that is not freed.
    pub(crate) fn check(&self, range: &Range<u64>, actor: &str) -> Result<Range<u64>, Fault> {
        let block = self.allocation_of(range, actor)?;
        if block.freed {
            return Err(self.no_memory_fault(range, actor));
        }
        Ok(block.range.clone())
    }

    /// [`check`](Self::check) for queued work, which may precede a requested free.
    pub(crate) fn check_pending(&self, range: &Range<u64>, actor: &str) -> Result<Range<u64>, Fault> {
        self.allocation_of(range, actor).map(|block| block.range.clone())
    }

    /// A kernel reaches its own device only: no program asks for access to another.
    pub(crate) fn check_device(&self, address: u64, device: usize, actor: &str) -> Result<(), Fault> {
        let block = self.allocation_of(&(address..address + 1), actor)?;
        if block.device == device {
            return Ok(());
        }
        let other = block.device;
        let circumstances =
            format!("{actor} runs on device {device} and touches memory of device {other} at {address:#x}");
        Err(Fault::new(Finding::OtherDevice, circumstances))
    }

    fn allocation_of(&self, range: &Range<u64>, actor: &str) -> Result<&Block, Fault> {
        let block = self.blocks.range(..=range.start).next_back().map(|(_, block)| block);
        let block = block.filter(|block| block.range.contains(&range.start));
        let block = block.ok_or_else(|| self.no_memory_fault(range, actor))?;
        if range.end > block.range.end {
            let circumstances = format!(
                "{actor} touches {} bytes at offset {} of an allocation of {} bytes",
                range.end - range.start,
                range.start - block.range.start,
                block.range.end - block.range.start
            );
            return Err(Fault::new(Finding::OutsideMemory, circumstances));
        }
        Ok(block)
    }

    fn no_memory_fault(&self, range: &Range<u64>, actor: &str) -> Fault {
        let was_freed =
            self.freed_ranges.range(..=range.start).next_back().is_some_and(|(_, end)| range.start < *end);
        let pending = self.blocks.values().any(|block| block.freed && block.range.contains(&range.start));
        let size = range.end - range.start;
        let at = range.start;
        if was_freed || pending {
            let circumstances =
                format!("{actor} touches {size} bytes at {at:#x}, in device memory that was freed");
            Fault::new(Finding::UseAfterFree, circumstances)
        } else {
            let circumstances = format!("{actor} touches {size} bytes at {at:#x}, where no device memory is");
            Fault::new(Finding::OutsideMemory, circumstances)
        }
    }

    pub(crate) fn extent_of(&mut self, operand: u64) -> u64 {
        self.block_of(operand).map_or(0, |block| block.extents.extent_of(operand, &block.range))
    }

    pub(crate) fn note_kernel(&mut self, operand: u64) {
        if let Some(block) = self.block_of(operand) {
            let rest = operand..block.range.end;
            block.written.insert(rest);
        }
    }

    pub(crate) fn note_written(&mut self, rows: Rows) {
        if let Some(block) = self.block_of(rows.start) {
            rows.each().for_each(|row| block.written.insert(row));
        }
    }

    /// Copies the written state too: moving unwritten bytes is no fault.
    pub(crate) fn note_copied(&mut self, to: Rows, from: Rows) {
        for (to, from) in to.each().zip(from.each()) {
            let parts =
                self.block_of(from.start).map(|block| block.written.within(&from)).unwrap_or_default();
            let Some(target) = self.block_of(to.start) else { continue };
            for part in parts {
                target.written.insert(part.start - from.start + to.start..part.end - from.start + to.start);
            }
        }
    }

    pub(crate) fn check_written(&mut self, rows: Rows, actor: &str) -> Result<(), Fault> {
        let Some(block) = self.block_of(rows.start) else { return Ok(()) };
        let Some(row) = rows.each().find(|row| !block.written.covers(row)) else { return Ok(()) };
        let written: u64 = block.written.within(&row).iter().map(|part| part.end - part.start).sum();
        let circumstances = format!(
            "{actor} reads {} bytes at offset {} of an allocation of {} bytes, of which {written} were ever written",
            row.end - row.start,
            row.start - block.range.start,
            block.range.end - block.range.start,
        );
        Err(Fault::new(Finding::UnwrittenRead, circumstances))
    }

    fn block_of(&mut self, address: u64) -> Option<&mut Block> {
        let block = self.blocks.range_mut(..=address).next_back().map(|(_, block)| block);
        block.filter(|block| block.range.contains(&address))
    }

    pub(crate) fn check_guards(&self, operands: Option<&[u64]>, actor: &str) -> Result<(), Fault> {
        let Some(operands) = operands else {
            return self.blocks.values().try_for_each(|block| block.check_guards(actor));
        };
        let holding = |at: &u64| self.blocks.range(..=*at).next_back().map(|(start, _)| *start);
        let starts: BTreeSet<u64> = operands.iter().filter_map(holding).collect();
        starts.iter().try_for_each(|start| self.blocks[start].check_guards(actor))
    }
}

impl Block {
    fn guards(&self) -> [Range<u64>; 2] {
        [self.pages.start..self.range.start, self.range.end..self.pages.end]
    }

    fn check_guards(&self, actor: &str) -> Result<(), Fault> {
        for guard in self.guards() {
            let start = std::ptr::with_exposed_provenance::<u8>(guard.start as usize);
            // SAFETY: the pages of a live block are readable, and no kernel runs meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts(start, (guard.end - guard.start) as usize) };
            let Some(at) = bytes.iter().position(|byte| *byte != GUARD) else { continue };
            let offset = (guard.start + at as u64).wrapping_sub(self.range.start).cast_signed();
            let circumstances = format!(
                "found by {actor}: the byte at offset {offset} of an allocation of {} bytes was written",
                self.range.end - self.range.start
            );
            return Err(Fault::new(Finding::WrittenOutside, circumstances));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
