//! One bit per element between the ranks of a run: an exchange for each parameter.

use std::collections::BTreeMap;

use exchange::{Exchange, OneBit, Residuals};
use runs::config::RanksSection;

use super::own::{Pair, Pairs};

/// The compressed exchanges of one rank.
#[derive(Debug)]
pub(super) struct OneBits {
    warm_up: u64,
    /// Whether the present step is one of the exact ones.
    is_exact: bool,
    /// By the parameter's place in the model, so that what is saved does not depend on the order in which ranks come to them.
    buffers: BTreeMap<usize, OneBit>,
}

impl OneBits {
    pub(super) fn new(settings: &RanksSection) -> Self {
        Self { warm_up: settings.warm_up, is_exact: true, buffers: BTreeMap::new() }
    }

    /// Whether the first `steps` of a run leave residuals.
    pub(super) fn owe_after(&self, steps: u64) -> bool {
        steps > self.warm_up
    }

    /// Begins step `step`, counted from 1. Residuals of a step that was never settled are forgotten.
    pub(super) fn begin(&mut self, step: u64) {
        self.is_exact = step <= self.warm_up;
        self.settle(false);
    }

    /// The exchange of the parameter at `place` in the model, which has `len` elements; `None` in an exact step.
    pub(super) fn of(&mut self, place: usize, len: usize) -> Option<&mut OneBit> {
        if self.is_exact {
            return None;
        }
        Some(self.buffers.entry(place).or_insert_with(|| OneBit::new(len, 0)))
    }

    /// Ends a step, whose residuals are forgotten where its update is withheld.
    pub(super) fn settle(&mut self, committed: bool) {
        self.buffers.values_mut().for_each(|buffer| buffer.settle(committed));
    }

    /// The residuals of each parameter, in the model's order.
    pub(super) fn owed(&self) -> Pairs<'_> {
        let owing: Vec<_> =
            self.buffers.values().filter_map(|buffer| Some((buffer, buffer.owed()?))).collect();
        let lengths = owing.iter().map(|(_, lengths)| *lengths).collect();
        let fetch = move |n: usize| {
            let owed = owing[n].0.residuals();
            Ok(owed.map(|Residuals { own, part, .. }| [own, part]).unwrap_or_default())
        };
        Pairs { lengths, fetch: Box::new(fetch) }
    }

    /// Takes over residuals that were saved at `place`, a rank and its world.
    pub(super) fn restore(&mut self, place: (usize, usize), saved: Vec<Pair>) -> exchange::Result<()> {
        let restored = saved.into_iter().enumerate().map(|(n, [own, part])| {
            let mut buffer = OneBit::new(own.len(), 0);
            buffer.restore(Residuals { place, own, part })?;
            Ok((n, buffer))
        });
        self.buffers = restored.collect::<exchange::Result<_>>()?;
        Ok(())
    }
}
