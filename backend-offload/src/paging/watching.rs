//! Watches a step: readings of the counters at each ready operation.

use super::Paging;
use crate::timeline::Reading;
#[cfg(any(test, feature = "burn"))]
use crate::timeline::{Stretch, Watch};

impl Paging {
    #[cfg(any(test, feature = "burn"))]
    pub(crate) fn watch_step(&mut self) {
        self.watch = Some(Box::new(Watch::begin(self.reading())));
    }

    #[cfg(any(test, feature = "burn"))]
    pub(crate) fn watched_step(&mut self) -> Option<Vec<Stretch>> {
        let watch = self.watch.take()?;
        Some(watch.end(self.reading()))
    }

    pub(super) fn note_operation(&mut self) {
        if self.watch.is_none() {
            return;
        }
        let now = self.reading();
        if let Some(watch) = &mut self.watch {
            watch.operation(now);
        }
    }

    fn reading(&self) -> Reading {
        let (resident, counters) = (self.pager.ledger().resident(), self.pager.counters());
        Reading {
            resident,
            bytes_out: counters.link.bytes_out,
            bytes_in: counters.link.bytes_in,
            bytes_read: self.counts.bytes_read,
            bytes_written: self.counts.bytes_written,
            stall: self.counts.stall,
        }
    }
}
