//! One device's copies on host and disk, by block.
//!
//! A change cancels a block's write ahead; a spill finishes it
//! (`a_block_written_ahead_is_spilled_with_its_present_contents`).

use super::bounce::BACKGROUND_BUFFERS;
use super::checksum::checksum;
use super::disk::{BackgroundWrite, Disk, Joined, Landing, Spilled, Writing};
use super::extents::ALIGNMENT;
use super::pool::{Draft, HostPool, Lease};
use super::slab::SlabSource;
use crate::error::OffloadError;
use pager::{BlockId, Limit, Rooms, Tier};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[derive(Debug)]
pub struct Tiers {
    pool: Arc<HostPool>,
    source: SlabSource,
    paranoid: bool,
    disk: Option<Joined>,
    traffic: Arc<Traffic>,
    copies: HashMap<BlockId, Kept>,
    spilled: HashMap<BlockId, Spilled>,
    ahead: Option<(BlockId, Writing)>,
    loading: Option<(BlockId, Draft, Landing)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Below {
    pub pool: Arc<HostPool>,
    pub disk: Option<Arc<Disk>>,
    pub traffic: Arc<Traffic>,
}

#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub written: AtomicU64,
    pub read: AtomicU64,
}

/// A whole write needs no read from the disk, and leaves only padding as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    Whole,
    Part,
}

#[derive(Debug)]
struct Kept {
    lease: Lease,
    checksum: Option<u64>,
}

impl Tiers {
    pub const READ_AHEAD: usize = BACKGROUND_BUFFERS;

    pub(crate) fn new(pool: Arc<HostPool>, source: SlabSource, paranoid: bool) -> Self {
        let traffic = Arc::default();
        let (copies, spilled) = (HashMap::new(), HashMap::new());
        let (ahead, loading) = (None, None);
        Self { pool, source, paranoid, disk: None, traffic, copies, spilled, ahead, loading }
    }

    pub(crate) fn above(self, disk: Option<Arc<Disk>>) -> Self {
        Self { disk: disk.map(Disk::join), ..self }
    }

