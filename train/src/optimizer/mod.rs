//! The optimizer: steps every parameter by its own rule and keeps that rule's state.
//!
//! Burn 0.21 has no parameter groups, and its learner clones the model to step it, which holds all parameters twice.
//! Here the model is taken apart and put together one parameter at a time: old and new values of one tensor live side
//! by side, never of two. Which rule applies follows from the parameter's name and rank: weight decay shrinks matrices
//! only, and Muon is for matrices between hidden features.

mod adoption;
mod host;
mod moments;
mod muon;
mod norm;
mod numbers;
mod owners;
mod passes;
mod rows;
mod schedule;
mod streamed;
mod tables;
#[cfg(test)]
pub(crate) mod tests;
mod times;

pub(crate) use adoption::Restored;
pub(crate) use host::{HostPart, format};
pub(crate) use moments::Moments;
pub(crate) use norm::SquaredNorms;
pub(crate) use numbers::numbers;
pub(crate) use owners::Owners;
pub(crate) use passes::Passes;
pub(crate) use rows::come_by_rows;
pub(crate) use schedule::rate_share;
pub(crate) use streamed::check_eight_bits;
pub(crate) use tables::BLOCK_BYTES;
pub(crate) use times::HostTimes;

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, ensure};
use backend_offload::Managed;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::{AdamW, AdamWConfig, GradientsParams};
use burn::tensor::{
    Shape, Tensor,
    backend::{AutodiffBackend, Backend},
};
use host_optim::{HostOptimError, Update};
use models::{Compute, Gpt, OnDemand};
use runs::config::{Config, OptimizerKind, TrainSection};

use crate::plan::StatesOnDisk;
use crate::ranks::{Pair, Ranks};

/// The optimizer of a run: its settings, and the moments of every parameter stepped so far, by name.
#[derive(Debug)]
pub(crate) struct Optimizer<I: Backend> {
    settings: TrainSection,
    /// Number type of the model's products.
    compute: Compute,
    pub(crate) moments: BTreeMap<String, Moments<I>>,
    /// The parameters that are stepped on the host, if any are.
    pub(crate) host: Option<HostPart>,
    /// Rank that steps each parameter, where ranks divide them.
    pub(crate) owners: Owners,
    pub(crate) passes: Passes<I>,
}

/// The numbers of one step that are not in the settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stride {
    /// Share of the peak learning rate.
    pub(crate) share: f64,
    /// Factor on all gradients that keeps their norm within bounds; 1 leaves them alone.
    pub(crate) scale: f64,
}

impl Stride {
    /// Gradients whose `norm` is above `limit` are made as long as that.
    pub(crate) fn clipped(share: f64, norm: f64, limit: Option<f64>) -> Self {
        Self { share, scale: limit.map_or(1.0, |limit| limit / norm.max(limit)) }
    }
}

impl<I: Managed> Optimizer<I> {
    pub(crate) fn new(settings: &TrainSection) -> Self {
        let (moments, owners) = (BTreeMap::new(), Owners::default());
        let (settings, compute) = (settings.clone(), Compute::default());
        Self { settings, compute, moments, host: None, owners, passes: Passes::none() }
    }

    /// As `config` has it, with the part that is to be on the host.
    pub(crate) fn placed(config: &Config, device: &I::Device) -> Self {
        let host = HostPart::new::<I>(config, device);
        let passes = Passes::of_device();
        Self { compute: config.model.compute, host, passes, ..Self::new(&config.train) }
    }

    /// Takes over what is stepped on the host, with the states that are to be on the disk; returns the model as the device is to
    /// compute with it.
    pub(crate) fn adopt<B: AutodiffBackend<InnerBackend = I>>(
        &mut self,
        model: Gpt<B>,
        on_disk: StatesOnDisk,
    ) -> anyhow::Result<Gpt<B>> {
        match &mut self.host {
            Some(host) => host.adopt(model, &self.owners, on_disk),
            None => Ok(model),
        }
    }

    pub(crate) fn kind(&self) -> OptimizerKind {
        self.settings.optimizer
    }

    /// Bytes of all moments, as a checkpoint holds them.
    pub(crate) fn bytes(&self) -> u64 {
        let on_host = self.host.as_ref().map_or(0, HostPart::saved_bytes);
        on_host + self.moments.values().map(Moments::bytes).sum::<u64>()
    }

