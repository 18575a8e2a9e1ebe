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
use crate::chunks::Pipeline;
use crate::error::HostOptimError;
use crate::format::Format;
use crate::record::{HostAdamWRecord, Parts};
use crate::rule::Rule;
use crate::state::HostState;
use crate::storage::{StateMemory, Storage};

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
        let rule = AdamW { betas: [0.9, 0.999], epsilon: 1e-5, weight_decay: 0.0 };
        Self { rule, format: Format::F32, max_norm: None }.with_weight_decay(1e-4)
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

    /// Decay per step, multiplied by the learning rate. Rounded to f32, as Burn's is.
    #[must_use]
    pub fn with_weight_decay(mut self, decay: f64) -> Self {
        self.rule.weight_decay = f64::from(decay as f32);
        self
    }

    /// Format of the state.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Clips the norm of all gradients together. A norm that is NaN, or whose square is infinite in f32, skips the
    /// step: gradients are dropped, weights and moments stay.
    ///
    /// # Panics
    /// Unless `norm` is above 0.
    #[must_use]
    pub fn with_max_norm(mut self, norm: f64) -> Self {
        assert!(norm > 0.0, "a maximum norm of {norm} must be above 0; set none not to clip");
        self.max_norm = Some(norm);
        self
    }

    /// The optimizer, with its state in host memory or on [disk](backend_offload::DiskMemory).
    pub fn init(self, memory: impl Into<StateMemory>) -> HostAdamW {
        HostAdamW { config: self, memory: memory.into(), states: BTreeMap::new(), loaded: BTreeMap::new() }
    }
}

/// AdamW with its state in host memory or on disk. A clone shares states until either steps, and has no gradients.
///
/// Every state but the [`Compact`](Format::Compact) one of bf16 weights has master weights, and a step overwrites the
/// module's weights with them. So a change of weights that this optimizer did not make, by loading or averaging, is
/// lost at the next step, unless [`adopt_weights`](Self::adopt_weights) follows the change.
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

    /// Takes over the weights of `module` as master weights, after a change that this optimizer did not make. Moments
    /// and gradients stay. If a disk fails, the error names the lost state.
    pub fn adopt_weights<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        module: &M,
    ) -> Result<(), HostOptimError> {
        let mut adoption = Adoption { optimizer: self, path: Vec::new(), failure: None };
        module.visit(&mut adoption);
        adoption.failure.map_or(Ok(()), Err)
    }

    /// Norm of all received gradients as one vector. Further shares may follow, to the same bits. During the call,
    /// shares that wait to be added take the memory of their sum.
    pub fn norm(&mut self) -> Result<f64, HostOptimError> {
        self.norm_by(HostState::squares_so_far)
    }

    fn norm_by(
        &mut self,
        squares: impl Fn(&mut HostState) -> Result<f64, HostOptimError>,
    ) -> Result<f64, HostOptimError> {
        // A state shared with a clone has no gradient.
        let due = self.states.values_mut().filter_map(Arc::get_mut);
        let squares = due.map(|state| Ok((state.name().to_owned(), squares(state)?)));
        let mut squares = squares.collect::<Result<Vec<_>, HostOptimError>>()?;
        // Ids differ between runs, names do not. Two modules may have the same names.
        squares.sort_by(|(name, one), (other_name, other)| name.cmp(other_name).then(one.total_cmp(other)));
        Ok(squares.iter().map(|(_, squares)| squares).sum::<f64>().sqrt())
    }

    /// Drops all received gradients.
    pub fn withhold(&mut self) {
        self.states.values_mut().filter_map(Arc::get_mut).for_each(HostState::drop_gradient);
    }

    /// One step along the received gradients; other parameters stay.
    ///
    /// Without host memory for states on disk, no parameter steps and the gradients stay, for another try with a clone
    /// of `module`. Only `Compact` reads tensors; if that fails, the device is unusable. If a disk fails, the error
    /// names the lost state.
    pub fn apply<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        lr: LearningRate,
        module: M,
    ) -> Result<M, HostOptimError> {
        let scale = match self.config.max_norm {
            Some(limit) => {
                let norm = self.norm_by(HostState::squares)?;
                // Second moments would become infinite, for good.
                if !((norm * norm) as f32).is_finite() {
                    self.withhold();
                    return Ok(module);
                }
                if norm > limit { limit / norm } else { 1.0 }
            }
            None => 1.0,
        };

        let mut due = Due { states: &self.states, ids: Vec::new() };
        module.visit(&mut due);
        let due = due.ids;
        let pipeline = Storage::pipeline(due.iter().map(|id| &self.states[id].storage))?;

        let mut apply = Apply { optimizer: self, stride: Stride { lr, scale }, pipeline, failure: None };
        let module = module.map(&mut apply);
        let Apply { pipeline, failure, .. } = apply;
        // Waits for all writes.
        drop(pipeline);
        failure.map_or(Ok(()), Err)?;
        due.iter().try_for_each(|id| self.states[id].storage.check_written())?;
        Ok(module)
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
        // A refusal leaves shared and recorded states in place.
        let made = match self.states.get(&id) {
            Some(shared) if Arc::strong_count(shared) > 1 => Some(shared.duplicate(&self.memory)?),
            Some(_own) => None,
            None => Some(match self.loaded.get(&id) {
                Some(parts) => HostState::from_parts(&self.memory, name, self.config.format, parts, len)?,
                None => HostState::from_tensor(self.memory.clone(), name, self.config.format, weights)?,
            }),
        };
        if let Some(state) = made {
            self.states.insert(id, Arc::new(state));
            self.loaded.remove(&id);
        }
        let state = self.states.get_mut(&id).and_then(Arc::get_mut);
        Ok(state.expect("held here alone"))
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

struct Adoption<'a> {
    optimizer: &'a mut HostAdamW,
    path: Vec<String>,
    failure: Option<HostOptimError>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Adoption<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let optimizer = &mut *self.optimizer;
        // Any other parameter's state begins with the weights at its first gradient.
        let has_state = optimizer.states.contains_key(&param.id) || optimizer.loaded.contains_key(&param.id);
        if self.failure.is_some() || !has_state {
            return;
        }
        let weights = param.val().inner();
        let state = optimizer.state(param.id, &self.path.join("."), &weights);
        self.failure = state.and_then(|state| state.replace_masters(weights)).err();
    }
}

