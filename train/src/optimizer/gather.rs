//! Sends new weights from their owners to all ranks, in rounds of neighbouring parameters
//! (`many_small_parameters_take_few_rounds`).

use std::collections::HashMap;
use std::ops::Range;

use anyhow::Context;
use backend_offload::Managed;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{
    DType, Shape, Tensor, TensorData,
    backend::{AutodiffBackend, Backend},
};
use exchange::neighbours;
use host_optim::Code;
use models::{Gpt, OnDemand};

use super::host::HostPart;
use super::owners::Owners;
use crate::ranks::{BUCKET_BYTES, Ranks};

struct Weights {
    id: ParamId,
    owner: usize,
    shape: Shape,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    /// Numbers of the owner's device.
    Device,
    /// What the owner's host has stepped, in tiles of a code.
    Host(Option<Code>, DType),
}

impl Weights {
    fn bytes(&self) -> usize {
        match self.form {
            Form::Device => size_of::<f32>() * self.shape.num_elements(),
            Form::Host(code, kind) => HostPart::broadcast_bytes(code, &self.shape, kind),
        }
    }
}

pub(super) fn gathered<B: AutodiffBackend<InnerBackend: Managed>>(
    owners: &Owners,
    mut host: Option<&mut HostPart>,
    mut gpt: Gpt<B>,
    ranks: &mut Ranks,
) -> (Gpt<B>, anyhow::Result<()>) {
    if !owners.are_sharded() {
        return (gpt, Ok(()));
    }
    let mut list = List { owners, host: host.as_deref(), path: Vec::new(), found: Vec::new() };
    gpt.visit(&mut list);
    let mut on_demand = HashMap::new();
    let mut outcome = Ok(());
    for round in rounds(list.found, BUCKET_BYTES * ranks.world()) {
        let parts: Vec<_> = round.iter().map(|weights| (weights.owner, weights.bytes())).collect();
        let (owned, places) = by_owner(&parts, ranks.world());
        let (mut bytes, rank) = (vec![0; owned.iter().sum()], ranks.rank());
        let own = round.iter().zip(&places).filter(|(weights, _)| weights.owner == rank);
        // Other ranks wait for this round nevertheless.
        outcome = outcome.and(fill(&mut bytes, own, host.as_deref_mut(), &gpt));
        if let Err(error) = ranks.gather_owned(&mut bytes, &owned) {
            outcome = outcome.and(Err(error));
            break;
        }
        let received = round.into_iter().zip(divided(bytes, places));
        let received = received.map(|(weights, bytes)| (weights.id, (weights, bytes))).collect();
        let host = host.as_deref();
        gpt = gpt.map(&mut Place { host, rank, received, on_demand: &mut on_demand });
    }
    (gpt.with_weights_on_demand(|id| on_demand.remove(&id)), outcome)
}

/// Neighbours of at most `most` bytes together, or one longer one.
fn rounds(list: Vec<Weights>, most: usize) -> Vec<Vec<Weights>> {
    let lens: Vec<usize> = list.iter().map(Weights::bytes).collect();
    let mut list = list.into_iter();
    neighbours(&lens, most).into_iter().map(|round| list.by_ref().take(round.len()).collect()).collect()
}

/// Each rank's bytes, and each part's place, by owner and bytes.
pub(super) fn by_owner(parts: &[(usize, usize)], world: usize) -> (Vec<usize>, Vec<Range<usize>>) {
    let mut owned = vec![0; world];
    for (owner, bytes) in parts {
        owned[*owner] += bytes;
    }
    let mut next: Vec<usize> = (0..world).map(|rank| owned[..rank].iter().sum()).collect();
    let places = parts.iter().map(|(owner, bytes)| {
        let begin = next[*owner];
        next[*owner] += bytes;
        begin..next[*owner]
    });
    let places = places.collect();
    (owned, places)
}