    /// Bytes of host memory that moments, master weights and waiting gradients take there.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.host.as_ref().map_or(0, HostPart::host_bytes)
    }

    /// The same moments with the numbers of `pairs`, in the order of their names.
    pub(crate) fn replace_moments(&mut self, pairs: Vec<Pair>, device: &I::Device) -> anyhow::Result<()> {
        let (found, expected) = (pairs.len(), self.moments.len());
        ensure!(found == expected, "moments of {found} parameters were saved, of {expected}");
        for ((name, moments), numbers) in self.moments.iter_mut().zip(pairs) {
            moments.replace(numbers, device).with_context(|| format!("the moments of `{name}`"))?;
        }
        Ok(())
    }

    /// Forgets the gradients of a step that is not taken.
    pub(crate) fn withhold(&mut self) {
        if let Some(host) = &mut self.host {
            host.withhold();
        }
    }

    /// The times of steps on the host, where there are any, for a step of the run that begins.
    pub(crate) fn times_from_here(&self) -> Option<HostTimes> {
        let times = self.host.as_ref()?.times.clone();
        times.begin_step();
        Some(times)
    }

    /// Waits for steps that are still on their way on the host.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        self.host.as_mut().map_or(Ok(()), HostPart::settle)
    }

    /// The model after one step along `gradients`, and along those that arrived on the host. Weights that are stepped there are
    /// waited for where they are first used. After a failure the model is between two steps, and of no use.
    pub(crate) fn step<B: AutodiffBackend<InnerBackend = I>>(
        &mut self,
        model: Gpt<B>,
        gradients: GradientsParams,
        stride: Stride,
    ) -> (Gpt<B>, Result<(), HostOptimError>) {
        let mut stepper = Stepper {
            optimizer: self,
            gradients,
            stride,
            path: Vec::new(),
            vectors: Vec::new(),
            matrices: Vec::new(),
            on_demand: HashMap::new(),
            failure: None,
        };
        let model = model.map(&mut stepper);
        let Stepper { mut vectors, matrices, mut on_demand, failure, .. } = stepper;
        let model = model.with_weights_on_demand(|id| on_demand.remove(&id));
        let begun = match (&mut self.host, failure) {
            (_, Some(failure)) => Err(failure),
            (None, None) => Ok(()),
            (Some(host), None) => {
                vectors.extend(matrices);
                host.begin(vectors)
            }
        };
        (model, begun)
    }

    /// The model with every parameter as its owner has it, once all are stepped.
    pub(crate) fn gathered<B: AutodiffBackend<InnerBackend = I>>(
        &mut self,
        model: Gpt<B>,
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<()>) {
        let (model, told) = owners::gathered(&self.owners, self.host.as_mut(), model, ranks);
        // All of them have been waited for.
        let settled = if self.owners.are_divided() { self.settle() } else { Ok(()) };
        (model, told.and(settled))
    }

    fn updated<const D: usize>(
        &mut self,
        name: &str,
        weight: Tensor<I, D>,
        gradient: Tensor<I, D>,
        Stride { share, scale }: Stride,
    ) -> Tensor<I, D> {
        let settings = &self.settings;
        let decay = decay(settings, D);
        let lr = settings.lr * share;
        let before = self.moments.remove(name);
        let rule = rule(settings.optimizer, name, D);
        let gradient = if rule != Rule::AdamW && scale < 1.0 { gradient.mul_scalar(scale) } else { gradient };
        let (weight, after) = match rule {
            Rule::AdamW => {
                let stride = host_optim::Stride { lr, scale };
                let stepped =
                    self.passes.adamw(&host::adamw(settings, decay), stride, weight, gradient, before);
                stepped.unwrap_or_else(|(weight, gradient, before)| {
                    let (rule, before) = (adamw(settings, decay), before.map(Moments::into_adamw));
                    let at_once = tables::at_once(name, &weight);
                    let (weight, after) = tables::step(&rule, [lr, scale], weight, gradient, before, at_once);
                    (weight, Moments::of_adamw(after))
                })
            }
            Rule::Muon => {
                let lr = settings.matrix_lr * share;
                let rates = muon::Rates { lr, momentum: settings.momentum, decay };
                let velocity = before.map(Moments::into_velocity);
                let flat = |tensor: Tensor<I, D>| Tensor::<I, 2>::from_primitive(tensor.into_primitive());
                let (weight, velocity) =
                    muon::step(flat(weight), flat(gradient), velocity, rates, self.compute);
                (Tensor::from_primitive(weight.into_primitive()), Moments::of_velocity(velocity))
            }
            Rule::Sgd => {
                let velocity = match before.map(Moments::into_velocity) {
                    Some(velocity) => velocity.mul_scalar(settings.momentum) + gradient,
                    None => gradient,
                };
                let weight = weight.mul_scalar(1.0 - lr * decay) - velocity.clone().mul_scalar(lr);
                (weight, Moments::of_velocity(velocity))
            }
        };
        self.moments.insert(name.to_owned(), after);
        weight
    }
}

/// Weight decay is for matrices: it would pull gains and offsets to zero.
fn decay(settings: &TrainSection, rank: usize) -> f64 {
    if rank >= 2 { settings.weight_decay } else { 0.0 }
}

/// How one parameter is stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    AdamW,
    Muon,
    Sgd,
}

fn rule(kind: OptimizerKind, name: &str, rank: usize) -> Rule {
    match kind {
        OptimizerKind::Sgd => Rule::Sgd,
        OptimizerKind::Muon if rank == 2 && name.starts_with("blocks.") => Rule::Muon,
        OptimizerKind::Muon | OptimizerKind::AdamW => Rule::AdamW,
    }
}

/// Whether the optimizer keeps two tensors of a parameter, and not one.
pub(crate) fn keeps_second_moment(kind: OptimizerKind, name: &str, rank: usize) -> bool {
    rule(kind, name, rank) == Rule::AdamW
}

