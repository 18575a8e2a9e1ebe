//! The sum of a step's gradients as they arrive from the backward pass.

use std::ops::Range;
use std::sync::Arc;

use backend_offload::Managed;
use burn::backend::Autodiff;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Shape, Tensor, TensorData};
use exchange::Share;
use host_optim::HostOptimError;
use models::Gpt;

use super::overlapped::OverlappedReduce;
use crate::optimizer::{HostPart, Owners, Passes, SquaredNorms, WeightWindow, narrowed, numbers};

/// Each micro-batch brings every parameter once.
pub(crate) struct Sum<'a, I: Managed> {
    pub(crate) share: Share,
    parts: PartialSums,
    /// Complete, of parameters stepped on the device.
    pub(crate) grads: GradientsParams,
    pub(crate) norms: SquaredNorms<I>,
    pub(crate) host: Option<&'a mut HostPart>,
    pub(crate) owners: &'a Owners,
    pub(crate) reduce: Option<OverlappedReduce<I>>,
    /// Bytes of gradients outside the host part: waiting, under way or complete.
    pub(crate) held: Held,
    group: Group,
    pub(crate) failure: Option<String>,
}

#[derive(Default)]
struct Group {
    /// Micro-batches of earlier groups.
    before: u64,
    /// Embedding rows that each micro-batch names.
    named: Vec<Option<Arc<[u32]>>>,
    /// Most bytes of segment inputs that a group kept.
    kept_inputs: u64,
    /// Sums for the host, until the group's last micro-batch.
    parts: PartialSums,
}

/// Sums of neighbouring micro-batches by place, earlier ones first.
#[derive(Default)]
struct PartialSums(Vec<GradientsParams>);

impl PartialSums {
    /// Adds and removes the sums at `places`, the last first.
    fn fold<I: Managed, const D: usize>(
        &mut self,
        id: ParamId,
        places: Range<usize>,
        arrived: Tensor<I, D>,
    ) -> Tensor<I, D> {
        let left = places.rev().map(|place| self.0[place].remove::<I, D>(id));
        left.fold(arrived, |sum, left| left.expect("each micro-batch has every gradient") + sum)
    }

    fn put<I: Managed, const D: usize>(&mut self, id: ParamId, place: usize, sum: Tensor<I, D>) {
        while self.0.len() <= place {
            self.0.push(GradientsParams::new());
        }
        self.0[place].register(id, sum);
    }
}

impl<'a, I: Managed> Sum<'a, I> {
    pub(crate) fn new(
        share: Share,
        host: Option<&'a mut HostPart>,
        owners: &'a Owners,
        passes: Passes<I>,
    ) -> Self {
        Self {
            share,
            parts: PartialSums::default(),
            grads: GradientsParams::new(),
            norms: SquaredNorms::new(passes),
            host,
            owners,
            reduce: None,
            held: Held::default(),
            group: Group::default(),
            failure: None,
        }
    }

    pub(crate) fn window(&self) -> Option<WeightWindow<I>> {
        self.reduce.as_ref()?.window.clone()
    }

    pub(crate) fn has_no_micro_batch(&self) -> bool {
        self.share.range().is_empty()
    }

    pub(crate) fn begin_group(&mut self, named: Vec<Option<Arc<[u32]>>>) {
        self.group.named = named;
    }

    /// A micro-batch that passes alone.
    pub(crate) fn begin_micro_batch(&mut self, place: u64, named: Option<Arc<[u32]>>) {
        (self.group.before, self.group.named) = (place, vec![named]);
    }

    pub(crate) fn keeps(&mut self, bytes: u64) {
        self.group.kept_inputs = self.group.kept_inputs.max(bytes);
    }

    pub(crate) fn kept_inputs(&self) -> u64 {
        self.group.kept_inputs
    }

    pub(crate) fn end_group(&mut self) {
        self.group.before += self.group.named.len() as u64;
    }

    /// `place` is the micro-batch's place in its group.
    pub(crate) fn add(&mut self, gpt: &Gpt<Autodiff<I>>, place: usize, mut arrived: GradientsParams) {
        // Every weight has been used by now.
        self.settle();
        gpt.visit(&mut Arrival { place, arrived: &mut arrived, sum: self });
    }

    /// A failure counts unless one came before.
    pub(crate) fn settle(&mut self) {
        if let Some(host) = &mut self.host
            && let Err(error) = host.settle()
        {
            self.failure.get_or_insert(format!("{error:#}"));
        }
    }

    /// Waits until the host has all gradients that were read.
    pub(crate) fn gather(&mut self) {
        if let Some(host) = &mut self.host
            && let Err(error) = host.gather()
        {
            self.failure.get_or_insert(error.to_string());
        }
    }

    fn is_last(&self, place: usize) -> bool {
        self.share.world == 1 && self.ends(place)
    }

    fn ends(&self, place: usize) -> bool {
        let range = self.share.range();
        self.group.before + place as u64 + 1 == range.end - range.start
    }

    pub(crate) fn host_of(&mut self, id: ParamId) -> Option<&mut HostPart> {
        self.host.as_deref_mut().filter(|host| host.has(id))
    }

    fn add_one<const D: usize>(&mut self, id: ParamId, place: usize, arrived: Tensor<I, D>) {
        let added = self.group.before + place as u64;
        let [before, after] = [added, added + 1].map(|added| self.share.held(added));
        let is_last = self.is_last(place);
        // Leftover sums are added from the right.
        let place = if is_last { 0 } else { after - 1 };
        let bytes = bytes_of(&arrived);
        let sum = self.parts.fold(id, place..before, arrived);
        self.held.remove(bytes * before.saturating_sub(place) as u64);
        if is_last {
            return self.complete(id, sum);
        }
        self.parts.put(id, place, sum);
        self.held.add(bytes);
    }

