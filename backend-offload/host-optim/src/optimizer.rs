//! The optimizer as Burn knows it: a model and its gradients in, the model after the step out.

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
use crate::kept::StateMemory;
use crate::record::{HostAdamWRecord, Parts};
use crate::state::HostState;

/// Settings of [`HostAdamW`]; the defaults are those of Burn's `AdamWConfig`.
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

    /// Shares of the first and second moments that a step keeps.
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

    /// Share of a weight, times the learning rate, that each step takes away.
    #[must_use]
    pub fn with_weight_decay(mut self, decay: f64) -> Self {
        self.rule.weight_decay = decay;
        self
    }

    /// Format of the state on the host.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Scales all gradients down together where their norm is above `norm`.
    #[must_use]
    pub fn with_max_norm(mut self, norm: f64) -> Self {
        self.max_norm = Some(norm);
        self
    }

    /// The optimizer, its state to be taken from `memory`: a [`HostMemory`](backend_offload::HostMemory), or the
    /// [`DiskMemory`](backend_offload::DiskMemory) below one, which all states are on then.
    pub fn init(self, memory: impl Into<StateMemory>) -> HostAdamW {
        HostAdamW { config: self, memory: memory.into(), states: BTreeMap::new(), loaded: BTreeMap::new() }
    }
}

/// AdamW with its state in host memory or on the disk below it, for any model and backend. Clones share their states until one of them steps, and
/// begin without gradients.
#[derive(Debug)]
pub struct HostAdamW {
    config: HostAdamWConfig,
    memory: StateMemory,
    states: BTreeMap<ParamId, Arc<HostState>>,
    /// States of a record, of parameters without a gradient since it was loaded.
    loaded: BTreeMap<ParamId, Parts>,
}

impl HostAdamW {
    /// Bytes held on the host.
    pub fn host_bytes(&self) -> u64 {
        self.states.values().map(|state| state.host_bytes()).sum()
    }

    /// Bytes held on the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.states.values().map(|state| state.disk_bytes()).sum()
    }

    /// Takes the gradients of `module` that are in `gradients`, some parameters' or all, once or in shares that add up.
    /// Their device memory is free when this returns.
    ///
    /// # Errors
    /// If the host tier has no room, or a tensor cannot be read. What has arrived since the last step is dropped then.
    pub fn arrive<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        module: &M,
        gradients: &mut GradientsParams,
    ) -> Result<(), HostOptimError> {
        self.arrive_from::<B, M>(module, gradients)
    }

    /// The norm of everything that has arrived, as one vector.
    ///
    /// # Errors
    /// If the host tier has no room to add up shares.
    pub fn norm(&mut self) -> Result<f64, HostOptimError> {
        // A state that is shared with a clone has no gradient.
        let due = self.states.values_mut().filter_map(Arc::get_mut);
        // In the order of names: ids are drawn anew in every run.
        let squares = due
            .map(|state| Ok((state.name().to_owned(), state.squares()?)))
            .collect::<Result<BTreeMap<_, _>, HostOptimError>>()?;
        Ok(squares.values().sum::<f64>().sqrt())
    }

    /// Forgets what has arrived: a step with NaN in its gradients is not taken.
    pub fn withhold(&mut self) {
        // A state that is shared with a clone has no gradient.
        self.states.values_mut().filter_map(Arc::get_mut).for_each(HostState::drop_gradient);
    }

    /// One step along what has arrived. Parameters without a gradient stay as they are.
    ///
    /// # Errors
    /// If a tensor cannot be read, which only the format `Compact` does: the device is not usable then. And if the disk fails that
    /// the states are on, or the host has no room for chunks of them; what is lost, the error names.
    pub fn apply<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        lr: LearningRate,
        module: M,
    ) -> Result<M, HostOptimError> {
        let scale = match self.config.max_norm {
            Some(limit) => limit / self.norm()?.max(limit),
            None => 1.0,
        };
        let mut apply = Apply { optimizer: self, stride: Stride { lr, scale }, failure: None };
        let module = module.map(&mut apply);
        apply.failure.map_or(Ok(module), Err)
    }

    fn arrive_from<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        module: &M,
        gradients: &mut impl Source,
    ) -> Result<(), HostOptimError> {
        let mut arrival = Arrival { optimizer: self, gradients, path: Vec::new(), failure: None };
        module.visit(&mut arrival);
        if let Some(failure) = arrival.failure {
            self.withhold();
            return Err(failure);
        }
        Ok(())
    }

    /// The state of the parameter, made at its first gradient.
    fn state<B: Backend, const D: usize>(
        &mut self,
        id: ParamId,
        name: &str,
        weights: &Tensor<B, D>,
    ) -> Result<&mut HostState, HostOptimError> {
        let len = weights.shape().num_elements();
        let state = match self.states.remove(&id) {
            // A clone of this optimizer holds it, too.
            Some(shared) if Arc::strong_count(&shared) > 1 => Arc::new(shared.duplicate(&self.memory)?),
            Some(own) => own,
            None => Arc::new(match self.loaded.remove(&id) {
                Some(parts) => HostState::from_parts(&self.memory, name, self.config.format, &parts, len)?,
                None => HostState::of_tensor(self.memory.clone(), name, self.config.format, weights)?,
            }),
        };
        let slot = self.states.entry(id).or_insert(state);
        Ok(Arc::get_mut(slot).expect("held here alone"))
    }
}

impl Clone for HostAdamW {
    /// Panics where there is no room for the states whose gradients wait: those cannot be shared.
    fn clone(&self) -> Self {
        let states = self.states.iter().map(|(id, state)| {
            let own = || Arc::new(surface("clone", state.duplicate(&self.memory)));
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

    /// Panics where [`arrive`](HostAdamW::arrive) and [`apply`](HostAdamW::apply) return errors: the interface knows none.
    fn step(&mut self, lr: LearningRate, module: M, mut gradients: GradientsParams) -> M {
        let arrived = self.arrive_from::<B, M>(&module, &mut gradients);
        surface("step", arrived.and_then(|()| self.apply::<B, M>(lr, module)))
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, mut gradients: MultiGradientsParams) -> M {
        let arrived = self.arrive_from::<B, M>(&module, &mut gradients);
        surface("step", arrived.and_then(|()| self.apply::<B, M>(lr, module)))
    }

    /// Panics where a state on the disk cannot be read: the interface knows no errors.
    fn to_record(&self) -> HostAdamWRecord {
        surface("record", HostAdamWRecord::of(&self.states, &self.loaded))
    }

    fn load_record(mut self, record: HostAdamWRecord) -> Self {
        self.states.clear();
        self.loaded = record.into_parts();
        self
    }
}

fn surface<T>(attempted: &str, result: Result<T, HostOptimError>) -> T {
    result.unwrap_or_else(|error| panic!("the optimizer {attempted} did not run: {error}"))
}

/// Gradients of one device or of several.
trait Source {
    fn remove<B: Backend, const D: usize>(&mut self, id: ParamId) -> Option<Tensor<B, D>>;
}

impl Source for GradientsParams {
    fn remove<B: Backend, const D: usize>(&mut self, id: ParamId) -> Option<Tensor<B, D>> {
        Self::remove(self, id)
    }
}

impl Source for MultiGradientsParams {
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

impl<B: AutodiffBackend, S: Source> ModuleVisitor<B> for Arrival<'_, S> {
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
        // The path and not the id, which is drawn anew in every run: the bits that round moments follow from the name.
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