fn adamw(settings: &TrainSection, decay: f64) -> AdamW {
    let [first, second] = settings.betas;
    AdamWConfig::new()
        .with_beta_1(first as f32)
        .with_beta_2(second as f32)
        .with_epsilon(settings.epsilon as f32)
        .with_weight_decay(decay as f32)
        .build()
}

struct Stepper<'o, I: Backend> {
    optimizer: &'o mut Optimizer<I>,
    gradients: GradientsParams,
    stride: Stride,
    path: Vec<String>,
    /// To be stepped on the host. Before all matrices: the forward pass asks for the last norm's gain before it begins.
    vectors: Vec<(ParamId, Update)>,
    /// In the model's order, in which the forward pass comes to them.
    matrices: Vec<(ParamId, Update)>,
    /// Decoders of the matrices whose weights come in tiles.
    on_demand: HashMap<ParamId, OnDemand>,
    failure: Option<HostOptimError>,
}

impl<I: Managed> Stepper<'_, I> {
    /// Prepares the step of a parameter whose weights come in tiles; what stands for them stays.
    fn by_tiles(&mut self, id: ParamId, shape: Shape, device: &I::Device) {
        let host = self.optimizer.host.as_mut().expect("its parameter is due");
        match host.prepare_tiles::<I>(id, shape, self.stride, device) {
            Ok((update, on_demand)) => {
                self.matrices.push((id, update));
                self.on_demand.insert(id, on_demand);
            }
            Err(failure) => {
                self.failure.get_or_insert(failure);
            }
        }
    }

    /// Prepares the step of a parameter whose new weights other ranks wait for. Until they are told, the old ones stay, but for those
    /// in tiles.
    fn prepare_to_tell<const D: usize>(&mut self, id: ParamId, weights: Tensor<I, D>) {
        let host = self.optimizer.host.as_mut().expect("its parameter is due");
        self.on_demand.extend(host.awaited(id, &weights).map(|awaited| (id, awaited)));
        match host.prepare_to_tell(id, weights, self.stride) {
            Ok(update) if D > 1 => self.matrices.push((id, update)),
            Ok(update) => self.vectors.push((id, update)),
            Err(failure) => {
                self.failure.get_or_insert(failure);
            }
        }
    }

    /// The parameter after its step on the host, which is waited for where it is first used.
    fn on_host<B: AutodiffBackend<InnerBackend = I>, const D: usize>(
        &mut self,
        id: ParamId,
        weights: Tensor<B, D>,
    ) -> Param<Tensor<B, D>> {
        let (device, shape) = (weights.device(), weights.shape());
        let host = self.optimizer.host.as_mut().expect("its parameter is due");
        let updated = match host.prepare(id, weights.inner(), self.stride) {
            Ok((update, updated)) => {
                let prepared = if D > 1 { &mut self.matrices } else { &mut self.vectors };
                prepared.push((id, update));
                Some(updated)
            }
            Err(failure) => {
                self.failure.get_or_insert(failure);
                None
            }
        };
        let (missing, times) = (shape.clone(), host.times.clone());
        let value = move |device: &B::Device, _requires: bool| {
            let weights = match &updated {
                Some(updated) => Tensor::from_inner(times.awaited(updated.wait_timed())),
                None => Tensor::full(missing.clone(), f32::NAN, device),
            };
            weights.require_grad()
        };
        Param::uninitialized(id, value, device, true, shape)
    }
}

impl<B: AutodiffBackend<InnerBackend = I>, I: Managed> ModuleMapper<B> for Stepper<'_, I> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, weight, mapper) = param.consume();
        if let Some(host) = self.optimizer.host.as_mut().filter(|host| host.has_rows_of(id)) {
            let stepped = host.step_rows(self.stride);
            self.failure = self.failure.take().or(stepped.err());
            return Param::from_mapped_value(id, weight, mapper);
        }
        if let Some(host) = self.optimizer.host.as_mut().filter(|host| host.is_elsewhere(id)) {
            host.pass_step(id);
            self.on_demand.extend(host.awaited(id, &weight.clone().inner()).map(|awaited| (id, awaited)));
            return Param::from_mapped_value(id, weight, mapper);
        }
        if let Some(host) = self.optimizer.host.as_ref().filter(|host| host.is_due(id)) {
            if self.optimizer.owners.are_divided() {
                self.prepare_to_tell(id, weight.clone().inner());
                return Param::from_mapped_value(id, weight, mapper);
            }
            if host.comes_in_tiles(id, D) {
                self.by_tiles(id, weight.shape(), &weight.clone().inner().device());
                return Param::from_mapped_value(id, weight, mapper);
            }
            return self.on_host(id, weight);
        }
        let Some(gradient) = self.gradients.remove::<I, D>(id) else {
            return Param::from_mapped_value(id, weight, mapper);
        };
        let name = self.path.join(".");
        if !self.optimizer.owners.has(&name) {
            return Param::from_mapped_value(id, weight, mapper);
        }
        let weight = self.optimizer.updated(&name, weight.inner(), gradient, self.stride);
        Param::from_mapped_value(id, Tensor::from_inner(weight).require_grad(), mapper)
    }
}
