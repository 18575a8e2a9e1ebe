//! Bytes left below the device, and loads from disk.
//!
//! Blocks pass the host unchanged (`any_program_above_a_disk_reads_what_it_wrote_from_all_three_tiers`). A loaded block
//! keeps its disk copy until written (`a_block_spills_again_without_a_write_until_it_changes`). Before a refusal, a
//! full disk drops copies that other tiers have (`a_full_disk_gives_up_what_other_tiers_have_before_it_refuses`), and
//! operands on the host may spill. This ends: evicted blocks stay away until the operation is ready, and loads wait for
//! device memory.

use crate::block::{BlockId, Place, Tier};
use crate::fault::Stop;
use crate::forecast::Future;
use crate::limit::Limit;
use crate::steps::Step;
use crate::view::View;

/// Bytes left in the tiers below the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rooms {
    /// In host memory.
    pub host: Limit,
    /// On the disk.
    pub disk: Limit,
    /// Unit of allocation on the disk, in bytes.
    pub page: u64,
}

impl Rooms {
    /// An endless host without a disk.
    pub const ENDLESS: Self = Self::without_disk(Limit::NONE);

    /// A host without a disk.
    pub const fn without_disk(host: Limit) -> Self {
        Self { host, disk: Limit::bytes(0), page: 1 }
    }

    pub(crate) fn on_disk(self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.page).unwrap_or(u64::MAX)
    }

    /// Room for a victim: unlimited if others can spill for it.
    pub(crate) fn for_victims(self) -> Limit {
        if self.disk.allows(1) { Limit::NONE } else { self.host }
    }
}

impl View<'_> {
    pub fn steps_to_host(self, block: BlockId, rooms: Rooms) -> Result<Vec<Step>, Stop> {
        if self.blocks.block(block)?.place() == Place::Away(Tier::Disk) {
            return self.load(block, rooms).map(|step| vec![step]);
        }
        Ok(Vec::new())
    }

    pub fn load(self, block: BlockId, rooms: Rooms) -> Result<Step, Stop> {
        let bytes = self.blocks.block(block)?.bytes;
        if self.blocks.loading().is_some_and(|(_, loading)| loading == block) {
            return Ok(Step::Load { block });
        }
        match self.make_host_room(bytes, rooms) {
            // A move that ends may leave a copy to drop.
            Err(Stop::Shortage(_)) if let Some(token) = self.blocks.oldest() => Ok(Step::Wait(token)),
            step => Ok(step?.unwrap_or(Step::Load { block })),
        }
    }

    pub fn soon_from_disk(self, count: usize) -> Vec<BlockId> {
        let Some(forecast) = self.known() else { return Vec::new() };
        let used = |id: BlockId| match forecast.future(id) {
            Future::Used(after) => Some((after, id)),
            Future::Freed(_) | Future::Unknown => None,
        };
        let on_disk = self.blocks.live().filter(|(_, block)| block.place() == Place::Away(Tier::Disk));
        let mut soon: Vec<_> = on_disk.filter_map(|(id, _)| used(id)).collect();
        soon.sort_unstable_by_key(|(after, id)| (*after, id.index));
        soon.into_iter().take(count).map(|(_, id)| id).collect()
    }
}
