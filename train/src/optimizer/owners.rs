//! The rank that owns each parameter, with its moments. Whole parameters are divided, balanced by bytes
//! (`sharded_moments_change_no_bit_and_take_a_share_of_the_bytes`).

use std::collections::{BTreeMap, HashMap};

use anyhow::Context;
use backend_offload::Managed;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{
    Shape, Tensor, TensorData,
    backend::{AutodiffBackend, Backend},
};
use models::{Gpt, OnDemand, ParameterInfo};

use super::HostPart;
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

/// Broadcasts each parameter from its owner.
pub(super) fn gathered<B: AutodiffBackend<InnerBackend: Managed>>(
    owners: &Owners,
    host: Option<&mut HostPart>,
    gpt: Gpt<B>,
    ranks: &mut Ranks,
) -> (Gpt<B>, anyhow::Result<()>) {
    if !owners.are_sharded() {
        return (gpt, Ok(()));
    }
    let (path, on_demand) = (Vec::new(), HashMap::new());
    let mut gather = Gather { owners, host, ranks, path, on_demand, outcome: Ok(()) };
    let gpt = gpt.map(&mut gather);
    let gpt = gpt.with_weights_on_demand(|id| gather.on_demand.remove(&id));
    (gpt, gather.outcome)
}

struct Gather<'a> {
    owners: &'a Owners,
    host: Option<&'a mut HostPart>,
    ranks: &'a mut Ranks,
    path: Vec<String>,
    on_demand: HashMap<ParamId, OnDemand>,
    outcome: anyhow::Result<()>,
}

impl Gather<'_> {
    fn broadcast<I: Managed, const D: usize>(
        &mut self,
        (id, name): (ParamId, &str),
        weight: Tensor<I, D>,
        owner: usize,
    ) -> anyhow::Result<Tensor<I, D>> {
        let (shape, kind, device) = (weight.shape(), weight.dtype(), weight.device());
        let owns = owner == self.ranks.rank();

        let host = self.host.as_mut().filter(|host| host.is_broadcast_from_host(id));
        let Some(host) = host else {
            let mut numbers = vec![0.0_f32; shape.num_elements()];
            if owns {
                numbers = super::numbers(weight.clone())?;
            }
            self.ranks.hear(owner, bytemuck::cast_slice_mut(&mut numbers))?;
            if owns {
                return Ok(weight);
            }
            drop(weight);
            return Ok(Tensor::from_data(TensorData::new(numbers, shape), &device));
        };

        let code = host.settings.parameters.form(name).code;
        let mut weights = if owns {
            host.stepped(id).context("a parameter without a gradient takes no step")?
        } else {
            HostPart::receive_buffer(code, shape.clone(), kind)
        };
        self.ranks.hear(owner, &mut weights.bytes)?;

        if let Some(code) = code {
            self.on_demand.insert(id, host.place_tiles::<I>(code, &weights, shape, &device));
            return Ok(weight);
        }
        drop(weight);
        Ok(host.place(weights, &device))
    }
}

impl<B: AutodiffBackend<InnerBackend: Managed>> ModuleMapper<B> for Gather<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, weight, mapper) = param.consume();
        let name = self.path.join(".");
        let owner = self.owners.get(&name).map(|owned| owned.rank);
        let Some(owner) = owner.filter(|_| self.outcome.is_ok()) else {
            return Param::from_mapped_value(id, weight, mapper);
        };
        let weight = match self.broadcast((id, &name), weight.clone().inner(), owner) {
            Ok(weight) => Tensor::from_inner(weight).require_grad(),
            Err(error) => {
                self.outcome = Err(error);
                weight
            }
        };
        Param::from_mapped_value(id, weight, mapper)
    }
}
