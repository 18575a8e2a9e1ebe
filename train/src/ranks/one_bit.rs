//! One bit per element between the ranks of a run: an exchange for each parameter, in the order in which ranks come to them.

use exchange::{Exchange, OneBit, Residuals};
use runs::config::RanksSection;

use super::own::{Pair, Pairs};

/// The compressed exchanges of one rank.
#[derive(Debug)]
pub(super) struct OneBits {
    warm_up: u64,
    /// Whether the present step is one of the exact ones.
    is_exact: bool,
    buffers: Vec<OneBit>,
    /// The buffer that is summed next.
    next: usize,
}

impl OneBits {
    pub(super) fn new(settings: &RanksSection) -> Self {
        Self { warm_up: settings.warm_up, is_exact: true, buffers: Vec::new(), next: 0 }
    }

    /// Whether the first `steps` of a run leave residuals.
    pub(super) fn owe_after(&self, steps: u64) -> bool {
        steps > self.warm_up
    }

    /// Begins step `step`, counted from 1. Residuals of a step that was never settled are forgotten.
    pub(super) fn begin(&mut self, step: u64) {
        (self.is_exact, self.next) = (step <= self.warm_up, 0);
        self.settle(false);
    }

    /// The exchange of the next parameter, which has `len` elements; `None` in an exact step.
    pub(super) fn next(&mut self, len: usize) -> Option<&mut OneBit> {
        if self.is_exact {
            return None;
        }
        if self.buffers.len() == self.next {
            self.buffers.push(OneBit::new(len, 0));
        }
        self.next += 1;
        self.buffers.get_mut(self.next - 1)
    }

    /// Ends a step, whose residuals are forgotten where its update is withheld.
    pub(super) fn settle(&mut self, committed: bool) {
        self.buffers.iter_mut().for_each(|buffer| buffer.settle(committed));
    }

    /// The residuals of each parameter.
    pub(super) fn owed(&self) -> Pairs<'_> {
        let owing: Vec<_> = self.buffers.iter().filter_map(|buffer| Some((buffer, buffer.owed()?))).collect();
        let lengths = owing.iter().map(|(_, lengths)| *lengths).collect();
        let fetch = move |n: usize| {
            let owed = owing[n].0.residuals();
            Ok(owed.map(|Residuals { own, part, .. }| [own, part]).unwrap_or_default())
        };
        Pairs { lengths, fetch: Box::new(fetch) }
    }

    /// Takes over residuals that were saved at `place`, a rank and its world.
    pub(super) fn restore(&mut self, place: (usize, usize), saved: Vec<Pair>) -> exchange::Result<()> {
        let restored = saved.into_iter().map(|[own, part]| {
            let mut buffer = OneBit::new(own.len(), 0);
            buffer.restore(Residuals { place, own, part })?;
            Ok(buffer)
        });
        self.buffers = restored.collect::<exchange::Result<_>>()?;
        Ok(())
    }
}
