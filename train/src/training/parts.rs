//! Parts of a checkpoint that only other ranks have, moments and weights: each rank writes its own into the files that
//! rank 0 begins, so their bytes do not depend on the number of ranks
//! (`a_checkpoint_of_a_sharded_optimizer_resumes_with_any_placement`).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use backend_offload::Managed;
use burn::tensor::{TensorData, backend::Backend};
use models::Gpt;
use models::weights::{Begun, Joined};
use runs::checkpoint::{MOMENTS, WEIGHTS};

use super::snapshot::{Own, times};
use crate::optimizer::Optimizer;
use crate::ranks::Ranks;
use crate::rule::{MOMENT_NAMES, keeps_second_moment};

/// Place of a part that the checkpoint does not have.
const NOWHERE: u64 = u64::MAX;

pub(crate) struct Parts {
    /// Equal on every rank.
    remote: Vec<Part>,
    pub(super) times: BTreeMap<String, usize>,
}

#[derive(Debug)]
pub(super) struct Part {
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

impl What {
    fn file(self) -> &'static str {
        if self == Self::Masters { WEIGHTS } else { MOMENTS }
    }
}

impl Parts {
    /// `None` if rank 0 has everything.
    pub(super) fn list<I: Managed>(
        optimizer: &mut Optimizer<I>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<Option<Self>> {
        if !optimizer.owners.are_sharded() {
            return Ok(None);
        }
        optimizer.settle()?;
        let own: BTreeMap<_, _> = times(optimizer, &optimizer.states_on_host()?).collect();
        let own = serde_json::to_vec(&own)?;
        let mut times = BTreeMap::new();
        for theirs in ranks.gathered(&own)? {
            let theirs: BTreeMap<String, usize> =
                serde_json::from_slice(&theirs).context("reading another rank's steps")?;
            times.extend(theirs);
        }

        if let Some(name) = times.keys().find(|name| optimizer.owners.get(name).is_none()) {
            bail!("`{name}` is no parameter");
        }
        let mut remote = Vec::new();
        for name in optimizer.owners.names() {
            let Some(owned) = optimizer.owners.get(name).filter(|owned| owned.rank != 0) else { continue };
            let has_state = times.contains_key(name);
            let of = |key, what| Part {
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
            if has_state {
                let second = keeps_second_moment(optimizer.kind(), name, owned.shape.num_dims());
                let words = MOMENT_NAMES.iter().enumerate().take(1 + usize::from(second));
                remote.extend(words.map(|(part, word)| of(format!("{name}.{word}"), What::Moment(part))));
            }
        }
        Ok(Some(Self { remote, times }))
    }

    pub(super) fn moments(&self) -> impl Iterator<Item = &Part> {
        self.remote.iter().filter(|part| part.what != What::Masters)
    }

    /// Whether another rank writes tensor `key` of the checkpoint.
    pub(super) fn has(&self, key: &str) -> bool {
        self.remote.iter().any(|part| part.key == key)
    }

    /// Of moments.
    pub(super) fn bytes(&self) -> u64 {
        let elements = self.moments().map(|part| part.shape.iter().product::<usize>()).sum::<usize>();
        (elements * size_of::<f32>()) as u64
    }

    /// Places in the files that rank 0 has begun, in the order of all ranks' lists.
    pub(super) fn places(&self, weights: Option<&Begun<'_>>, moments: &Begun<'_>) -> Vec<u64> {
        let place = |part: &Part| match part.what {
            What::Masters => weights.and_then(|weights| weights.place(&part.key)),
            What::Moment(_) => moments.place(&part.key),
        };
        self.remote.iter().map(|part| place(part).unwrap_or(NOWHERE)).collect()
    }

    /// Writes this rank's parts to their `places` in `folder`. Synced if `is_far`, where rank 0 cannot sync them.
    pub(super) fn write<I: Managed, B: Backend>(
        &self,
        (optimizer, gpt): (&Optimizer<I>, &Gpt<B>),
        (folder, places): (&Path, &[u64]),
        (rank, is_far): (usize, bool),
    ) -> anyhow::Result<()> {
        let listed = self.remote.len();
        ensure!(places.len() == listed, "rank 0 writes {} parts, this rank knows {listed}", places.len());
        let kept = Own::of(optimizer)?;
        for name in [WEIGHTS, MOMENTS] {
            let placed =
                self.remote.iter().zip(places).filter(|(part, place)| {
                    part.owner == rank && part.what.file() == name && **place != NOWHERE
                });
            let mut placed = placed.peekable();
            if placed.peek().is_none() {
                continue;
            }
            let mut file = Joined::open(&folder.join(name))?;
            for (part, place) in placed {
                let own = match part.what {
                    What::Masters => kept.masters(gpt, &part.parameter)?,
                    What::Moment(moment) => kept.moment(&part.parameter, moment)?,
                };
                let all: usize = part.shape.iter().product();
                ensure!(own.len() == all, "`{}` is saved with {} numbers, not {all}", part.key, own.len());
                file.write(&part.key, *place, TensorData::new(own, part.shape.clone()))?;
            }
            if is_far {
                file.sync()?;
            }
        }
        Ok(())
    }
}

/// Rank 0 announces the places, or, without any, that it could not begin.
pub(super) fn announce(places: Option<&[u64]>, ranks: &mut Ranks) -> anyhow::Result<()> {
    let count = places.map(|places| places.len() as u64);
    let said: Vec<u64> = count.into_iter().chain(places.unwrap_or_default().iter().copied()).collect();
    ranks.broadcast(bytemuck::cast_slice(&said)).map(drop)
}

/// What rank 0 announces.
pub(super) fn announced(ranks: &mut Ranks) -> anyhow::Result<Option<Vec<u64>>> {
    let said: Vec<u64> = bytemuck::pod_collect_to_vec(&ranks.broadcast(&[])?);
    Ok(said.split_first().map(|(_, places)| places.to_owned()))
}
