//! The rank that owns each parameter, with its moments (`sharded_moments_change_no_bit_and_take_a_share_of_the_bytes`).

use std::collections::{BTreeMap, HashMap, HashSet};

use burn::module::ParamId;
use burn::tensor::{Shape, backend::Backend};
use models::{Gpt, ParameterInfo};
use runs::config::{Config, ShardKind};

use crate::ranks::Ranks;

/// An empty table means that this process owns all parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owners {
    rank: usize,
    world: usize,
    by_name: BTreeMap<String, Owned>,
    by_id: HashMap<ParamId, usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Owned {
    pub(crate) rank: usize,
    pub(crate) shape: Shape,
    /// Its block, if only its owner keeps the weights.
    pub(crate) gathered: Option<usize>,
}

impl Owners {
    /// The same on all ranks.
    pub(crate) fn new<B: Backend>(shard: ShardKind, gpt: &Gpt<B>, ranks: &Ranks) -> Self {
        if ranks.is_alone() || !shard.has_owners() {
            return Self::default();
        }
        let learning = gpt.learning();
        let owners = divided(learning.iter().map(|(_, parameter)| parameter), ranks);
        let by_id = learning.iter().zip(&owners).map(|((id, _), rank)| (*id, *rank)).collect();
        let by_name = learning.into_iter().zip(owners).map(|((_, parameter), rank)| {
            let gathered = parameter.block().filter(|_| is_gathered(shard, &parameter));
            let ParameterInfo { name, shape, .. } = parameter;
            (name, Owned { rank, shape: Shape::from(shape), gathered })
        });
        let by_name = by_name.collect();
        Self { rank: ranks.rank(), world: ranks.world(), by_name, by_id }
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
        self.by_id.get(&id).copied()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Owned> {
        self.by_name.get(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }

    /// Whether other ranks gather the weights for each use.
    pub(crate) fn gather(&self, name: &str) -> bool {
        self.get(name).is_some_and(|owned| owned.gathered.is_some())
    }
}

/// Which numbers of a future model this rank needs.
pub(crate) fn held(config: &Config, ranks: &Ranks) -> impl Fn(&str) -> bool + use<> {
    let shard = if ranks.is_alone() { ShardKind::None } else { config.memory.shard };
    let parameters = config.model.parameters();
    let owners = divided(parameters.iter(), ranks);
    let others = parameters.into_iter().zip(owners).filter_map(|(parameter, owner)| {
        (owner != ranks.rank() && is_gathered(shard, &parameter)).then_some(parameter.name)
    });
    let others: HashSet<String> = others.collect();
    move |name| !others.contains(name)
}

fn divided<'p>(parameters: impl Iterator<Item = &'p ParameterInfo>, ranks: &Ranks) -> Vec<usize> {
    let sizes: Vec<u64> = parameters.map(ParameterInfo::elements).collect();
    exchange::shards(&sizes, ranks.world())
}

fn is_gathered(shard: ShardKind, parameter: &ParameterInfo) -> bool {
    shard == ShardKind::Weights && parameter.is_projection()
}
