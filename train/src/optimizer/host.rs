//! The part of the optimizer that is in host memory.
//!
//! A gradient begins to be read as soon as it is complete on the device. A thread of its own waits for it, widens it, adds it to
//! earlier micro-batches' and squares it, beside the rest of the backward pass. It waits here for the step's verdict: the norm of all of them, and whether each
//! is a number. Then parameters are stepped on a thread of their own, beside the next forward pass:
//! in the order in which that comes to them, and it waits only for the weights that it comes to. With products in bf16 the
//! device holds the matrices in bf16, and f32 is kept here alone.

mod divided;

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{anyhow, ensure};
use backend_offload::{HostMemory, Managed, host_memory};
use burn::module::ParamId;
use burn::tensor::{DType, FloatDType, Tensor, TensorData, backend::Backend};
use host_optim::{
    AdamW, Arrivals, Arriving, Format, HostOptimError, HostState, Incoming, Sgd, Update, Updated, Updates,
};
use models::Compute;
use runs::config::{Config, OptimizerKind, PlacementKind, StateKind, TrainSection};

use super::adoption::Restored;
use super::rows::{Table, come_by_rows};
use super::streamed::Crossing;
use super::times::HostTimes;
use super::{Rule, Stride, decay, rule};

/// States by parameter.
#[derive(Debug)]
pub(crate) struct HostPart {
    pub(super) memory: HostMemory,
    pub(super) format: Format,
    pub(super) config: Config,
    pub(super) crossing: Crossing,
    /// None of those that are being stepped or take a gradient in.
    pub(super) states: HashMap<ParamId, HostState>,
    /// The embedding, where it comes to the device by rows.
    pub(super) table: Option<Table>,
    pub(crate) by_rows: bool,
    /// From the first gradient on.
    arrivals: Option<Arrivals>,
    arriving: HashMap<ParamId, Arriving>,
    stepping: Option<Stepping>,
    pub(crate) times: HostTimes,
    /// Why an update failed. Weights and states that it lost are nowhere else.
    failure: Option<String>,
    /// In the model's order, in which sums are the same in every run.
    pub(super) order: Vec<ParamId>,
    /// Weights that this process is making and other ranks wait for.
    to_tell: HashMap<ParamId, Updated<Arc<TensorData>>>,
    /// Where a checkpoint's moments are, before the model is there.
    pub(crate) restored: Option<Restored>,
    /// Steps that parameters of other ranks had taken at a checkpoint, by name, before the model is there.
    pub(crate) times_elsewhere: HashMap<String, usize>,
}

/// Parameters on their way from one step to the next.
#[derive(Debug)]
struct Stepping {
    parameters: Vec<ParamId>,
    updates: Updates,
}

/// The host optimizer's name for a state.
pub(crate) fn format(state: StateKind) -> Format {
    match state {
        StateKind::F32 => Format::F32,
        StateKind::Bf16 => Format::Bf16Moments,
        StateKind::Compact => Format::Compact,
    }
}

/// The host optimizer's rule for a run's settings.
pub(super) fn adamw(settings: &TrainSection, decay: f64) -> AdamW {
    AdamW {
        betas: settings.betas.map(|beta| beta as f32),
        epsilon: settings.epsilon as f32,
        weight_decay: f64::from(decay as f32),
    }
}

/// The block that a parameter is in.
pub(super) fn block_of(name: &str) -> Option<usize> {
    name.strip_prefix("blocks.").and_then(|rest| rest.split('.').next()?.parse().ok())
}

/// Whether a parameter is stepped on the host, where the optimizer is there.
pub(crate) fn is_on_host(config: &Config, name: &str, rank: usize) -> bool {
    let stays = block_of(name).is_some_and(|block| block < config.memory.device_blocks);
    !stays && rule(config.train.optimizer, name, rank) != Rule::Muon
}