    /// Gradients in tiles go one by one, each with its own random bits.
    fn arrive_on_host<const D: usize>(
        &mut self,
        id: ParamId,
        place: usize,
        arrived: Tensor<I, D>,
        weights: DType,
    ) -> Result<(), HostOptimError> {
        let is_last = self.is_last(place);
        let count = self.group.named.len();
        let host = self.host.as_deref_mut().expect("the host has this parameter");
        if let Some(rows) = self.group.named[place].as_ref().filter(|_| host.is_table(id)) {
            return host.arrive_rows(rows, arrived);
        }
        if count == 1 || host.receives_tiles(id)? {
            return host.arrive(id, arrived, weights, is_last);
        }

        let arrived = narrowed(arrived, weights).cast(FloatDType::F32);
        let [before, after] = [place, place + 1].map(|added| added.count_ones() as usize);
        let is_whole = place + 1 == count;
        let first = if is_whole { 0 } else { after - 1 };
        let bytes = bytes_of(&arrived);
        let sum = self.group.parts.fold(id, first..before, arrived);
        self.held.remove(bytes * before.saturating_sub(first) as u64);
        if is_whole {
            return host.arrive_sum(id, sum, count.ilog2(), is_last);
        }
        self.group.parts.put(id, first, sum);
        self.held.add(bytes);
        Ok(())
    }

    fn complete<const D: usize>(&mut self, id: ParamId, sum: Tensor<I, D>) {
        self.held.add(bytes_of(&sum));
        let sum = self.norms.add(id, sum);
        self.grads.register(id, sum);
    }

    pub(crate) fn take_rows<const D: usize>(&mut self, id: ParamId) -> anyhow::Result<Vec<Vec<f32>>> {
        match self.host_of(id) {
            Some(host) => Ok(host.leave(id)?),
            None => self.rows_of::<D>(id),
        }
    }

    fn rows_of<const D: usize>(&mut self, id: ParamId) -> anyhow::Result<Vec<Vec<f32>>> {
        let range = self.share.range();
        let parts = self.parts.0[..self.share.held(range.end - range.start)].iter_mut();
        let own = parts.map(|part| {
            let part = part.remove::<I, D>(id).expect("each micro-batch has every gradient");
            self.held.remove(bytes_of(&part));
            numbers(part)
        });
        own.collect()
    }

    pub(crate) fn complete_with<const D: usize>(
        &mut self,
        id: ParamId,
        sum: Vec<f32>,
        shape: Shape,
        device: &I::Device,
    ) {
        self.complete(id, Tensor::<I, D>::from_data(TensorData::new(sum, shape), device));
    }
}

impl<I: Managed> Sum<'_, I> {
    pub(crate) fn norm(&mut self, on_device: Option<f32>) -> anyhow::Result<f32> {
        match &mut self.host {
            None => Ok(on_device.unwrap_or_default()),
            Some(host) => Ok(together(on_device, host.squares()?)),
        }
    }
}

/// The norm of all gradients from that on the device and the sum of squares on the host. Infinite where its square is
/// infinite in f32, as on the device: second moments would become infinite, for good.
pub(crate) fn together(on_device: Option<f32>, on_host: f64) -> f32 {
    let on_device = f64::from(on_device.unwrap_or_default());
    let squares = on_device * on_device + on_host;
    if (squares as f32).is_infinite() { f32::INFINITY } else { squares.sqrt() as f32 }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    now: u64,
    pub(crate) peak: u64,
}

impl Held {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.peak = self.peak.max(self.now);
    }

    pub(crate) fn remove(&mut self, bytes: u64) {
        self.now -= bytes;
    }
}

fn bytes_of<I: Managed, const D: usize>(gradient: &Tensor<I, D>) -> u64 {
    (size_of::<f32>() * gradient.shape().num_elements()) as u64
}

struct Arrival<'a, 's, I: Managed> {
    place: usize,
    arrived: &'a mut GradientsParams,
    sum: &'a mut Sum<'s, I>,
}

impl<I: Managed> ModuleVisitor<Autodiff<I>> for Arrival<'_, '_, I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Autodiff<I>, D>>) {
        let Some(arrived) = self.arrived.remove::<I, D>(param.id) else { return };
        if self.sum.host_of(param.id).is_none() {
            self.sum.add_one(param.id, self.place, arrived);
        } else if self.sum.failure.is_none() {
            let taken = self.sum.arrive_on_host(param.id, self.place, arrived, param.val().dtype());
            self.sum.failure = taken.err().map(|error| error.to_string());
        }
        if self.sum.ends(self.place) {
            self.sum.submit::<D>(param.id, param.lazy_shape(), param.lazy_device());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norm_is_infinite_where_its_square_is_infinite_in_f32() {
        assert!(together(None, 1e40).is_infinite() && together(Some(1e19), 3e38).is_infinite());
        assert!(together(Some(f32::INFINITY), 0.0).is_infinite() && together(Some(f32::NAN), 0.0).is_nan());
        assert_eq!(together(Some(3.0), 16.0).to_bits(), 5.0f32.to_bits());
        assert_eq!(together(None, 1e38).to_bits(), 1e19f32.to_bits());
    }
}