    pub fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    pub fn loads_ahead(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.has_one_device())
    }

    pub fn rooms(&self) -> Rooms {
        let disk = self.disk.as_ref().map_or(Limit::bytes(0), |disk| disk.room());
        Rooms { host: self.pool.room(), disk, page: ALIGNMENT }
    }

    pub(crate) fn below(&self) -> Below {
        Below { pool: self.pool.clone(), disk: self.disk.as_deref().cloned(), traffic: self.traffic.clone() }
    }

    pub(crate) fn pool(&self) -> &Arc<HostPool> {
        &self.pool
    }

    /// To be [kept](Self::keep) once written.
    pub fn draft(&self, len: usize) -> Result<Draft, String> {
        self.pool.draft(len, self.source).ok_or_else(|| "the host has no memory left for it".to_owned())
    }

    pub fn keep(&mut self, block: BlockId, draft: Draft) {
        let copy = self.seal(draft.seal());
        self.copies.insert(block, copy);
        self.forget_below(block);
    }

    /// Also cancels transfers ahead.
    fn forget_below(&mut self, block: BlockId) {
        self.spilled.remove(&block);
        self.ahead.take_if(|(id, _)| *id == block);
        self.loading.take_if(|(id, ..)| *id == block);
    }

    /// Releases the block's host memory once the disk has its contents.
    pub fn spill(&mut self, block: BlockId) -> Result<(), OffloadError> {
        if !self.spilled.contains_key(&block) {
            // Damaged host memory must not become the contents.
            let lease = self.verified(block)?;
            let disk =
                self.disk.as_ref().ok_or_else(|| missing("spilling a block", block, "there is no disk"))?;
            let begun = self.ahead.take_if(|(id, _)| *id == block);
            let spilled = match begun {
                Some((_, writing)) => writing.finish(lease.bytes())?,
                None => disk.write(lease.bytes())?,
            };
            self.spilled.insert(block, spilled);
        }
        self.copies.remove(&block);
        Ok(())
    }

    /// Cancels another block's write ahead. True once the disk has all bytes.
    pub fn write_ahead(&mut self, block: BlockId) -> Result<bool, OffloadError> {
        let begun = self.ahead.take().filter(|(id, _)| *id == block);
        let Some(disk) = &self.disk else { return Ok(false) };
        let Some(copy) = self.copies.get(&block) else { return Ok(false) };
        let bytes = copy.lease.bytes();
        let Some(writing) =
            begun.map(|(_, writing)| writing).or_else(|| disk.begin_in_background(bytes.len()))
        else {
            return Ok(false);
        };
        match writing.continue_in_background(bytes)? {
            BackgroundWrite::UnderWay(writing) => self.ahead = Some((block, writing)),
            BackgroundWrite::Done(spilled) => {
                self.verified(block)?;
                self.spilled.insert(block, spilled);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// False if there are none.
    pub fn cancel_ahead(&mut self) -> bool {
        self.ahead.take().is_some() | self.loading.take().is_some()
    }

    /// False without host memory.
    pub fn begin_load(&mut self, block: BlockId) -> Result<bool, OffloadError> {
        let draft = self.draft(self.spilled(block)?.len()).ok();
        self.loading = draft.map(|draft| (block, draft, Landing::default()));
        Ok(self.loading.is_some())
    }

    /// Does not wait. True once the block is on the host; the disk keeps its copy.
    pub fn load_ahead(&mut self, block: BlockId) -> Result<bool, OffloadError> {
        let Some((_, mut draft, landing)) = self.loading.take_if(|(id, ..)| *id == block) else {
            return Err(missing("loading a block ahead", block, "it was not begun"));
        };
        match self.spilled(block)?.read_in_background(&mut draft, landing)? {
            Some(landing) => {
                self.loading = Some((block, draft, landing));
                return Ok(false);
            }
            None => self.copies.insert(block, self.seal(draft.seal())),
        };
        Ok(true)
    }

    fn spilled(&self, block: BlockId) -> Result<&Spilled, OffloadError> {
        self.spilled.get(&block).ok_or_else(|| missing("loading a block", block, "it is not on the disk"))
    }

    /// As many bytes as were written: a buffer may be shorter than its block.
    pub fn load(&mut self, block: BlockId) -> Result<(), OffloadError> {
        let begun = self.loading.take_if(|(id, ..)| *id == block);
        let (mut draft, landing) = if let Some((_, draft, landing)) = begun {
            (draft, landing)
        } else {
            let len = self.spilled(block)?.len();
            (self.draft(len).map_err(|_| self.refused(len as u64))?, Landing::default())
        };
        self.spilled(block)?.read_rest(&mut draft, landing)?;
        let copy = self.seal(draft.seal());
        self.copies.insert(block, copy);
        Ok(())
    }

    fn refused(&self, wanted: u64) -> OffloadError {
        let usage = self.pool.usage();
        OffloadError::HostRefused {
            operation: "loading a block from the disk".to_owned(),
            wanted,
            in_use: usage.in_use,
            budget: usage.limit.get(),
        }
    }

    /// Best effort: allocates nothing and never fails.
    pub fn read_ahead(&self, soon: &[BlockId]) {
        if let Some(disk) = &self.disk {
            let loading = self.loading.as_ref().map(|(block, ..)| block);
            let soon = soon.iter().filter(|block| Some(*block) != loading);
            let soon: Vec<_> = soon.filter_map(|block| self.spilled.get(block)).collect();
            disk.read_ahead(&soon, loading.and_then(|block| self.spilled.get(block)));
        }
    }

    pub fn drop_copy(&mut self, block: BlockId, tier: Tier) {
        if tier == Tier::Disk {
            self.spilled.remove(&block);
        } else {
            self.copies.remove(&block);
            self.ahead.take_if(|(id, _)| *id == block);
        }
    }

    fn seal(&self, lease: Lease) -> Kept {
        let checksum = self.paranoid.then(|| checksum(lease.bytes()));
        Kept { lease, checksum }
    }

    /// Whether the copy's memory is shared, as with an upload.
    pub fn is_lent(&self, block: BlockId) -> bool {
        self.get(block).is_some_and(Lease::is_shared)
    }

    pub fn get(&self, block: BlockId) -> Option<&Lease> {
        self.copies.get(&block).map(|copy| &copy.lease)
    }

    pub fn verified(&self, block: BlockId) -> Result<Lease, OffloadError> {
        let copy = self
            .copies
            .get(&block)
            .ok_or_else(|| missing("a restore", block, "it has no copy on the host"))?;
        if let Some(expected) = copy.checksum {
            let bytes = copy.lease.bytes();
            let found = checksum(bytes);
            if found != expected {
                return Err(OffloadError::HostCopyDamaged { bytes: bytes.len() as u64, expected, found });
            }
        }
        Ok(copy.lease.clone())
    }

    pub fn remove(&mut self, block: BlockId) {
        self.copies.remove(&block);
        self.forget_below(block);
    }

    /// In place, in a duplicate during an upload, or in zeros without a copy. Without memory, returns false and changes
    /// nothing.
    pub(crate) fn edit(
        &mut self,
        block: BlockId,
        len: usize,
        share: Share,
        edit: impl FnOnce(&mut [u8]),
    ) -> bool {
        // Written pages of a dry run would take memory.
        let is_hollow = self.pool.is_hollow(len);
        let edit = |bytes: &mut [u8]| {
            if !is_hollow {
                edit(bytes);
            }
        };
        if let Some(copy) = self.copies.get_mut(&block)
            && let Some(bytes) = copy.lease.bytes_mut()
        {
            edit(bytes);
            copy.checksum = self.paranoid.then(|| checksum(copy.lease.bytes()));
            self.forget_below(block);
            return true;
        }
        let Ok(mut draft) = self.draft(len) else { return false };
        match (share, self.get(block), self.spilled.get(&block)) {
            _ if is_hollow => {}
            (Share::Part, None, None) => draft.fill(0),
            (Share::Part, Some(lease), _) => draft.copy_from_slice(lease.bytes()),
            (Share::Part, None, Some(spilled)) if spilled.read(&mut draft).is_err() => return false,
            // Clearing a 7B model's weights would take seconds without a launch.
            (Share::Part, None, Some(_)) | (Share::Whole, ..) => {}
        }
        edit(&mut draft);
        self.keep(block, draft);
        true
    }

    #[cfg(test)]
    pub fn on_disk(&self, block: BlockId) -> Option<Vec<u8>> {
        let spilled = self.spilled.get(&block)?;
        let mut bytes = vec![0; spilled.len()];
        let disk = self.disk.as_ref().expect("something is on it");
        disk.while_whole(|| spilled.read(&mut bytes)).expect("as it was written");
        Some(bytes)
    }

    #[cfg(test)]
    pub fn loading(&self) -> Option<(BlockId, u64)> {
        self.loading.as_ref().map(|(block, draft, _)| (*block, draft.len() as u64))
    }

    #[cfg(test)]
    pub fn held_on_disk(&self) -> u64 {
        self.spilled.values().map(|spilled| spilled.len() as u64).sum()
    }

    #[cfg(test)]
    pub fn corrupt(&mut self, block: BlockId) {
        let copy = self.copies.get_mut(&block).expect("a copy");
        copy.lease.bytes_mut().expect("no upload reads it")[7] ^= 1;
    }
}

fn missing(attempted: &str, block: BlockId, what: &str) -> OffloadError {
    OffloadError::Bookkeeping {
        operation: attempted.to_owned(),
        fault: format!("block {}.{}: {what}", block.index, block.generation),
    }
}

#[cfg(test)]
mod tests {
    use super::super::bounce::PIECE;
    use super::super::disk::in_memory;
    use super::super::extents::ALIGNMENT;
    use super::*;
    use pager::Limit;

    const BLOCK: BlockId = BlockId { index: 0, generation: 0 };

    fn tiers() -> Tiers {
        Tiers::new(HostPool::new(Limit::bytes(100), Limit::NONE), SlabSource::Heap, true)
    }

    #[test]
    fn a_copy_edited_under_an_upload_leaves_the_upload_its_bytes() {
        let mut tiers = tiers();
        assert!(tiers.edit(BLOCK, 40, Share::Part, |bytes| bytes[0] = 1));
        let upload = tiers.verified(BLOCK).expect("as it was kept");
        assert!(tiers.edit(BLOCK, 40, Share::Part, |bytes| bytes[0] = 2));
        assert_eq!(upload.bytes()[0], 1);
        assert_eq!(tiers.verified(BLOCK).expect("as it was kept").bytes()[0], 2);
        assert_eq!(tiers.pool().room(), Limit::bytes(20), "both count");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn edits_of_a_dry_run_write_no_large_block() {
        const LARGE: usize = 1 << 20;
        let mut tiers = tiers();
        tiers.pool.run_dry();
        for share in [Share::Part, Share::Whole, Share::Part] {
            assert!(tiers.edit(BLOCK, LARGE, share, |_| unreachable!("it has no memory")));
        }
        let small = BlockId { index: 1, generation: 0 };
        assert!(tiers.edit(small, 40, Share::Part, |bytes| bytes[0] = 1));
        assert_eq!(tiers.get(small).expect("it is kept").bytes()[0], 1);
    }

    #[test]
    fn an_edit_without_memory_for_it_changes_nothing() {
        let mut tiers = tiers();
        assert!(!tiers.edit(BLOCK, 101, Share::Part, |_| unreachable!("nothing to edit")));
        assert!(tiers.edit(BLOCK, 60, Share::Part, |bytes| bytes[0] = 1));
        let upload = tiers.verified(BLOCK).expect("as it was kept");
        assert!(!tiers.edit(BLOCK, 60, Share::Part, |_| unreachable!("nothing to edit")));
        assert_eq!(tiers.get(BLOCK).expect("still there").bytes(), upload.bytes());
    }

    #[test]
    fn a_block_with_a_copy_on_the_disk_is_not_written_again_until_it_changes() {
        let disk = in_memory(3).expect("three pages");
        let mut tiers = tiers().above(Some(disk.clone()));
        assert!(tiers.edit(BLOCK, 40, Share::Whole, |bytes| bytes.fill(3)));
        for _ in 0..2 {
            tiers.spill(BLOCK).expect("room");
            assert_eq!(tiers.pool().room(), Limit::bytes(100));
            tiers.load(BLOCK).expect("as it was written");
        }
        assert_eq!(disk.usage().peak, ALIGNMENT, "a second one would take another page");
        assert!(tiers.edit(BLOCK, 40, Share::Part, |bytes| bytes[0] = 4));
        assert_eq!(disk.usage().in_use, 0);
        tiers.spill(BLOCK).expect("room");
        tiers.load(BLOCK).expect("as it was written");
        assert_eq!(tiers.verified(BLOCK).expect("as it was kept").bytes()[..2], [4, 3]);
    }

    #[test]
    fn a_block_written_ahead_is_spilled_with_its_present_contents() {
        let len = 8 * PIECE + 5;
        let disk = in_memory(2 * len as u64 / ALIGNMENT + 2).expect("room for two");
        let pool = HostPool::new(Limit::NONE, Limit::NONE);
        let mut tiers = Tiers::new(pool, SlabSource::Heap, true).above(Some(disk.clone()));
        let numbered =
            |bytes: &mut [u8]| bytes.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n >> 9) as u8);

        assert!(tiers.edit(BLOCK, len, Share::Whole, numbered));
        assert!(!tiers.write_ahead(BLOCK).expect("as it was kept"), "there are fewer buffers than pieces");
        let taken = disk.usage().in_use;

        assert!(tiers.edit(BLOCK, len, Share::Part, |bytes| bytes[1] = 77));
        assert_eq!(disk.usage().in_use, 0, "what was begun is not its contents");
        assert!(!tiers.write_ahead(BLOCK).expect("as it was kept"));
        assert_eq!(disk.usage().in_use, taken);

        tiers.spill(BLOCK).expect("room");
        assert_eq!(disk.usage().in_use, taken, "it went on where it was");
        tiers.load(BLOCK).expect("as it was written");

        let mut expected = vec![0; len];
        numbered(&mut expected);
        expected[1] = 77;
        assert!(tiers.verified(BLOCK).expect("as it was kept").bytes() == expected);
        assert!(!tiers.cancel_ahead());
    }

    #[test]
    fn a_block_that_is_written_ahead_stays_on_the_host() {
        let disk = in_memory(3).expect("three pages");
        let mut tiers = tiers().above(Some(disk.clone()));
        assert!(tiers.edit(BLOCK, 40, Share::Whole, |bytes| bytes.fill(3)));
        assert!(tiers.write_ahead(BLOCK).expect("as it was kept"));
        assert_eq!(tiers.get(BLOCK).expect("it stays").bytes(), [3; 40]);
        assert_eq!(tiers.on_disk(BLOCK).expect("the disk has it"), [3; 40]);
        tiers.spill(BLOCK).expect("for free");
        assert_eq!(disk.usage().peak, ALIGNMENT);
    }

    fn load_to_the_end(tiers: &mut Tiers) {
        while !tiers.load_ahead(BLOCK).expect("as it was written") {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_block_loaded_ahead_has_its_memory_from_the_start() {
        let mut tiers = tiers().above(in_memory(3));
        assert!(tiers.edit(BLOCK, 40, Share::Whole, |bytes| bytes.fill(3)));
        tiers.spill(BLOCK).expect("room");
        let taken = tiers.draft(61).expect("it is free");
        assert!(!tiers.begin_load(BLOCK).expect("it is on the disk"), "the host has less");
        drop(taken);
        assert!(tiers.begin_load(BLOCK).expect("it is on the disk"));
        assert_eq!(tiers.pool().room(), Limit::bytes(60));
        assert!(tiers.get(BLOCK).is_none());
        load_to_the_end(&mut tiers);
        assert_eq!(tiers.verified(BLOCK).expect("as it was kept").bytes(), [3; 40]);
        assert_eq!(tiers.on_disk(BLOCK).expect("the disk keeps it"), [3; 40]);
        assert_eq!(tiers.pool().room(), Limit::bytes(60));
        assert!(!tiers.cancel_ahead());
    }

    #[test]
    fn a_load_ahead_is_finished_cancelled_or_forgotten() {
        let mut tiers = tiers().above(in_memory(3));
        assert!(tiers.edit(BLOCK, 40, Share::Whole, |bytes| bytes.fill(3)));
        tiers.spill(BLOCK).expect("room");
        assert!(tiers.begin_load(BLOCK).expect("it is on the disk") && tiers.cancel_ahead());
        assert_eq!(tiers.pool().room(), Limit::bytes(100));
        assert!(tiers.begin_load(BLOCK).expect("it is on the disk"));
        let rest = tiers.draft(60).expect("it is free");
        tiers.load(BLOCK).expect("as it was written");
        drop(rest);
        assert_eq!(tiers.verified(BLOCK).expect("as it was kept").bytes(), [3; 40]);
        tiers.spill(BLOCK).expect("for free");
        assert!(tiers.begin_load(BLOCK).expect("it is on the disk"));
        assert!(tiers.edit(BLOCK, 40, Share::Part, |bytes| bytes[0] = 4));
        assert_eq!((tiers.loading(), tiers.pool().room()), (None, Limit::bytes(60)));
        assert_eq!(tiers.get(BLOCK).expect("edited").bytes()[..2], [4, 3]);
    }

    #[test]
    fn a_changed_copy_is_not_handed_out() {
        let mut tiers = tiers();
        assert!(tiers.edit(BLOCK, 40, Share::Whole, |bytes| bytes.fill(3)));
        tiers.corrupt(BLOCK);
        let error = tiers.verified(BLOCK).expect_err("changed");
        assert!(matches!(error, OffloadError::HostCopyDamaged { bytes: 40, .. }), "{error}");
        tiers.remove(BLOCK);
        assert_eq!(tiers.pool().room(), Limit::bytes(100));
    }
}