/// Whether the device computes with this parameter in bf16, its f32 kept on the host.
pub(super) fn is_narrow(compute: Compute, name: &str, rank: usize) -> bool {
    compute == Compute::Bf16 && rank == 2 && (name.starts_with("blocks.") || name == "lm_head")
}

impl HostPart {
    /// Nothing yet; `None` where the whole optimizer is on the device.
    pub(crate) fn new<B: Managed>(config: &Config, device: &B::Device) -> Option<Self> {
        (config.memory.optimizer == PlacementKind::Host).then(|| Self {
            memory: host_memory::<B>(device),
            format: format(config.memory.optimizer_state),
            crossing: Crossing::new(config),
            config: config.clone(),
            states: HashMap::new(),
            table: None,
            by_rows: come_by_rows(config),
            arrivals: None,
            arriving: HashMap::new(),
            stepping: None,
            times: HostTimes::default(),
            failure: None,
            order: Vec::new(),
            to_tell: HashMap::new(),
            restored: None,
            times_elsewhere: HashMap::new(),
        })
    }

    /// Whether parameters are stepped along a velocity, and not by AdamW.
    pub(super) fn keeps_velocity(&self) -> bool {
        self.config.train.optimizer == OptimizerKind::Sgd
    }

    /// Whether a parameter is to be stepped here.
    pub(crate) fn takes(&self, name: &str, rank: usize) -> bool {
        is_on_host(&self.config, name, rank)
    }

    /// Whether gradients of this parameter come here.
    pub(crate) fn has(&self, id: ParamId) -> bool {
        self.has_rows_of(id) || self.states.contains_key(&id) || self.arriving.contains_key(&id)
    }

    /// Begins to read a gradient, or a further micro-batch's share, `is_last` where none follows; it is taken in beside what the
    /// program does next.
    pub(crate) fn arrive<I: Backend, const D: usize>(
        &mut self,
        id: ParamId,
        gradient: Tensor<I, D>,
        weights: DType,
        is_last: bool,
    ) -> Result<(), HostOptimError> {
        let crossing = self.crossing;
        let Some(state) = self.state(id)? else { return Ok(()) };
        let share = if crossing.gradient_leaves_in_tiles(state.name(), D) {
            crossing.read(state, gradient)?
        } else {
            // As wide as the weights: what more of it there is was rounded away in the products that made it.
            let narrows = weights == DType::BF16 && gradient.dtype() != weights;
            let gradient = if narrows { gradient.cast(FloatDType::BF16) } else { gradient };
            Incoming::begin(state.name(), gradient)?
        };
        let arrivals = self.arrivals.take().map_or_else(Arrivals::begin, Ok)?;
        let state = self.states.remove(&id).expect("it is here");
        self.arriving.insert(id, arrivals.take_in(state, share, is_last));
        self.arrivals = Some(arrivals);
        Ok(())
    }

    /// A parameter's state, once it has taken in what was read. A share that could not be taken in is told once.
    pub(super) fn state(&mut self, id: ParamId) -> Result<Option<&mut HostState>, HostOptimError> {
        if let Some(arriving) = self.arriving.remove(&id) {
            let (state, outcome) = arriving.wait()?;
            self.states.insert(id, state);
            outcome?;
        }
        Ok(self.states.get_mut(&id))
    }

    /// Waits until every gradient that was read is taken in.
    pub(crate) fn gather(&mut self) -> Result<(), HostOptimError> {
        let outcomes: Vec<_> = self.order.clone().into_iter().map(|id| self.state(id).map(drop)).collect();
        outcomes.into_iter().collect()
    }

    /// The number of this process's first micro-batch among those of all ranks.
    pub(crate) fn number_shares_from(&mut self, first: u64) {
        self.states.values_mut().for_each(|state| state.number_shares_from(first));
        self.table.iter().for_each(|table| table.rows().number_shares_from(first));
    }

