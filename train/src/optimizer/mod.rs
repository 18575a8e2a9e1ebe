//! The optimizer: each parameter's update rule and state.
//!
//! Burn 0.21 has no parameter groups, and its learner clones the whole model. This mapper copies one tensor at a time.
//! Name and dimensions choose the rule, and `train.groups` rate and decay.

mod adoption;
mod gather;
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
mod weight_window;

pub(crate) use adoption::Restored;
pub(crate) use host::{HostPart, narrowed};
pub(crate) use moments::Moments;
pub(crate) use norm::SquaredNorms;
pub(crate) use numbers::numbers;
pub(crate) use owners::{Owners, held};
pub(crate) use passes::Passes;
pub(crate) use schedule::rate_share;
pub(crate) use streamed::check_formats;
pub(crate) use tables::BLOCK_BYTES;
pub(crate) use times::HostTimes;
pub(crate) use weight_window::{Session as GatherSession, WeightWindow};

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, ensure};
use backend_offload::Managed;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::{AdamW, AdamWConfig, GradientsParams};
use burn::tensor::{
    Shape, Tensor,
    backend::{AutodiffBackend, Backend},
};
use host_optim::{HostOptimError, HostState, Update};
use models::{Compute, Gpt, OnDemand, ParameterInfo};
use runs::config::{Config, OptimizerKind, TrainSection};

use crate::plan::StatesOnDisk;
use crate::ranks::{Pair, Ranks};
use crate::rule::{Rule, keeps_second_moment};

#[derive(Debug)]
pub(crate) struct Optimizer<I: Backend> {
    settings: TrainSection,
    compute: Compute,
    pub(crate) moments: BTreeMap<String, Moments<I>>,
    pub(crate) host: Option<HostPart>,
    pub(crate) owners: Owners,
    pub(crate) passes: Passes<I>,
    pub(crate) window: Option<WeightWindow<I>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stride {
    /// Share of the peak learning rate.
    pub(crate) share: f64,
    /// Factor on all gradients that clips their norm.
    pub(crate) scale: f64,
}

impl Stride {
    pub(crate) fn clipped(share: f64, norm: f64, limit: Option<f64>) -> Self {
        Self { share, scale: limit.map_or(1.0, |limit| limit / norm.max(limit)) }
    }
}

impl<I: Backend> Optimizer<I> {
    /// [`HostPart::by_name`]; empty without a host part.
    pub(crate) fn states_on_host(&self) -> anyhow::Result<HashMap<&str, &HostState>> {
        Ok(self.host.as_ref().map(HostPart::by_name).transpose()?.unwrap_or_default())
    }
}

impl<I: Managed> Optimizer<I> {
    pub(crate) fn new(settings: &TrainSection) -> Self {
        let (moments, owners) = (BTreeMap::new(), Owners::default());
        let (settings, compute) = (settings.clone(), Compute::default());
        Self { settings, compute, moments, host: None, owners, passes: Passes::none(), window: None }
    }

    pub(crate) fn placed(config: &Config, device: &I::Device) -> Self {
        let host = HostPart::new::<I>(config, device);
        let passes = Passes::for_device();
        Self { compute: config.model.compute, host, passes, ..Self::new(&config.train) }
    }

    /// Moves parameters to the host, with states in `on_disk` on the disk. Returns the model as the device computes
    /// with it.
    pub(crate) fn adopt<B: AutodiffBackend<InnerBackend = I>>(
        &mut self,
        model: Gpt<B>,
        on_disk: StatesOnDisk,
    ) -> anyhow::Result<Gpt<B>> {
        let mut model = WeightWindow::without_others(&self.owners, self.host.as_ref(), model);
        if let Some(host) = &mut self.host {
            model = host.adopt(model, &self.owners, on_disk)?;
        }
        let every = self.settings.recompute.unwrap_or(1);
        self.window = WeightWindow::new(&self.owners, self.host.as_ref(), &model, every)?;
        Ok(match &self.window {
            Some(window) => window.bind(model),
            None => model,
        })
    }

    pub(crate) fn kind(&self) -> OptimizerKind {
        self.settings.optimizer
    }

    /// Bytes of all moments in a checkpoint, in f32.
    pub(crate) fn bytes(&self) -> u64 {
        let on_host = self.host.as_ref().map_or(0, HostPart::saved_bytes);
        on_host + self.moments.values().map(Moments::bytes).sum::<u64>()
    }

    pub(crate) fn host_bytes(&self) -> u64 {
        self.host.as_ref().map_or(0, HostPart::host_bytes)
    }

