//! The host optimizer as a Burn `Optimizer`.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, LearningRate, MultiGradientsParams, Optimizer};
use burn::tensor::{
    Tensor,
    backend::{AutodiffBackend, Backend},
};

use crate::adamw::{AdamW, Stride};
use crate::error::HostOptimError;
use crate::format::Format;
use crate::record::{HostAdamWRecord, Parts};
use crate::state::HostState;
use crate::storage::StateMemory;

/// Settings of [`HostAdamW`]; defaults as in Burn's `AdamWConfig`.
#[derive(Debug, Clone)]
pub struct HostAdamWConfig {
    rule: AdamW,
    format: Format,
    max_norm: Option<f64>,
}

impl Default for HostAdamWConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl HostAdamWConfig {
    /// Burn's defaults.
    pub fn new() -> Self {
        let rule = AdamW { betas: [0.9, 0.999], epsilon: 1e-5, weight_decay: 1e-4 };
        Self { rule, format: Format::F32, max_norm: None }
    }

    /// Decay factors of both moments.
    #[must_use]
    pub fn with_betas(mut self, first: f32, second: f32) -> Self {
        self.rule.betas = [first, second];
        self
    }

    /// Added to the divisor.
    #[must_use]
    pub fn with_epsilon(mut self, epsilon: f32) -> Self {
        self.rule.epsilon = epsilon;
        self
    }

    /// Decay per step, multiplied by the learning rate.
    #[must_use]
    pub fn with_weight_decay(mut self, decay: f64) -> Self {
        self.rule.weight_decay = decay;
        self
    }

    /// Format of the state.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Clips the norm of all gradients together. A NaN or infinite norm skips the step: gradients are dropped, weights
    /// and moments stay.
    #[must_use]
    pub fn with_max_norm(mut self, norm: f64) -> Self {
        self.max_norm = Some(norm);
        self
    }

    /// The optimizer, with its state in host memory or on [disk](backend_offload::DiskMemory).
    pub fn init(self, memory: impl Into<StateMemory>) -> HostAdamW {
        HostAdamW { config: self, memory: memory.into(), states: BTreeMap::new(), loaded: BTreeMap::new() }
    }
}

/// AdamW with its state in host memory or on disk. A clone shares states until either steps, and has no gradients.
#[derive(Debug)]
pub struct HostAdamW {
    config: HostAdamWConfig,
    memory: StateMemory,
    states: BTreeMap<ParamId, Arc<HostState>>,
    /// Recorded states whose parameters have had no gradient yet.
    loaded: BTreeMap<ParamId, Parts>,
}

impl HostAdamW {
    /// Bytes in host memory.
    pub fn host_bytes(&self) -> u64 {
        self.states.values().map(|state| state.host_bytes()).sum()
    }

    /// Bytes on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.states.values().map(|state| state.disk_bytes()).sum()
    }

    /// Receives gradients of `module`, whole or in shares, and frees their device memory. An error drops all gradients
    /// since the last step.
    pub fn arrive<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        module: &M,
        gradients: &mut GradientsParams,
    ) -> Result<(), HostOptimError> {
        self.arrive_from::<B, M>(module, gradients)
    }

    /// Norm of all received gradients as one vector.
    pub fn norm(&mut self) -> Result<f64, HostOptimError> {
        // A state shared with a clone has no gradient.
        let due = self.states.values_mut().filter_map(Arc::get_mut);
        // Ids differ between runs; names do not.
        let squares = due
            .map(|state| Ok((state.name().to_owned(), state.squares()?)))
            .collect::<Result<BTreeMap<_, _>, HostOptimError>>()?;
        Ok(squares.values().sum::<f64>().sqrt())
    }

    /// Drops all received gradients.
    pub fn withhold(&mut self) {
        self.states.values_mut().filter_map(Arc::get_mut).for_each(HostState::drop_gradient);
    }

    /// One step along the received gradients; other parameters stay.
    ///
    /// Only `Compact` reads tensors; if that fails, the device is unusable. If a disk fails, the error names the lost
    /// state.
    pub fn apply<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        lr: LearningRate,
        module: M,
    ) -> Result<M, HostOptimError> {
        let scale = match self.config.max_norm {
            Some(limit) => {
                let norm = self.norm()?;
                if !norm.is_finite() {
                    self.withhold();
                    return Ok(module);
                }
                limit / norm.max(limit)
            }
            None => 1.0,
        };

        let mut apply = Apply { optimizer: self, stride: Stride { lr, scale }, failure: None };
        let module = module.map(&mut apply);
        apply.failure.map_or(Ok(module), Err)
    }

    fn arrive_from<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        module: &M,
        gradients: &mut impl GradientSource,
    ) -> Result<(), HostOptimError> {
        let mut arrival = Arrival { optimizer: self, gradients, path: Vec::new(), failure: None };
        module.visit(&mut arrival);
        if let Some(failure) = arrival.failure {
            self.withhold();
            return Err(failure);
        }
        Ok(())
    }

    fn state<B: Backend, const D: usize>(
        &mut self,
        id: ParamId,
        name: &str,
        weights: &Tensor<B, D>,
    ) -> Result<&mut HostState, HostOptimError> {
        let len = weights.shape().num_elements();
        let state = match self.states.remove(&id) {
            Some(shared) if Arc::strong_count(&shared) > 1 => Arc::new(shared.duplicate(&self.memory)?),
            Some(own) => own,
            None => Arc::new(match self.loaded.remove(&id) {
                Some(parts) => HostState::from_parts(&self.memory, name, self.config.format, &parts, len)?,
                None => HostState::from_tensor(self.memory.clone(), name, self.config.format, weights)?,
            }),
        };
        let slot = self.states.entry(id).or_insert(state);
        Ok(Arc::get_mut(slot).expect("held here alone"))
    }
}

