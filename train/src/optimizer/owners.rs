//! Which rank keeps a parameter's moments and steps it, where ranks divide them: whole parameters, balanced by bytes.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{
    Shape, Tensor, TensorData,
    backend::{AutodiffBackend, Backend},
};
use models::Gpt;

use crate::ranks::Ranks;

/// Owners by parameter. Without any, this process has all.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owners {
    rank: usize,
    by_name: BTreeMap<String, Owned>,
}

#[derive(Debug, Clone)]
pub(crate) struct Owned {
    /// Its owner.
    pub(crate) rank: usize,
    pub(crate) shape: Shape,
}

impl Owners {
    /// The same on every rank: it follows from the model alone.
    pub(crate) fn divided<B: Backend>(gpt: &Gpt<B>, ranks: &Ranks) -> Self {
        if ranks.is_alone() {
            return Self::default();
        }
        let mut shapes = Shapes::default();
        gpt.visit(&mut shapes);
        let sizes: Vec<u64> = shapes.found.iter().map(|(_, shape)| shape.num_elements() as u64).collect();
        let owners = exchange::shards(&sizes, ranks.world());
        let owned = shapes.found.into_iter().zip(owners);
        let by_name = owned.map(|((name, shape), rank)| (name, Owned { rank, shape })).collect();
        Self { rank: ranks.rank(), by_name }
    }

    pub(crate) fn are_divided(&self) -> bool {
        !self.by_name.is_empty()
    }

    /// Whether this process steps the parameter.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_name.get(name).is_none_or(|owned| owned.rank == self.rank)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Owned> {
        self.by_name.get(name)
    }

    /// The model with every parameter as its owner has it.
    pub(crate) fn gathered<B: AutodiffBackend>(
        &self,
        gpt: Gpt<B>,
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<()>) {
        if !self.are_divided() {
            return (gpt, Ok(()));
        }
        let mut gather = Gather { owners: self, ranks, path: Vec::new(), outcome: Ok(()) };
        let gpt = gpt.map(&mut gather);
        (gpt, gather.outcome)
    }
}

#[derive(Default)]
struct Shapes {
    path: Vec<String>,
    found: Vec<(String, Shape)>,
}

impl<B: Backend> ModuleVisitor<B> for Shapes {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.found.push((self.path.join("."), param.lazy_shape()));
    }
}

/// Lets each owner tell the others its parameters.
struct Gather<'a> {
    owners: &'a Owners,
    ranks: &'a mut Ranks,
    path: Vec<String>,
    outcome: anyhow::Result<()>,
}

impl Gather<'_> {
    fn tell<I: Backend, const D: usize>(
        &mut self,
        weight: Tensor<I, D>,
        owner: usize,
    ) -> anyhow::Result<Tensor<I, D>> {
        let (shape, device) = (weight.shape(), weight.device());
        let mut numbers = vec![0.0_f32; shape.num_elements()];
        if owner == self.ranks.rank() {
            numbers = super::numbers(weight.clone())?;
        }
        self.ranks.hear(owner, bytemuck::cast_slice_mut(&mut numbers))?;
        if owner == self.ranks.rank() {
            return Ok(weight);
        }
        drop(weight);
        Ok(Tensor::from_data(TensorData::new(numbers, shape), &device))
    }
}

impl<B: AutodiffBackend> ModuleMapper<B> for Gather<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, weight, mapper) = param.consume();
        let owner = self.owners.get(&self.path.join(".")).map(|owned| owned.rank);
        let Some(owner) = owner.filter(|_| self.outcome.is_ok()) else {
            return Param::from_mapped_value(id, weight, mapper);
        };
        let weight = match self.tell(weight.clone().inner(), owner) {
            Ok(told) => Tensor::from_inner(told).require_grad(),
            Err(error) => {
                self.outcome = Err(error);
                weight
            }
        };
        Param::from_mapped_value(id, weight, mapper)
    }
}