/// Writes what this rank owns to its places in `bytes`.
fn fill<'w, B: AutodiffBackend<InnerBackend: Managed>>(
    bytes: &mut [u8],
    own: impl Iterator<Item = (&'w Weights, &'w Range<usize>)>,
    mut host: Option<&mut HostPart>,
    gpt: &Gpt<B>,
) -> anyhow::Result<()> {
    let mut on_device = OnDevice { places: HashMap::new(), bytes, outcome: Ok(()) };
    for (weights, place) in own {
        match (weights.form, &mut host) {
            (Form::Host(..), Some(host)) => {
                let stepped = host.stepped(weights.id);
                let stepped = stepped.context("a parameter without a gradient takes no step")?;
                on_device.bytes[place.clone()].copy_from_slice(&stepped.bytes);
            }
            _ => _ = on_device.places.insert(weights.id, place.clone()),
        }
    }
    if !on_device.places.is_empty() {
        gpt.visit(&mut on_device);
    }
    on_device.outcome
}

/// Without a copy of a parameter that has the round alone.
fn divided(bytes: Vec<u8>, places: Vec<Range<usize>>) -> Vec<Vec<u8>> {
    if places.len() == 1 {
        return vec![bytes];
    }
    places.into_iter().map(|place| bytes[place].to_vec()).collect()
}

struct List<'a> {
    owners: &'a Owners,
    host: Option<&'a HostPart>,
    path: Vec<String>,
    found: Vec<Weights>,
}

impl<B: Backend> ModuleVisitor<B> for List<'_> {
    models::keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let name = self.path.join(".");
        let Some(owned) = self.owners.get(&name).filter(|owned| !owned.is_alone) else { return };
        let host = self.host.filter(|host| host.is_broadcast_from_host(param.id));
        let form = host.map_or(Form::Device, |host| {
            Form::Host(host.settings.parameters.form(&name).code, param.val().dtype())
        });
        self.found.push(Weights { id: param.id, owner: owned.rank, shape: owned.shape.clone(), form });
    }
}

struct OnDevice<'a> {
    places: HashMap<ParamId, Range<usize>>,
    bytes: &'a mut [u8],
    outcome: anyhow::Result<()>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for OnDevice<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(place) = self.places.remove(&param.id) else { return };
        match super::numbers(param.val().inner()) {
            Ok(numbers) => self.bytes[place].copy_from_slice(bytemuck::cast_slice(&numbers)),
            Err(error) => self.outcome = Err(error),
        }
    }
}

struct Place<'a> {
    host: Option<&'a HostPart>,
    rank: usize,
    received: HashMap<ParamId, (Weights, Vec<u8>)>,
    on_demand: &'a mut HashMap<ParamId, OnDemand>,
}

impl Place<'_> {
    fn place<I: Managed, const D: usize>(
        &mut self,
        (Weights { id, owner, shape, form }, bytes): (Weights, Vec<u8>),
        weight: Tensor<I, D>,
    ) -> Tensor<I, D> {
        let device = weight.device();
        match (form, self.host) {
            (Form::Host(code, kind), Some(host)) => {
                let weights = HostPart::received(code, shape.clone(), kind, bytes);
                if let Some(code) = code {
                    self.on_demand.insert(id, host.place_tiles::<I>(code, &weights, shape, &device));
                    return weight;
                }
                drop(weight);
                host.place(weights, &device)
            }
            _ if owner == self.rank => weight,
            _ => {
                drop(weight);
                Tensor::from_data(TensorData::from_bytes_vec(bytes, shape, DType::F32), &device)
            }
        }
    }
}

impl<B: AutodiffBackend<InnerBackend: Managed>> ModuleMapper<B> for Place<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !self.received.contains_key(&param.id) {
            return param;
        }
        let (id, weight, mapper) = param.consume();
        let weight = match self.received.remove(&id) {
            Some(received) => {
                let inner = weight.clone().inner();
                drop(weight);
                Tensor::from_inner(self.place(received, inner)).require_grad()
            }
            None => weight,
        };
        Param::from_mapped_value(id, weight, mapper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_holds_neighbours_up_to_its_size_or_one_longer_parameter() {
        let list = |lens: &[usize]| {
            let of = |len: &usize| Weights {
                id: ParamId::new(),
                owner: 0,
                shape: Shape::new([*len]),
                form: Form::Device,
            };
            lens.iter().map(of).collect()
        };
        let lens = |lens: &[usize], most: usize| -> Vec<usize> {
            rounds(list(lens), 4 * most).iter().map(Vec::len).collect()
        };
        assert_eq!(lens(&[1, 2, 3, 4], 3), [2, 1, 1]);
        assert_eq!(lens(&[9, 1, 1, 9], 3), [1, 2, 1]);
        assert_eq!(lens(&[], 3), [0_usize; 0]);
    }
}