/// Parameters with a gradient, in the module's order.
struct Due<'a> {
    states: &'a BTreeMap<ParamId, Arc<HostState>>,
    ids: Vec<ParamId>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Due<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let has_gradient = self.states.get(&param.id).is_some_and(|state| state.has_gradient());
        if has_gradient && !self.ids.contains(&param.id) {
            self.ids.push(param.id);
        }
    }
}

struct Apply<'a> {
    optimizer: &'a mut HostAdamW,
    stride: Stride,
    /// Of all due states: their memory is there before the first steps.
    pipeline: Pipeline,
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
        let rule = Rule::from(self.optimizer.config.rule);
        match state.step_tensor_in(&mut self.pipeline, &rule, self.stride, weights.clone().inner()) {
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use backend_offload::{Budget, HostMemory, OffloadConfig, host_memory};
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};

    use super::*;

    type Plain = Autodiff<Flex>;

    #[derive(Module, Debug)]
    struct Net<B: Backend> {
        small: Linear<B>,
        large: Linear<B>,
    }

    impl Net<Plain> {
        fn gradients(&self) -> GradientsParams {
            let [small, large] =
                [&self.small, &self.large].map(|linear| linear.weight.val().powf_scalar(2.0).sum());
            GradientsParams::from_grads((small + large).backward(), self)
        }

        fn weights(&self) -> Vec<u32> {
            let weights = [&self.small, &self.large].map(|linear| linear.weight.val().into_data());
            weights.iter().flat_map(|data| data.iter::<f32>().map(f32::to_bits)).collect()
        }
    }

    #[test]
    fn a_step_without_memory_for_the_chunks_of_one_state_changes_nothing() {
        const BYTES: usize = 1 << 20;
        let (device, folder) = (FlexDevice, tempfile::tempdir().expect("a folder"));
        let budget = Budget::Bytes(BYTES as u64);
        let config = OffloadConfig::new().host_budget(budget).disk(folder.path(), budget);
        config.install::<Flex>(&device).expect("not started");
        let memory = host_memory::<Flex>(&device);
        let linear = |width| LinearConfig::new(width, width).with_bias(false).init::<Plain>(&device);
        let net = Net { small: linear(8), large: linear(64) };
        let mut optimizer = HostAdamWConfig::new().init(memory.disk().expect("it was named"));
        optimizer.arrive::<Plain, _>(&net, &mut net.gradients()).expect("there is room");

        // Room for 16 KiB of the small state's chunk, not for 52 KiB of the large one's.
        let rest = BYTES - memory.usage().in_use as usize - (40 << 10);
        let filler = memory.take(rest, "a test").expect("it is free");
        let refused = optimizer.apply::<Plain, _>(1e-2, net.clone()).expect_err("no room").to_string();
        assert!(refused.contains("chunks of the state of"), "{refused}");
        drop(filler);

        let stepped = optimizer.apply::<Plain, _>(1e-2, net.clone()).expect("there is room");
        let mut in_memory = HostAdamWConfig::new().init(HostMemory::unlimited());
        let expected = in_memory.step(1e-2, net.clone(), net.gradients());
        assert_eq!(stepped.weights(), expected.weights());
    }
}