    /// Replaces moments by `pairs`, in the order of parameter names, and the steps that they took by the last pair. A
    /// rank that skipped all its steps saved none. If rank 0 did, the pairs belong to all of `learning`.
    pub(crate) fn replace_moments(
        &mut self,
        mut pairs: Vec<Pair>,
        learning: impl Iterator<Item = ParameterInfo>,
        device: &I::Device,
    ) -> anyhow::Result<()> {
        let [low, high] = pairs.pop().unwrap_or_default();
        if pairs.is_empty() {
            self.moments.clear();
        } else if self.moments.is_empty() {
            let kind = self.kind();
            let zeros = |parameter: ParameterInfo| {
                let second = keeps_second_moment(kind, &parameter.name, parameter.shape.len());
                (parameter.name, Moments::zeros(&parameter.shape, second, device))
            };
            self.moments = learning.map(zeros).collect();
        }

        let (found, expected) = ([pairs.len(), low.len(), high.len()], self.moments.len());
        ensure!(found == [expected; 3], "moments of {} parameters were saved, of {expected}", found[0]);
        let times = low.into_iter().zip(high);
        for (((name, moments), numbers), (low, high)) in self.moments.iter_mut().zip(pairs).zip(times) {
            moments.replace(numbers, device).with_context(|| format!("the moments of `{name}`"))?;
            moments.set_time([low, high]);
        }
        Ok(())
    }

    /// Drops the gradients of a skipped step.
    pub(crate) fn withhold(&mut self) {
        if let Some(host) = &mut self.host {
            host.withhold();
        }
    }

    /// Resets waits and returns the times of host updates; `None` without a host part.
    pub(crate) fn begin_step_times(&self) -> Option<HostTimes> {
        let times = self.host.as_ref()?.times.clone();
        times.begin_step();
        Some(times)
    }

    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        self.host.as_mut().map_or(Ok(()), HostPart::settle)
    }

    /// Updates the model, its host part in the background. After a failure the model must not be used.
    pub(crate) fn step<B: AutodiffBackend<InnerBackend = I>>(
        &mut self,
        model: Gpt<B>,
        gradients: GradientsParams,
        stride: Stride,
    ) -> (Gpt<B>, Result<(), HostOptimError>) {
        if let Some(window) = &self.window {
            window.release();
        }
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
        if let Some(window) = &self.window {
            window.refresh(&model);
        }

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

    /// [`step`](Self::step), after which all ranks have the new weights. A rank whose step fails sends weights, too: the
    /// others wait for them, and hear of the failure as ranks agree on what follows.
    pub(crate) fn update<B: AutodiffBackend<InnerBackend = I>>(
        &mut self,
        model: Gpt<B>,
        gradients: GradientsParams,
        stride: Stride,
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<()>) {
        let (model, stepped) = self.step(model, gradients, stride);
        let (model, gathered) = self.gathered(model, ranks);
        (model, stepped.map_err(anyhow::Error::from).and(gathered))
    }

    fn gathered<B: AutodiffBackend<InnerBackend = I>>(
        &mut self,
        model: Gpt<B>,
        ranks: &mut Ranks,
    ) -> (Gpt<B>, anyhow::Result<()>) {
        let (model, outcome) = gather::gathered(&self.owners, self.host.as_mut(), model, ranks);
        // Gathered weights wait at their use.
        let waits = self.owners.are_sharded() && self.window.is_none() && !self.owners.are_stages();
        let settled = if waits { self.settle() } else { Ok(()) };
        (model, outcome.and(settled))
    }

    fn updated<const D: usize>(
        &mut self,
        name: &str,
        weight: Tensor<I, D>,
        gradient: Tensor<I, D>,
        Stride { share, scale }: Stride,
    ) -> Tensor<I, D> {
        let settings = &self.settings;
        let (group, decay) = rate_and_decay(settings, name, D);
        let lr = settings.lr * group * share;

        let before = self.moments.remove(name);
        let rule = Rule::choose(settings.optimizer, name, D);
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
                    (weight, Moments::from_adamw(after))
                })
            }
            Rule::Muon => {
                let lr = settings.matrix_lr * group * share;
                let rates = muon::Rates { lr, momentum: settings.momentum, decay };
                let velocity = before.map(Moments::into_velocity);
                let flat = |tensor: Tensor<I, D>| Tensor::<I, 2>::from_primitive(tensor.into_primitive());
                let (weight, velocity) =
                    muon::step(flat(weight), flat(gradient), velocity, rates, self.compute);
                (Tensor::from_primitive(weight.into_primitive()), Moments::from_velocity(velocity))
            }
            Rule::Sgd => {
                let velocity = match before.map(Moments::into_velocity) {
                    Some(velocity) => velocity.mul_scalar(settings.momentum) + gradient,
                    None => gradient,
                };
                let weight = weight.mul_scalar(1.0 - lr * decay) - velocity.clone().mul_scalar(lr);
                (weight, Moments::from_velocity(velocity))
            }
        };

        self.moments.insert(name.to_owned(), after);
        weight
    }
}

