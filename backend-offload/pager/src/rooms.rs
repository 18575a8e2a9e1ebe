//! Rooms: bytes left in the tiers below the device, and loads from disk.
//!
//! Blocks pass the host in both directions, so that adapters move bytes between device and host alone. They read back
//! unchanged (`any_program_above_a_disk_reads_what_it_wrote_from_all_three_tiers`). The block needed last is spilled to
//! disk. A block that the program frees before its next use is spilled only when no other can be: the write would be
//! for nothing. A loaded block keeps its copy on disk until it is written, and is spilled again for free
//! (`a_block_sinks_again_for_free_until_it_is_written`).
//!
//! Blocks that fit into the three tiers together have a place, but for one passage: a block from disk passes the host,
//! and needs as many bytes free there or on the disk. Before a refusal, a full disk drops copies that other tiers have
//! (`a_full_disk_gives_up_what_other_tiers_have_before_it_refuses`), and an operand on the host is spilled for a block
//! that leaves the device. That ends: an evicted block stays away until the operation is ready, and no block is loaded
//! before there is device memory for it.

use crate::block::{BlockId, Place, Tier};
use crate::fault::Stop;
use crate::forecast::Future;
use crate::limit::Limit;
use crate::steps::Step;
use crate::view::View;

/// Bytes that the tiers below the device can still take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rooms {
    /// In host memory.
    pub host: Limit,
    /// On the disk.
    pub disk: Limit,
    /// The disk takes blocks in multiples of so many bytes.
    pub page: u64,
}

impl Rooms {
    /// Rooms of a host that is never full.
    pub const ENDLESS: Self = Self::without_disk(Limit::NONE);

    /// Rooms of a host with nothing below it.
    pub const fn without_disk(host: Limit) -> Self {
        Self { host, disk: Limit::bytes(0), page: 1 }
    }

    /// Bytes of the disk that a block of `bytes` takes.
    pub(crate) fn on_disk(self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.page).unwrap_or(u64::MAX)
    }

    /// Room on the host for a victim's contents: no limit where other blocks can be spilled for it.
    pub(crate) fn for_victims(self) -> Limit {
        if self.disk.allows(1) { Limit::NONE } else { self.host }
    }
}

impl View<'_> {
    /// See [`Pager::steps_to_host`](crate::Pager::steps_to_host).
    pub fn steps_to_host(self, block: BlockId, rooms: Rooms) -> Result<Vec<Step>, Stop> {
        if self.blocks.block(block)?.place() == Place::Away(Tier::Disk) {
            return self.load(block, rooms).map(|step| vec![step]);
        }
        Ok(Vec::new())
    }

    /// The step before an operand can come from the disk.
    pub fn load(self, block: BlockId, rooms: Rooms) -> Result<Step, Stop> {
        let bytes = self.blocks.block(block)?.bytes;
        if self.blocks.loading().is_some_and(|(_, loading)| loading == block) {
            return Ok(Step::Load { block });
        }
        match self.make_host_room(bytes, rooms) {
            // What lands may leave a copy on the host that can be given up.
            Err(Stop::Shortage(_)) if let Some(token) = self.blocks.oldest() => Ok(Step::Wait(token)),
            step => Ok(step?.unwrap_or(Step::Load { block })),
        }
    }

    /// See [`Pager::soon_from_disk`](crate::Pager::soon_from_disk).
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
