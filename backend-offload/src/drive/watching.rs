//! Watches a step: each ready operation adds a reading of the counters.

use super::Mover;
use crate::timeline::Reading;
#[cfg(any(test, feature = "cube", feature = "router"))]
use crate::timeline::{Stretch, Watch};

/// Starts to watch operations, until [`watched_step`].
#[cfg(any(test, feature = "cube", feature = "router"))]
pub(crate) fn watch_step<M: Mover>(door: &mut M) {
    let now = reading(door);
    door.journal().watch = Some(Box::new(Watch::begin(now)));
}

/// Ends the watch; `None` if nothing was watched.
#[cfg(any(test, feature = "cube", feature = "router"))]
pub(crate) fn watched_step<M: Mover>(door: &mut M) -> Option<Vec<Stretch>> {
    let watch = door.journal().watch.take()?;
    Some(watch.end(reading(door)))
}

pub(super) fn note_operation<M: Mover>(door: &mut M) {
    if door.journal().watch.is_none() {
        return;
    }
    let now = reading(door);
    if let Some(watch) = &mut door.journal().watch {
        watch.operation(now);
    }
}

fn reading<M: Mover>(door: &mut M) -> Reading {
    let (resident, counters) = (door.pager().ledger().resident(), door.pager().counters());
    let counts = door.counts();
    Reading {
        resident,
        bytes_out: counters.bytes_out,
        bytes_in: counters.bytes_in,
        bytes_read: counts.bytes_read,
        bytes_written: counts.bytes_written,
        stall: counts.stall,
    }
}
