//! Moments that other ranks keep: fetched for a checkpoint one after another, in the order of its file.
//!
//! Every rank takes part in every fetch. So whatever becomes of the file, rank 0 fetches all of them.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use backend_offload::Managed;

use crate::optimizer::{Optimizer, keeps_second_moment};
use crate::ranks::Ranks;

use super::snapshot::{PARTS, moment};

/// The list of moments to fetch, and how many have been fetched.
pub(crate) struct Lending<'r> {
    ranks: &'r mut Ranks,
    /// Moments in the order of their names.
    lent: Vec<Lent>,
    next: usize,
    /// Steps that each parameter has taken, wherever its moments are.
    pub(super) times: BTreeMap<String, usize>,
}

/// One moment of a parameter.
#[derive(Debug, Clone)]
pub(super) struct Lent {
    pub(super) key: String,
    parameter: String,
    part: usize,
    owner: usize,
    pub(super) shape: Vec<usize>,
}

impl<'r> Lending<'r> {
    /// The same list on every rank.
    pub(super) fn begin<I: Managed>(optimizer: &Optimizer<I>, ranks: &'r mut Ranks) -> anyhow::Result<Self> {
        let own = optimizer.moments.iter().map(|(name, moments)| (name.clone(), moments.time));
        let own = serde_json::to_vec(&own.collect::<BTreeMap<_, _>>())?;
        let mut times = BTreeMap::new();
        for theirs in ranks.gathered(&own)? {
            let theirs: BTreeMap<String, usize> =
                serde_json::from_slice(&theirs).context("reading another rank's steps")?;
            times.extend(theirs);
        }
        let mut lent = Vec::new();
        for name in times.keys() {
            let owned = optimizer.owners.get(name).with_context(|| format!("`{name}` is no parameter"))?;
            let second = keeps_second_moment(optimizer.kind(), name, owned.shape.num_dims());
            for (part, word) in PARTS.iter().enumerate().take(1 + usize::from(second)) {
                let (key, parameter) = (format!("{name}.{word}"), name.clone());
                lent.push(Lent { key, parameter, part, owner: owned.rank, shape: owned.shape.to_vec() });
            }
        }
        lent.retain(|lent| lent.owner != 0);
        lent.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(Self { ranks, lent, next: 0, times })
    }

    /// Moments that other ranks keep, in order.
    pub(super) fn lent(&self) -> &[Lent] {
        &self.lent
    }

    /// The numbers of one of them, which is next.
    pub(super) fn fetch(&mut self, key: &str) -> anyhow::Result<Vec<f32>> {
        let lent = self.lent.get(self.next).filter(|lent| lent.key == key);
        let lent = lent.with_context(|| format!("`{key}` is asked for out of turn"))?;
        let mut numbers = vec![0.0; lent.shape.iter().product()];
        self.next += 1;
        self.ranks.hear(lent.owner, bytemuck::cast_slice_mut(&mut numbers))?;
        Ok(numbers)
    }

    /// Bytes of all moments, wherever they are.
    pub(super) fn bytes(&self) -> u64 {
        let elements = self.lent.iter().map(|lent| lent.shape.iter().product::<usize>());
        (elements.sum::<usize>() * size_of::<f32>()) as u64
    }

    /// Fetches what nobody asked for.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        while let Some(lent) = self.lent.get(self.next) {
            let key = lent.key.clone();
            self.fetch(&key)?;
        }
        Ok(())
    }

    /// Answers rank 0.
    pub(super) fn serve<I: Managed>(self, optimizer: &Optimizer<I>) -> anyhow::Result<()> {
        let Self { ranks, lent, .. } = self;
        for Lent { parameter, part, owner, shape, .. } in lent {
            let mut numbers = vec![0.0; shape.iter().product()];
            if owner == ranks.rank() {
                let own = moment(optimizer, &parameter, part)?;
                ensure!(
                    own.len() == numbers.len(),
                    "the moments of `{parameter}` have {} numbers",
                    own.len()
                );
                numbers = own;
            }
            ranks.hear(owner, bytemuck::cast_slice_mut(&mut numbers))?;
        }
        Ok(())
    }
}
