//! Sums with one bit per element and residuals for each parameter.
//!
//! Each rank saves residuals under the checkpoint's step and digest. All ranks restore theirs, or none does
//! (`residuals_that_do_not_fit_the_ranks_are_dropped_with_a_note`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exchange::{Engine, Residuals};

use super::exact::Wire;
use super::{Restored, exact};
use crate::ranks::{Job, Kept, Pairs, Ranks, SavedAt, Summed};

/// By place in the model.
type Buffers = BTreeMap<usize, exchange::OneBit>;

pub(crate) struct OneBit {
    warm_up: u64,
    kept: Kept,
    exact: Wire,
    /// Shared with the thread that sums.
    buffers: Arc<Mutex<Buffers>>,
}

fn lock(buffers: &Mutex<Buffers>) -> MutexGuard<'_, Buffers> {
    buffers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OneBit {
    pub(super) fn new(warm_up: u64, exact: exchange::Exact) -> Self {
        Self { warm_up, kept: Kept::Residuals, exact: Wire::F32(exact), buffers: Arc::default() }
    }

    /// For changes of weights, which are never exact.
    pub(super) fn of_changes() -> Self {
        Self { kept: Kept::ChangeResiduals, ..Self::new(0, exchange::Exact::default()) }
    }

    /// `step` counts from 1. Forgets residuals of an unsettled step.
    pub(super) fn begin(
        &mut self,
        step: u64,
    ) -> impl FnMut(&mut dyn Engine, Vec<Job>) -> Summed + Send + 'static {
        self.settle(false);
        let (is_exact, exact) = (step <= self.warm_up, self.exact);
        let buffers = Arc::clone(&self.buffers);
        move |engine, bucket| {
            if is_exact {
                return exact::reduce(exact, engine, bucket);
            }
            let mut buffers = lock(&buffers);
            let taken = bucket.iter().map(|Job { own, place, .. }| {
                (*place, buffers.remove(place).unwrap_or_else(|| exchange::OneBit::new(own.len(), 0)))
            });
            let mut taken: Vec<_> = taken.collect();
            let own = taken.iter_mut().zip(bucket).map(|((_, buffer), job)| (buffer, job.own)).collect();
            let sums = exchange::OneBit::sum_all(engine, own);
            buffers.extend(taken);
            sums
        }
    }

    /// A skipped update leaves residuals unchanged.
    pub(super) fn settle(&mut self, committed: bool) {
        lock(&self.buffers).values_mut().for_each(|buffer| buffer.settle(committed));
    }

    pub(super) fn save_state(&self, run: &Path, at: SavedAt<'_>, ranks: &Ranks) -> anyhow::Result<()> {
        if at.step <= self.warm_up {
            return Ok(());
        }
        let buffers = lock(&self.buffers);
        let owing = buffers.iter().filter_map(|(place, buffer)| Some((*place, buffer.owed()?)));
        let (places, lengths): (Vec<usize>, Vec<[usize; 2]>) = owing.unzip();
        let fetch = |n: usize| {
            let owed = buffers[&places[n]].residuals();
            Ok(owed.map(|Residuals { own, part, .. }| [own, part]).unwrap_or_default())
        };
        ranks.save_state(run, at, self.kept, Pairs { lengths, fetch: Box::new(fetch) })
    }

    pub(super) fn restore_state(
        &mut self,
        run: &Path,
        at: SavedAt<'_>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<Restored> {
        if at.step <= self.warm_up {
            return Ok(Restored::All);
        }

        let saved = match ranks.load_state(run, at, self.kept)? {
            Ok(saved) => saved,
            Err(reason) => {
                let lost = "the exchange begins without the residuals of this checkpoint";
                return Ok(Restored::Dropped(format!("{lost}: {reason}")));
            }
        };

        let place = (ranks.rank(), ranks.world());
        let restored = saved.into_iter().enumerate().map(|(n, [own, part])| {
            let mut buffer = exchange::OneBit::new(own.len(), 0);
            buffer.restore(Residuals { place, own, part })?;
            Ok((n, buffer))
        });
        *lock(&self.buffers) = restored.collect::<exchange::Result<_>>()?;
        Ok(Restored::All)
    }
}