    /// The sum of squares of everything that has arrived.
    pub(crate) fn squares(&mut self) -> Result<f64, HostOptimError> {
        Ok(self.squares_of_each()?.into_iter().map(|(_, squares)| squares).sum())
    }

    /// The same of each parameter, in the model's order.
    pub(crate) fn squares_of_each(&mut self) -> Result<Vec<(ParamId, f64)>, HostOptimError> {
        self.gather()?;
        let squares = self.order.iter().map(|id| {
            let squares = match (self.states.get_mut(id), &self.table) {
                (Some(state), _) => state.squares(),
                (None, Some(table)) if table.is(*id) => table.rows().squares(),
                (None, _) => Ok(0.0),
            };
            squares.map(|squares| (*id, squares))
        });
        squares.collect()
    }

    /// Forgets what has arrived, once it was [gathered](Self::gather).
    pub(crate) fn withhold(&mut self) {
        self.states.values_mut().for_each(HostState::drop_gradient);
        self.table.iter().for_each(|table| table.rows().drop_gradient());
    }

    /// Prepares the step of a parameter that is due; what it will be comes back.
    pub(super) fn prepare<I: Backend, const D: usize>(
        &mut self,
        id: ParamId,
        weights: Tensor<I, D>,
        stride: Stride,
    ) -> Result<(Update, Updated<Tensor<I, D>>), HostOptimError> {
        let (rule, stride) = self.rule_and_stride(D, stride);
        let state = self.states.remove(&id).expect("it is due");
        state.begin_tensor(rule, stride, weights)
    }

    pub(super) fn rule_and_stride(
        &self,
        rank: usize,
        stride: Stride,
    ) -> (host_optim::Rule, host_optim::Stride) {
        let settings = &self.config.train;
        let decay = decay(settings, rank);
        let rule = if self.keeps_velocity() {
            Sgd { momentum: settings.momentum as f32, weight_decay: decay }.into()
        } else {
            adamw(settings, decay).into()
        };
        (rule, host_optim::Stride { lr: settings.lr * stride.share, scale: stride.scale })
    }

    /// Begins the steps that were prepared.
    pub(super) fn begin(&mut self, prepared: Vec<(ParamId, Update)>) -> Result<(), HostOptimError> {
        assert!(self.stepping.is_none(), "the last update was waited for before gradients arrived");
        let (parameters, updates) = prepared.into_iter().unzip();
        self.stepping = Some(Stepping { parameters, updates: self.begin_updates(updates)? });
        Ok(())
    }

    /// Waits until every parameter is stepped. After a failure neither the model nor this is of any use, which is told
    /// whenever it is asked.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        if let Some(Stepping { parameters, updates }) = self.stepping.take() {
            match self.times.waiting(|| updates.finish()) {
                Ok(states) => self.states.extend(parameters.into_iter().zip(states)),
                Err(failure) => self.failure = Some(failure.to_string()),
            }
        }
        match &self.failure {
            Some(failure) => Err(anyhow!("the last update could not run: {failure}")),
            None => Ok(()),
        }
    }

    /// Whether a gradient of this parameter waits for its step here.
    pub(super) fn is_due(&self, id: ParamId) -> bool {
        self.states.get(&id).is_some_and(HostState::has_gradient)
    }

    /// Bytes of all moments as a checkpoint holds them.
    pub(super) fn saved_bytes(&self) -> u64 {
        let bytes = |moments: usize, len: usize| (moments * size_of::<f32>() * len) as u64;
        let table = self.table().map_or(0, |table| bytes(table.moments(), table.len()));
        table + self.states.values().map(|state| bytes(state.moments(), state.len())).sum::<u64>()
    }

    /// States by the names of their parameters, the table left out, once all are [settled](Self::settle). Parameters that another
    /// rank steps have none.
    pub(crate) fn by_name(&self) -> anyhow::Result<HashMap<&str, &HostState>> {
        ensure!(self.stepping.is_none(), "parameters that are being stepped have no state to save");
        ensure!(self.arriving.is_empty(), "parameters that take a gradient in have no state to save");
        ensure!(self.failure.is_none(), "the last update could not run, so there is nothing to save");
        let own = self.states.values().filter(|state| !state.is_elsewhere());
        Ok(own.map(|state| (state.name(), state)).collect())
    }
}