impl Clone for HostAdamW {
    /// Panics without memory for states with a waiting gradient.
    fn clone(&self) -> Self {
        let states = self.states.iter().map(|(id, state)| {
            let own = || Arc::new(or_panic("clone", state.duplicate(&self.memory)));
            (*id, if state.has_gradient() { own() } else { state.clone() })
        });
        Self {
            config: self.config.clone(),
            memory: self.memory.clone(),
            states: states.collect(),
            loaded: self.loaded.clone(),
        }
    }
}

impl<M: AutodiffModule<B>, B: AutodiffBackend> Optimizer<M, B> for HostAdamW {
    type Record = HostAdamWRecord;

    /// Panics where [`arrive`](HostAdamW::arrive) and [`apply`](HostAdamW::apply) fail.
    fn step(&mut self, lr: LearningRate, module: M, mut gradients: GradientsParams) -> M {
        let arrived = self.arrive_from::<B, M>(&module, &mut gradients);
        or_panic("step", arrived.and_then(|()| self.apply::<B, M>(lr, module)))
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, mut gradients: MultiGradientsParams) -> M {
        let arrived = self.arrive_from::<B, M>(&module, &mut gradients);
        or_panic("step", arrived.and_then(|()| self.apply::<B, M>(lr, module)))
    }

    /// Panics if a state on disk cannot be read.
    fn to_record(&self) -> HostAdamWRecord {
        or_panic("record", HostAdamWRecord::new(&self.states, &self.loaded))
    }

    fn load_record(mut self, record: HostAdamWRecord) -> Self {
        self.states.clear();
        self.loaded = record.into_parts();
        self
    }
}

fn or_panic<T>(attempted: &str, result: Result<T, HostOptimError>) -> T {
    result.unwrap_or_else(|error| panic!("the optimizer {attempted} did not run: {error}"))
}

trait GradientSource {
    fn remove<B: Backend, const D: usize>(&mut self, id: ParamId) -> Option<Tensor<B, D>>;
}

impl GradientSource for GradientsParams {
    fn remove<B: Backend, const D: usize>(&mut self, id: ParamId) -> Option<Tensor<B, D>> {
        Self::remove(self, id)
    }
}

impl GradientSource for MultiGradientsParams {
    fn remove<B: Backend, const D: usize>(&mut self, id: ParamId) -> Option<Tensor<B, D>> {
        Self::remove(self, id).map(|(tensor, _)| tensor)
    }
}

struct Arrival<'a, S> {
    optimizer: &'a mut HostAdamW,
    gradients: &'a mut S,
    path: Vec<String>,
    failure: Option<HostOptimError>,
}

impl<B: AutodiffBackend, S: GradientSource> ModuleVisitor<B> for Arrival<'_, S> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.failure.is_some() {
            return;
        }
        let Some(gradient) = self.gradients.remove::<B::InnerBackend, D>(param.id) else { return };
        // Seeds rounding: paths repeat between runs; ids do not.
        let name = self.path.join(".");
        let weights = param.val().inner();
        let state = self.optimizer.state(param.id, &name, &weights);
        self.failure = state.and_then(|state| state.arrive_tensor(gradient)).err();
    }
}

struct Apply<'a> {
    optimizer: &'a mut HostAdamW,
    stride: Stride,
    failure: Option<HostOptimError>,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Apply<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let waiting = self.optimizer.states.get_mut(&param.id).and_then(Arc::get_mut);
        let Some(state) = waiting.filter(|state| state.has_gradient() && self.failure.is_none()) else {
            return param;
        };
        let (id, weights, mapper) = param.consume();
        let requires_grad = weights.is_require_grad();
        let rule = self.optimizer.config.rule;
        match state.step_tensor(rule, self.stride, weights.clone().inner()) {
            Ok(stepped) => {
                let stepped = Tensor::from_inner(stepped).set_require_grad(requires_grad);
                Param::from_mapped_value(id, stepped, mapper)
            }
            Err(failure) => {
                self.failure = Some(failure);
                Param::from_mapped_value(id, weights, mapper)
            }
        }
    }
}
