//! Loads ahead: brings blocks on disk to the host early (`a_block_is_loaded_ahead_only_if_its_next_use_is_known`). They
//! replace blocks that the disk has and that are needed three times as late or later: otherwise an operation that fills
//! the host would spill the loaded block first.
//!
//! One block loads at a time. It takes host memory at once, and stays on disk until complete. An operation that needs
//! it completes the load (`an_operation_finishes_what_is_under_way_and_makes_no_other_room_for_it`).

use crate::block::{Place, Tier};
use crate::forecast::Future;
use crate::limit::Limit;
use crate::rooms::Rooms;
use crate::steps::Step;
use crate::view::View;

/// A replaced block is needed this many times as late. With 2, reads increase.
const LATER: u64 = 3;

const SOON: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct LoadAhead {
    chosen: Vec<Step>,
    at: u64,
}

impl LoadAhead {
    pub fn forget(&mut self) {
        self.chosen.clear();
    }

    /// A load, or a spill of a block on disk.
    pub fn next(&mut self, view: View, rooms: &dyn Fn() -> Rooms) -> Option<Step> {
        if let Some((_, block)) = view.blocks.loading() {
            return Some(Step::LoadAhead { block });
        }
        if view.known().is_none() || view.blocks.ledger().held(Tier::Disk) == 0 {
            return None;
        }
        // Each choice visits every block.
        if view.request.number() - self.at > view.blocks.count() / 64 {
            self.at = view.request.number();
            self.chosen = to_be_exchanged(view, rooms().host);
        }
        while let Some(step) = self.chosen.last().copied() {
            if is_of_use(view, step) {
                return Some(step);
            }
            self.chosen.pop();
        }
        None
    }
}

fn is_of_use(view: View, step: Step) -> bool {
    let (Step::Spill { block: id } | Step::LoadAhead { block: id }) = step else { return false };
    view.blocks.get(id).is_some_and(|block| match step {
        Step::LoadAhead { .. } => block.place() == Place::Away(Tier::Disk),
        _ => block.rests_on_host() && block.is_on_disk(),
    })
}

/// Loads and the spills before them, in reverse order.
fn to_be_exchanged(view: View, room: Limit) -> Vec<Step> {
    let (Some(forecast), Some(mut room)) = (view.known(), room.get()) else { return Vec::new() };
    let resting = view.blocks.live().filter(|(_, block)| block.rests_on_host());
    let resting = resting.map(|(id, block)| (view.depth(id, block), id, block));
    // Any block needed later would be the next to spill.
    let latest = resting.clone().map(|(depth, ..)| depth).max().unwrap_or(u64::MAX);
    let spilled = resting.filter(|(_, _, block)| block.is_on_disk());
    let mut spilled: Vec<_> = spilled.map(|(depth, id, block)| (depth, id, block.bytes)).collect();
    spilled.sort_unstable_by_key(|(depth, id, _)| (*depth, id.index));
    let mut steps = Vec::new();
    for block in view.soon_from_disk(SOON) {
        let (Future::Used(after), Some(wanted)) = (forecast.future(block), view.blocks.get(block)) else {
            break;
        };
        if after >= latest {
            break;
        }
        while room < wanted.bytes
            && let Some((_, block, bytes)) = spilled.pop_if(|(depth, ..)| *depth / LATER >= after)
        {
            room += bytes;
            steps.push(Step::Spill { block });
        }
        if room < wanted.bytes {
            break;
        }
        room -= wanted.bytes;
        steps.push(Step::LoadAhead { block });
    }
    steps
        .truncate(steps.iter().rposition(|step| matches!(step, Step::LoadAhead { .. })).map_or(0, |n| n + 1));
    steps.reverse();
    steps
}
