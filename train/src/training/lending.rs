//! Parts of a checkpoint that other ranks keep: moments, and master weights where the device has fewer bits. They are fetched one
//! after another, in the order of its files.
//!
//! Every rank takes part in every fetch. So whatever becomes of the files, rank 0 fetches all of them.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use backend_offload::Managed;
use burn::tensor::backend::Backend;
use models::Gpt;

use crate::optimizer::{HostPart, Optimizer, keeps_second_moment};
use crate::ranks::Ranks;

use super::snapshot::{Own, PARTS};

/// The list of tensors to fetch, and how many have been fetched.
pub(crate) struct Lending<'r> {
    ranks: &'r mut Ranks,
    /// Master weights in the order of their names, then moments in that of theirs.
    lent: Vec<Lent>,
    next: usize,
    /// Steps that each parameter has taken, wherever its moments are.
    pub(super) times: BTreeMap<String, usize>,
}

/// One tensor of a parameter.
#[derive(Debug, Clone)]
pub(super) struct Lent {
    pub(super) key: String,
    parameter: String,
    what: What,
    owner: usize,
    pub(super) shape: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Masters,
    /// The first or the second.
    Moment(usize),
}

impl<'r> Lending<'r> {
    /// The same list on every rank.
    pub(super) fn begin<I: Managed>(optimizer: &Optimizer<I>, ranks: &'r mut Ranks) -> anyhow::Result<Self> {
        let own = serde_json::to_vec(&times(optimizer)?)?;
        let mut times = BTreeMap::new();
        for theirs in ranks.gathered(&own)? {
            let theirs: BTreeMap<String, usize> =
                serde_json::from_slice(&theirs).context("reading another rank's steps")?;
            times.extend(theirs);
        }
        let (mut lent, mut moments) = (Vec::new(), Vec::new());
        for name in times.keys() {
            let owned = optimizer.owners.get(name).with_context(|| format!("`{name}` is no parameter"))?;
            let rank = owned.shape.num_dims();
            let of = |key, what| Lent {
                key,
                parameter: name.clone(),
                what,
                owner: owned.rank,
                shape: owned.shape.to_vec(),
            };
            if optimizer.host.as_ref().is_some_and(|host| host.completes(name, rank)) {
                lent.push(of(name.clone(), What::Masters));
            }
            let second = keeps_second_moment(optimizer.kind(), name, rank);
            for (part, word) in PARTS.iter().enumerate().take(1 + usize::from(second)) {
                moments.push(of(format!("{name}.{word}"), What::Moment(part)));
            }
        }
        moments.sort_by(|one, other| one.key.cmp(&other.key));
        lent.extend(moments);
        lent.retain(|lent| lent.owner != 0);
        Ok(Self { ranks, lent, next: 0, times })
    }

    /// Moments that other ranks keep, in order.
    pub(super) fn moments(&self) -> Vec<Lent> {
        self.lent.iter().filter(|lent| lent.what != What::Masters).cloned().collect()
    }

    /// Whether another rank has the master weights of this parameter.
    pub(super) fn has_masters_of(&self, parameter: &str) -> bool {
        self.lent.iter().any(|lent| lent.what == What::Masters && lent.parameter == parameter)
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

    /// Bytes of the moments that other ranks keep.
    pub(super) fn bytes(&self) -> u64 {
        let elements = self.moments().iter().map(|lent| lent.shape.iter().product::<usize>()).sum::<usize>();
        (elements * size_of::<f32>()) as u64
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
    pub(super) fn serve<I: Managed, B: Backend>(
        self,
        optimizer: &Optimizer<I>,
        gpt: &Gpt<B>,
    ) -> anyhow::Result<()> {
        let Self { ranks, lent, .. } = self;
        let kept = Own::of(optimizer)?;
        for Lent { parameter, what, owner, shape, .. } in lent {
            let mut numbers = vec![0.0; shape.iter().product()];
            if owner == ranks.rank() {
                let own = match what {
                    What::Masters => kept.masters(gpt, &parameter)?,
                    What::Moment(part) => kept.moment(&parameter, part)?,
                };
                ensure!(own.len() == numbers.len(), "`{parameter}` is saved with {} numbers", own.len());
                numbers = own;
            }
            ranks.hear(owner, bytemuck::cast_slice_mut(&mut numbers))?;
        }
        Ok(())
    }
}

/// Steps that the parameters of this process have taken.
fn times<I: Managed>(optimizer: &Optimizer<I>) -> anyhow::Result<BTreeMap<String, usize>> {
    let on_device = optimizer.moments.iter().map(|(name, moments)| (name.clone(), moments.time));
    let on_host = optimizer.host.as_ref().map(HostPart::by_name).transpose()?.unwrap_or_default();
    let on_host = on_host.values().map(|state| (state.name().to_owned(), state.time() as usize));
    Ok(on_device.chain(on_host).collect())
}
