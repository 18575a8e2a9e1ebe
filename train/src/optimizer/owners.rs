//! The rank that owns each parameter, with its moments (`sharded_moments_change_no_bit_and_take_a_share_of_the_bytes`).

use std::collections::{BTreeMap, HashMap, HashSet};

use burn::module::ParamId;
use burn::tensor::{Shape, backend::Backend};
use models::{Gpt, ParameterInfo};
use runs::config::{Config, ShardKind};

use crate::ranks::Ranks;
use crate::stages::{stage_of, stages};

/// An empty table means that this process owns all parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owners {
    /// In a pipeline, a stage.
    rank: usize,
    world: usize,
    are_stages: bool,
    by_name: BTreeMap<String, Owned>,
    by_id: HashMap<ParamId, (usize, bool)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Owned {
    pub(crate) rank: usize,
    pub(crate) shape: Shape,
    /// Whether only its owner keeps the weights.
    pub(crate) is_alone: bool,
}

impl Owners {
    /// The same on all ranks.
    pub(crate) fn new<B: Backend>(config: &Config, gpt: &Gpt<B>, ranks: &Ranks) -> Self {
        let (shard, are_stages) = (config.memory.shard, ranks.form_pipelines());
        if ranks.is_alone() || !(are_stages || shard.has_owners()) {
            return Self::default();
        }
        let learning = gpt.learning();
        let owners = divided(config, learning.iter().map(|(_, parameter)| parameter), ranks);
        let is_alone = |parameter: &ParameterInfo| are_stages || is_gathered(shard, parameter);
        let by_id = learning.iter().zip(&owners);
        let by_id = by_id.map(|((id, parameter), rank)| (*id, (*rank, is_alone(parameter)))).collect();
        let by_name = learning.into_iter().zip(owners).map(|((_, parameter), rank)| {
            let is_alone = is_alone(&parameter);
            let ParameterInfo { name, shape, .. } = parameter;
            (name, Owned { rank, shape: Shape::from(shape), is_alone })
        });
        let by_name = by_name.collect();
        Self { rank: own(ranks), world: ranks.world(), are_stages, by_name, by_id }
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn world(&self) -> usize {
        self.world
    }

    pub(crate) fn are_sharded(&self) -> bool {
        !self.by_name.is_empty()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_name.get(name).is_none_or(|owned| owned.rank == self.rank)
    }

    /// `None` if parameters are not divided.
    pub(crate) fn owner(&self, id: ParamId) -> Option<usize> {
        self.by_id.get(&id).map(|(owner, _)| *owner)
    }

    /// The rank that receives the sum of gradients; `None` for all that sum.
    pub(crate) fn receiver(&self, id: ParamId) -> Option<usize> {
        self.owner(id).filter(|_| !self.are_stages)
    }

    pub(crate) fn are_stages(&self) -> bool {
        self.are_stages
    }

    pub(super) fn keep(&self, id: ParamId) -> bool {
        self.by_id.get(&id).is_none_or(|(_, is_alone)| *is_alone)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Owned> {
        self.by_name.get(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }

    /// Whether other ranks have its weights during a use at most.
    pub(crate) fn gather(&self, name: &str) -> bool {
        self.get(name).is_some_and(|owned| owned.is_alone)
    }
}

/// Which numbers of a future model this rank needs.
pub(crate) fn held(config: &Config, ranks: &Ranks) -> impl Fn(&str) -> bool + use<> {
    let shard = if ranks.is_alone() { ShardKind::None } else { config.memory.shard };
    let parameters = config.model.parameters();
    let owners = divided(config, parameters.iter(), ranks);
    let are_stages = ranks.form_pipelines();
    let others = parameters.into_iter().zip(owners).filter_map(|(parameter, owner)| {
        (owner != own(ranks) && (are_stages || is_gathered(shard, &parameter))).then_some(parameter.name)
    });
    let others: HashSet<String> = others.collect();
    move |name| !others.contains(name)
}

fn own(ranks: &Ranks) -> usize {
    if ranks.form_pipelines() { ranks.stage() } else { ranks.rank() }
}

fn divided<'p>(
    config: &Config,
    parameters: impl Iterator<Item = &'p ParameterInfo>,
    ranks: &Ranks,
) -> Vec<usize> {
    if ranks.form_pipelines() {
        let stages = stages(config, ranks.stages());
        return parameters.map(|parameter| stage_of(&stages, parameter.part)).collect();
    }
    let sizes: Vec<u64> = parameters.map(ParameterInfo::elements).collect();
    exchange::shards(&sizes, ranks.world())
}

fn is_gathered(shard: ShardKind, parameter: &ParameterInfo) -> bool {
    shard == ShardKind::Weights && parameter.is_projection()
}
