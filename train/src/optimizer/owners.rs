//! The rank that owns each parameter, with its moments (`sharded_moments_change_no_bit_and_take_a_share_of_the_bytes`).

use std::collections::{BTreeMap, HashMap};

use burn::module::ParamId;
use burn::tensor::{Shape, backend::Backend};
use models::{Gpt, ParameterInfo};

use crate::ranks::Ranks;

/// An empty table means that this process owns all parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owners {
    rank: usize,
    by_name: BTreeMap<String, Owned>,
    by_id: HashMap<ParamId, usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Owned {
    pub(crate) rank: usize,
    pub(crate) shape: Shape,
}

impl Owners {
    /// Divides the parameters of `gpt`, the same way on all ranks.
    pub(crate) fn sharded<B: Backend>(gpt: &Gpt<B>, ranks: &Ranks) -> Self {
        if ranks.is_alone() {
            return Self::default();
        }
        let learning = gpt.learning();
        let sizes: Vec<u64> = learning.iter().map(|(_, parameter)| parameter.elements()).collect();
        let owners = exchange::shards(&sizes, ranks.world());
        let by_id = learning.iter().zip(&owners).map(|((id, _), rank)| (*id, *rank)).collect();
        let owned = learning.into_iter().zip(owners);
        let by_name = owned.map(|((_, ParameterInfo { name, shape, .. }), rank)| {
            (name, Owned { rank, shape: Shape::from(shape) })
        });
        let by_name = by_name.collect();
        Self { rank: ranks.rank(), by_name, by_id }
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
}
