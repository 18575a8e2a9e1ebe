//! Exchanges other than the exact sum of every step: whose turn they are, and what they leave to a later run.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use runs::config::{ExchangeKind, RanksSection};

use super::Ranks;
use super::one_bit::OneBits;
use super::outer::OuterSteps;
use super::own::{self, Kept, Pair, Pairs, SavedAt};

/// The outcome of taking over numbers that ranks had saved of their own.
#[derive(Debug, PartialEq)]
pub(crate) enum Restored {
    /// Whatever there was is where it belongs.
    All,
    /// This rank's moments have yet to be.
    Moments(Vec<Pair>),
    /// Every rank begins without, for this reason.
    Dropped(String),
}

impl Ranks {
    /// Exchanges from here on what `settings` say.
    pub(crate) fn exchange_by(&mut self, settings: &RanksSection) {
        let (exchange, alone) = (settings.exchange, self.is_alone());
        self.one_bit = (exchange == ExchangeKind::OneBit && !alone).then(|| OneBits::new(settings));
        self.outer = (exchange == ExchangeKind::Rarely && !alone).then(|| OuterSteps::new(settings));
    }

    /// Whether some rank wishes to stop.
    pub(crate) fn stop(&mut self, wishes: bool) -> anyhow::Result<bool> {
        Ok(!self.all(!wishes)?)
    }

    /// Whether each rank takes steps of its own, between outer steps that lead all to the same weights.
    pub(crate) fn step_apart(&self) -> bool {
        self.outer.is_some()
    }

    /// Steps after which all ranks have the same weights.
    pub(crate) fn common_every(&self) -> u64 {
        self.outer.as_ref().map_or(1, OuterSteps::every)
    }

    /// Begins the outer optimizer of the next parameter with weights that are the same on all ranks.
    pub(crate) fn start_outer(&mut self, weights: Vec<f32>) -> anyhow::Result<()> {
        self.outer.as_mut().map_or(Ok(()), |outer| outer.start(weights))
    }

    /// The outer step of the next parameter, into `weights`.
    pub(crate) fn step_outer(&mut self, weights: &mut [f32]) -> anyhow::Result<()> {
        self.engine()?;
        let (Some(outer), Some(engine)) = (&mut self.outer, self.engine.as_deref_mut()) else {
            bail!("these ranks take no outer steps");
        };
        let stepped = outer.step(engine, weights);
        self.heard(stepped).context("averaging weights over the ranks")
    }

    pub(crate) fn end_outer(&self) -> anyhow::Result<()> {
        self.outer.as_ref().map_or(Ok(()), OuterSteps::end)
    }

    /// Whether ranks save something of their own with each checkpoint. The same on all of them.
    pub(crate) fn have_own(&self) -> bool {
        self.one_bit.is_some() || self.outer.is_some()
    }

    /// The kind of numbers that this rank saves beside the checkpoint `at`.
    fn kept(&self, at: SavedAt<'_>) -> Option<Kept> {
        let owes = self.one_bit.as_ref().is_some_and(|one_bit| one_bit.owe_after(at.step));
        let of_outer = if self.leads() { Kept::OuterMomentum } else { Kept::Moments };
        self.outer.as_ref().map(|_| of_outer).or(owes.then_some(Kept::Residuals))
    }

    /// Saves what this rank has of its own beside the checkpoint `at` in `run`, if there is anything. Its `moments` are
    /// among that where ranks step apart.
    pub(crate) fn save_own(&self, run: &Path, at: SavedAt<'_>, moments: Pairs<'_>) -> anyhow::Result<()> {
        let Some(kept) = self.kept(at) else { return Ok(()) };
        let pairs = match (kept, &self.one_bit, &self.outer) {
            (Kept::Residuals, Some(one_bit), _) => one_bit.owed(),
            (Kept::OuterMomentum, _, Some(outer)) => {
                let momentum: Vec<&[f32]> = outer.momentum().collect();
                let lengths = momentum.iter().map(|numbers| [numbers.len(), 0]).collect();
                Pairs { lengths, fetch: Box::new(move |n| Ok([momentum[n].to_vec(), Vec::new()])) }
            }
            _ => moments,
        };
        own::save(run, (self.rank(), self.world()), at, kept, pairs)
            .context("saving what this rank has of its own")
    }

    /// Goes on with what was saved beside a checkpoint in `run`, if every rank finds its own. Otherwise all go on without, and
    /// the reason is told.
    pub(crate) fn restore_own(&mut self, run: &Path, at: SavedAt<'_>) -> anyhow::Result<Restored> {
        let Some(kept) = self.kept(at) else { return Ok(Restored::All) };
        let place = (self.rank(), self.world());
        let loaded = own::load(run, place, at, kept);
        let own = loaded.as_ref().err().map_or_else(String::new, |error| format!("{error:#}"));
        let reasons = self.gathered(own.as_bytes())?;
        if let Some((rank, reason)) = reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty()) {
            return Ok(Restored::Dropped(format!("rank {rank}: {}", String::from_utf8_lossy(reason))));
        }
        let loaded = loaded?;
        if let Some(one_bit) = &mut self.one_bit {
            one_bit.restore(place, loaded)?;
            return Ok(Restored::All);
        }
        let count = self.told(&(loaded.len() as u64).to_le_bytes())?;
        let count = u64::from_le_bytes(count.try_into().map_err(|_| anyhow!("rank 0 announces no number"))?);
        let mut momentum = Vec::new();
        for n in 0..count as usize {
            let own = loaded.get(n).filter(|_| self.leads()).map_or(&[] as &[f32], |[momentum, _]| momentum);
            let told = self.told(bytemuck::cast_slice(own))?;
            momentum.push(bytemuck::pod_collect_to_vec(&told));
        }
        let leads = self.leads();
        let outer = self.outer.as_mut().context("these ranks take no outer steps")?;
        outer.restore(momentum);
        Ok(if leads { Restored::All } else { Restored::Moments(loaded) })
    }
}