/// The group's factor on the rate, and its decay. Only matrices decay: vectors are gains and offsets, which would go to
/// zero.
fn rate_and_decay(settings: &TrainSection, name: &str, dims: usize) -> (f64, f64) {
    let (scale, decay) = settings.rate_and_decay(name);
    (scale, if dims >= 2 { decay } else { 0.0 })
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
    /// Updated before matrices: a forward pass reads the last norm's gain first.
    vectors: Vec<(ParamId, Update)>,
    /// In the order of the forward pass.
    matrices: Vec<(ParamId, Update)>,
    on_demand: HashMap<ParamId, OnDemand>,
    failure: Option<HostOptimError>,
}

impl<I: Managed> Stepper<'_, I> {
    fn step_in_tiles(&mut self, id: ParamId, shape: Shape, device: &I::Device) {
        let host = self.optimizer.host.as_mut().expect("its parameter is due");
        let crossing = host.settings.crossing;
        let prepared = host.prepare_tiles::<I>(id, self.stride, device);
        let prepared = prepared.map(|(update, code, tiles)| (update, (code, tiles)));
        let Some((code, tiles)) = self.keep(id, 2, prepared) else { return };
        if let Some(window) = &self.optimizer.window {
            return window.replace_tiles(id, tiles);
        }
        self.on_demand.insert(id, streamed::on_demand::<I>(crossing, code, shape, move || tiles()));
    }

    /// Keeps a prepared update, or the first failure.
    fn keep<T>(
        &mut self,
        id: ParamId,
        dims: usize,
        prepared: Result<(Update, T), HostOptimError>,
    ) -> Option<T> {
        match prepared {
            Ok((update, weights)) => {
                let updates = if dims > 1 { &mut self.matrices } else { &mut self.vectors };
                updates.push((id, update));
                Some(weights)
            }
            Err(failure) => {
                self.failure.get_or_insert(failure);
                None
            }
        }
    }

    /// Prepares an update to broadcast. Until then old weights stay, and tiles become NaN.
    fn prepare_to_broadcast<const D: usize>(&mut self, id: ParamId, weights: Tensor<I, D>) {
        let host = self.optimizer.host.as_mut().expect("its parameter is due");
        self.on_demand.extend(host.nan_until_broadcast(id, &weights).map(|decoder| (id, decoder)));
        let prepared = host.prepare_to_broadcast(id, weights, self.stride);
        self.keep(id, D, prepared.map(|update| (update, ())));
    }

    fn step_on_host<B: AutodiffBackend<InnerBackend = I>, const D: usize>(
        &mut self,
        id: ParamId,
        weights: Tensor<B, D>,
    ) -> Param<Tensor<B, D>> {
        let (device, shape) = (weights.device(), weights.shape());
        let host = self.optimizer.host.as_mut().expect("its parameter is due");
        let (missing, times) = (shape.clone(), host.times.clone());
        let prepared = host.prepare(id, weights.inner(), self.stride);
        let updated = self.keep(id, D, prepared);

        let value = move |device: &B::Device, _requires: bool| {
            let weights = match &updated {
                Some(updated) => Tensor::from_inner(times.add_wait(updated.wait_timed())),
                None => Tensor::full(missing.clone(), f32::NAN, device),
            };
            weights.require_grad()
        };
        Param::uninitialized(id, value, device, true, shape)
    }
}

impl<B: AutodiffBackend<InnerBackend = I>, I: Managed> ModuleMapper<B> for Stepper<'_, I> {
    models::keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, weight, mapper) = param.consume();
        if let Some(host) = self.optimizer.host.as_mut().filter(|host| host.is_table(id)) {
            let stepped = host.step_rows(self.stride);
            self.failure = self.failure.take().or(stepped.err());
            return Param::from_mapped_value(id, weight, mapper);
        }

        if let Some(host) = self.optimizer.host.as_mut().filter(|host| host.belongs_to_another_rank(id)) {
            host.pass_step(id);
            let decoder = host
                .nan_until_broadcast(id, &weight.clone().inner())
                .filter(|_| !self.optimizer.owners.keep(id));
            self.on_demand.extend(decoder.map(|decoder| (id, decoder)));
            return Param::from_mapped_value(id, weight, mapper);
        }

        if let Some(host) = self.optimizer.host.as_ref().filter(|host| host.is_due(id)) {
            if !self.optimizer.owners.keep(id) {
                self.prepare_to_broadcast(id, weight.clone().inner());
                return Param::from_mapped_value(id, weight, mapper);
            }
            if host.comes_in_tiles(id) {
                self.step_in_tiles(id, weight.shape(), &weight.clone().inner().device());
                return Param::from_mapped_value(id, weight, mapper);
            }
            return self.step_on_host(id, weight);
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
