//! Watches a step: each ready operation adds a reading of the counters.

use super::Device;
use crate::timeline::Reading;
#[cfg(any(test, feature = "cube", feature = "router"))]
use crate::timeline::{Stretch, Watch};

/// Starts to watch operations, until [`watched_step`].
#[cfg(any(test, feature = "cube", feature = "router"))]
pub(crate) fn watch_step<M: Device>(adapter: &mut M) {
    let now = reading(adapter);
    adapter.journal().watch = Some(Box::new(Watch::begin(now)));
}

/// Ends the watch; `None` if nothing was watched.
#[cfg(any(test, feature = "cube", feature = "router"))]
pub(crate) fn watched_step<M: Device>(adapter: &mut M) -> Option<Vec<Stretch>> {
    let watch = adapter.journal().watch.take()?;
    Some(watch.end(reading(adapter)))
}

pub(super) fn note_operation<M: Device>(adapter: &mut M) {
    if adapter.journal().watch.is_none() {
        return;
    }
    let now = reading(adapter);
    if let Some(watch) = &mut adapter.journal().watch {
        watch.operation(now);
    }
}

fn reading<M: Device>(adapter: &mut M) -> Reading {
    let (resident, counters) = (adapter.pager().ledger().resident(), adapter.pager().counters());
    let counts = adapter.counts();
    Reading {
        resident,
        bytes_out: counters.bytes_out,
        bytes_in: counters.bytes_in,
        bytes_read: counts.bytes_read,
        bytes_written: counts.bytes_written,
        stall: counts.stall,
    }
}
