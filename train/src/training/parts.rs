//! Fetches tensors of a checkpoint from other ranks: moments, and master weights if the device has fewer bits.
//!
//! Rank 0 fetches in the order of the files. Every rank joins every fetch, so rank 0 fetches all even after a failed
//! write. A sharded checkpoint resumes with any placement
//! (`a_checkpoint_of_a_sharded_optimizer_resumes_with_any_placement`).

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use backend_offload::Managed;
use burn::tensor::backend::Backend;
use models::Gpt;

use crate::optimizer::{HostPart, Optimizer};
use crate::ranks::Ranks;
use crate::rule::{MOMENT_NAMES, keeps_second_moment};

use super::snapshot::Own;

pub(crate) struct ShardGather<'r> {
    ranks: &'r mut Ranks,
    /// Master weights by name, then moments by name.
    remote: Vec<RemoteTensor>,
    next: usize,
    pub(super) times: BTreeMap<String, usize>,
}

#[derive(Debug, Clone)]
pub(super) struct RemoteTensor {
    pub(super) key: String,
    parameter: String,
    what: What,
    owner: usize,
    pub(super) shape: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Masters,
    Moment(usize),
}

impl<'r> ShardGather<'r> {
    /// The list is equal on every rank. `None` if ranks do not shard the optimizer.
    pub(super) fn begin<I: Managed>(
        optimizer: &mut Optimizer<I>,
        ranks: &'r mut Ranks,
    ) -> anyhow::Result<Option<Self>> {
        if !optimizer.owners.are_sharded() {
            return Ok(None);
        }
        optimizer.settle()?;
        let own = serde_json::to_vec(&times(optimizer)?)?;
        let mut times = BTreeMap::new();
        for theirs in ranks.gathered(&own)? {
            let theirs: BTreeMap<String, usize> =
                serde_json::from_slice(&theirs).context("reading another rank's steps")?;
            times.extend(theirs);
        }

        let (mut remote, mut moments) = (Vec::new(), Vec::new());
        if let Some(name) = times.keys().find(|name| optimizer.owners.get(name).is_none()) {
            bail!("`{name}` is no parameter");
        }
        for name in optimizer.owners.names() {
            let Some(owned) = optimizer.owners.get(name) else { continue };
            let has_state = times.contains_key(name);
            let dims = owned.shape.num_dims();
            let of = |key, what| RemoteTensor {
                key,
                parameter: name.clone(),
                what,
                owner: owned.rank,
                shape: owned.shape.to_vec(),
            };
            let completes = optimizer.host.as_ref().is_some_and(|host| host.completes(name));
            if owned.is_alone || completes && has_state {
                remote.push(of(name.clone(), What::Masters));
            }
            if !has_state {
                continue;
            }
            let second = keeps_second_moment(optimizer.kind(), name, dims);
            for (part, word) in MOMENT_NAMES.iter().enumerate().take(1 + usize::from(second)) {
                moments.push(of(format!("{name}.{word}"), What::Moment(part)));
            }
        }

        moments.sort_by(|one, other| one.key.cmp(&other.key));
        remote.extend(moments);
        remote.retain(|remote| remote.owner != 0);
        Ok(Some(Self { ranks, remote, next: 0, times }))
    }

    pub(super) fn moments(&self) -> Vec<RemoteTensor> {
        self.remote.iter().filter(|remote| remote.what != What::Masters).cloned().collect()
    }

    pub(super) fn has_masters_of(&self, parameter: &str) -> bool {
        self.remote.iter().any(|remote| remote.what == What::Masters && remote.parameter == parameter)
    }

    /// Must be the next tensor.
    pub(super) fn fetch(&mut self, key: &str) -> anyhow::Result<Vec<f32>> {
        let remote = self.remote.get(self.next).filter(|remote| remote.key == key);
        let remote = remote.with_context(|| format!("`{key}` is asked for out of turn"))?;
        let mut numbers = vec![0.0; remote.shape.iter().product()];
        self.next += 1;
        self.ranks.send_to_lead(remote.owner, bytemuck::cast_slice_mut(&mut numbers))?;
        Ok(numbers)
    }

    pub(super) fn bytes(&self) -> u64 {
        let elements =
            self.moments().iter().map(|remote| remote.shape.iter().product::<usize>()).sum::<usize>();
        (elements * size_of::<f32>()) as u64
    }

    /// Fetches the rest, so that no other rank waits.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        while let Some(remote) = self.remote.get(self.next) {
            let key = remote.key.clone();
            self.fetch(&key)?;
        }
        Ok(())
    }

    pub(super) fn send_shards<I: Managed, B: Backend>(
        self,
        optimizer: &Optimizer<I>,
        gpt: &Gpt<B>,
    ) -> anyhow::Result<()> {
        let Self { ranks, remote, .. } = self;
        let kept = Own::of(optimizer)?;
        for RemoteTensor { parameter, what, owner, shape, .. } in remote {
            let mut own = Vec::new();
            if owner == ranks.rank() {
                own = match what {
                    What::Masters => kept.masters(gpt, &parameter)?,
                    What::Moment(part) => kept.moment(&parameter, part)?,
                };
                let all: usize = shape.iter().product();
                ensure!(own.len() == all, "`{parameter}` is saved with {} numbers, not {all}", own.len());
            }
            ranks.send_to_lead(owner, bytemuck::cast_slice_mut(&mut own))?;
        }
        Ok(())
    }
}

fn times<I: Managed>(optimizer: &Optimizer<I>) -> anyhow::Result<BTreeMap<String, usize>> {
    let on_device = optimizer.moments.iter().map(|(name, moments)| (name.clone(), moments.time));
    let on_host = optimizer.host.as_ref().map(HostPart::by_name).transpose()?.unwrap_or_default();
    let on_host = on_host.values().map(|state| (state.name().to_owned(), state.time() as usize));
    Ok(on_device.chain(on_host).collect())
}
