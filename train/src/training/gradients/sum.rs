//! The sum of a step's gradients as they arrive from the backward pass.

use std::sync::Arc;

use burn::backend::Autodiff;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Shape, Tensor, TensorData, backend::Backend};
use exchange::Share;
use models::Gpt;

use super::overlapped::OverlappedReduce;
use crate::optimizer::{HostPart, Owners, Passes, SquaredNorms, numbers};

/// The sum over micro-batches, each of which brings every parameter once.
pub(crate) struct Sum<'a, I: Backend> {
    pub(crate) share: Share,
    /// Sums of neighbouring micro-batches, earlier ones first.
    parts: Vec<GradientsParams>,
    /// Complete gradients of parameters stepped on the device, and their norms.
    pub(crate) grads: GradientsParams,
    pub(crate) norms: SquaredNorms<I>,
    pub(crate) host: Option<&'a mut HostPart>,
    /// The rank that steps each parameter, if ranks divide them.
    pub(crate) owners: &'a Owners,
    pub(crate) reduce: Option<OverlappedReduce<I>>,
    /// Bytes of gradients outside the host part: waiting, under way or complete.
    pub(crate) held: Held,
    current: Current,
    pub(crate) failure: Option<String>,
}

#[derive(Default)]
struct Current {
    added: u64,
    /// Rows that it names of an embedding by rows.
    named: Option<Arc<[u32]>>,
}

impl<'a, I: Backend> Sum<'a, I> {
    pub(crate) fn new(
        share: Share,
        host: Option<&'a mut HostPart>,
        owners: &'a Owners,
        passes: Passes<I>,
    ) -> Self {
        Self {
            share,
            parts: Vec::new(),
            grads: GradientsParams::new(),
            norms: SquaredNorms::new(passes),
            host,
            owners,
            reduce: None,
            held: Held::default(),
            current: Current::default(),
            failure: None,
        }
    }

    pub(crate) fn begin_micro_batch(&mut self, named: Option<Arc<[u32]>>) {
        self.current.named = named;
    }

    pub(crate) fn end_micro_batch(&mut self) {
        self.current.added += 1;
    }

    pub(crate) fn add(&mut self, gpt: &Gpt<Autodiff<I>>, mut arrived: GradientsParams) {
        // Every weight has been used by now.
        self.settle();
        gpt.visit(&mut Arrival { arrived: &mut arrived, sum: self });
    }

    /// Waits for the last update. Its failure counts as the first one.
    pub(crate) fn settle(&mut self) {
        if let Some(host) = &mut self.host
            && let Err(error) = host.settle()
        {
            self.failure.get_or_insert(format!("{error:#}"));
        }
    }

    /// Waits until the host has taken in all gradients that were read.
    pub(crate) fn gather(&mut self) {
        if let Some(host) = &mut self.host
            && let Err(error) = host.gather()
        {
            self.failure.get_or_insert(error.to_string());
        }
    }

    /// Whether this parameter's sum ends with the arriving micro-batch.
    fn is_last(&self) -> bool {
        self.share.world == 1 && self.ends()
    }

    fn ends(&self) -> bool {
        let range = self.share.range();
        self.current.added + 1 == range.end - range.start
    }

    pub(crate) fn host_of(&mut self, id: ParamId) -> Option<&mut HostPart> {
        self.host.as_deref_mut().filter(|host| host.has(id))
    }

    fn add_one<const D: usize>(&mut self, id: ParamId, arrived: Tensor<I, D>) {
        let [before, after] =
            [self.current.added, self.current.added + 1].map(|added| self.share.held(added));
        let is_last = self.is_last();
        // Sums left over at the end are added from the right.
        let place = if is_last { 0 } else { after - 1 };
        let bytes = bytes_of(&arrived);
        let left = (place..before).rev().map(|part| self.parts[part].remove::<I, D>(id));
        let sum = left.fold(arrived, |sum, left| left.expect("each micro-batch has every gradient") + sum);
        self.held.remove(bytes * before.saturating_sub(place) as u64);
        if is_last {
            return self.complete(id, sum);
        }
        if self.parts.len() == place {
            self.parts.push(GradientsParams::new());
        }
        self.parts[place].register(id, sum);
        self.held.add(bytes);
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
        let parts = self.parts[..self.share.held(range.end - range.start)].iter_mut();
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

impl<I: Backend> Sum<'_, I> {
    pub(crate) fn norm(&mut self, on_device: Option<f32>) -> anyhow::Result<f32> {
        match &mut self.host {
            None => Ok(on_device.unwrap_or_default()),
            Some(host) => Ok(together(on_device, host.squares()?)),
        }
    }
}

pub(crate) fn together(on_device: Option<f32>, on_host: f64) -> f32 {
    let on_device = f64::from(on_device.unwrap_or_default());
    (on_device * on_device + on_host).sqrt() as f32
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

fn bytes_of<I: Backend, const D: usize>(gradient: &Tensor<I, D>) -> u64 {
    (size_of::<f32>() * gradient.shape().num_elements()) as u64
}

struct Arrival<'a, 's, I: Backend> {
    arrived: &'a mut GradientsParams,
    sum: &'a mut Sum<'s, I>,
}

impl<I: Backend> ModuleVisitor<Autodiff<I>> for Arrival<'_, '_, I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Autodiff<I>, D>>) {
        let Some(arrived) = self.arrived.remove::<I, D>(param.id) else { return };
        let is_last = self.sum.is_last();
        if let Some(host) = self.sum.host.as_mut().filter(|host| host.has(param.id)) {
            if self.sum.failure.is_none() {
                let taken = match &self.sum.current.named {
                    Some(rows) if host.is_table(param.id) => host.arrive_rows(rows, arrived),
                    _ => host.arrive(param.id, arrived, param.val().dtype(), is_last),
                };
                self.sum.failure = taken.err().map(|error| error.to_string());
            }
        } else {
            self.sum.add_one(param.id, arrived);
        }
        if self.sum.ends() {
            self.sum.submit::<D>(param.id, param.lazy_shape(), param.lazy_device());
        }
    }
}