#[cfg(test)]
mod tests {
    use backend_offload::Offload;
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use models::Gpt;

    use super::*;
    use crate::optimizer::Owners;
    use crate::plan::StatesOnDisk;

    fn tiny() -> (HostPart, Gpt<Autodiff<Offload<Flex>>>) {
        let text = r#"{"model": {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 4, "vocab_size": 264},
            "tokenizer": {"kind": "bytes"}, "memory": {"optimizer": "host"}}"#;
        let config = Config::from_text(text, "a tiny run", &[]).expect("valid");
        let gpt: Gpt<Autodiff<Offload<Flex>>> = Gpt::new(&config.model, 1, &FlexDevice).expect("valid");
        let mut part = HostPart::new::<Offload<Flex>>(&config, &FlexDevice).expect("it is on the host");
        let gpt = part.adopt(gpt, &Owners::default(), StatesOnDisk::none()).expect("there is room");
        (part, gpt)
    }

    #[test]
    fn gradients_are_taken_in_beside_the_program_and_all_count_in_the_norm() {
        let (mut part, gpt) = tiny();
        let (id, other) = (gpt.wte.id, gpt.wpe.as_ref().expect("positions are learned").id);
        let rows = |rows: usize, value: f32| Tensor::<Offload<Flex>, 2>::full([rows, 8], value, &FlexDevice);
        part.arrive(id, rows(264, 1.0), DType::F32, false).expect("it can be read");
        assert!(part.arriving.contains_key(&id) && part.has(id), "nobody waited for it");
        assert!(part.by_name().is_err(), "it is not to be saved without this parameter");
        part.arrive(id, rows(264, 2.0), DType::F32, true).expect("the first was taken in");
        part.arrive(other, rows(4, 2.0), DType::F32, true).expect("it can be read");
        let squares = part.squares().expect("there is room");
        assert_eq!(squares.to_bits(), f64::from(9 * 264 * 8 + 4 * 4 * 8).to_bits());
        assert!(part.is_due(id) && part.is_due(other) && part.by_name().is_ok());
    }

    #[test]
    fn a_gradient_that_cannot_be_taken_in_is_told_before_the_step_and_loses_no_state() {
        let (mut part, gpt) = tiny();
        let id = gpt.wte.id;
        let short = Tensor::<Offload<Flex>, 1>::ones([3], &FlexDevice);
        part.arrive(id, short, DType::F32, true).expect("it can be read");
        let told = part.squares().expect_err("it is too short").to_string();
        assert!(told.contains("wte: the gradient has 3 elements"), "{told}");
        assert!(part.has(id) && !part.is_due(id) && part.by_name().is_ok());
    }

    #[test]
    fn a_failed_update_is_reported_at_every_later_call_and_nothing_is_saved() {
        let (mut part, gpt) = tiny();
        assert!(part.settle().is_ok() && part.by_name().is_ok());
        // No gradient has arrived, so that the step itself fails.
        let (id, weights) = (gpt.wte.id, gpt.wte.val().inner());
        let stride = Stride { share: 1.0, scale: 1.0 };
        let (update, updated) = part.prepare(id, weights, stride).expect("it can begin");
        part.begin(vec![(id, update)]).expect("a thread");
        let made: Vec<f32> = updated.wait().into_data().iter().collect();
        assert!(made.iter().all(|x| x.is_nan()), "{made:?}");
        for _ in 0..2 {
            let told = part.settle().expect_err("it failed").to_string();
            assert!(told.contains("the last update could not run") && told.contains("wte"), "{told}");
        }
        assert!(part.by_name().is_err());
    }
}
