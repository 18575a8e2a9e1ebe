//! The optimizer in host memory.
//!
//! Threads add gradients during the backward pass, and update parameters during the next forward pass, in its order,
//! once the norm is known and finite. A use of a weight waits for its update; gradients, evaluation, samples and
//! checkpoints wait for all. In f32 the bits equal those on the device (`in_f32_host_steps_have_the_devices_bits`). A
//! failed update ends the run.

mod sharded;

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{anyhow, ensure};
use backend_offload::{HostMemory, Managed, host_memory};
use burn::module::ParamId;
use burn::tensor::{DType, FloatDType, Tensor, TensorData, backend::Backend};
use host_optim::{
    AdamW, Arrivals, Arriving, Format, HostOptimError, HostState, Incoming, Moments, Sgd, Update, Updated,
    Updates,
};
use runs::config::{Config, PlacementKind, TrainSection};

use super::adoption::Restored;
use super::rows::Table;
use super::streamed::Crossing;
use super::times::HostTimes;
use super::{Stride, rate_and_decay};
use crate::parameters::{Home, Parameters};
use crate::rule::{format, moments};

#[derive(Debug)]
pub(crate) struct HostPart {
    pub(super) memory: HostMemory,
    pub(crate) settings: Settings,
    /// States at rest: neither being updated nor receiving a gradient.
    pub(super) states: HashMap<ParamId, HostState>,
    /// The embedding if it is by rows.
    pub(super) table: Option<Table>,
    receiving: Receiving,
    steps: Steps,
    pub(crate) times: HostTimes,
    /// In the model's order, which is the order of sums.
    pub(super) order: Vec<ParamId>,
    /// New weights for other ranks, during their update; `None` if it could not be prepared.
    to_broadcast: HashMap<ParamId, Option<Updated<Arc<TensorData>>>>,
    /// A checkpoint's moments, before [`adopt`](Self::adopt).
    pub(crate) restored: Option<Restored>,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(super) train: TrainSection,
    pub(super) format: Format,
    pub(super) crossing: Crossing,
    pub(crate) parameters: Parameters,
}

#[derive(Debug, Default)]
struct Receiving {
    arrivals: Option<Arrivals>,
    states: HashMap<ParamId, Arriving>,
}

#[derive(Debug, Default)]
struct Steps {
    under_way: Option<Stepping>,
    /// A failed update; its weights and states are lost.
    failure: Option<String>,
}

#[derive(Debug)]
struct Stepping {
    parameters: Vec<ParamId>,
    updates: Updates,
}

pub(super) fn adamw(settings: &TrainSection, decay: f64) -> AdamW {
    AdamW {
        betas: settings.betas.map(|beta| beta as f32),
        epsilon: settings.epsilon as f32,
        weight_decay: f64::from(decay as f32),
    }
}

/// The gradient in the weights' type. Nothing is lost: its product was rounded already.
pub(crate) fn narrowed<I: Backend, const D: usize>(gradient: Tensor<I, D>, weights: DType) -> Tensor<I, D> {
    let narrows = weights == DType::BF16 && gradient.dtype() != weights;
    if narrows { gradient.cast(FloatDType::BF16) } else { gradient }
}

impl HostPart {
    /// `None` if the whole optimizer is on the device.
    pub(crate) fn new<B: Managed>(config: &Config, device: &B::Device) -> Option<Self> {
        (config.memory.optimizer == PlacementKind::Host).then(|| Self {
            memory: host_memory::<B>(device),
            settings: Settings {
                train: config.train.clone(),
                format: format(config.memory.optimizer_state),
                crossing: Crossing::new(config),
                parameters: Parameters::new(config),
            },
            states: HashMap::new(),
            table: None,
            receiving: Receiving::default(),
            steps: Steps::default(),
            times: HostTimes::default(),
            order: Vec::new(),
            to_broadcast: HashMap::new(),
            restored: None,
        })
    }

    pub(super) fn keeps_velocity(&self) -> bool {
        moments(self.settings.train.optimizer) == Moments::Velocity
    }

    pub(crate) fn takes(&self, name: &str) -> bool {
        self.settings.parameters.home(name).is_some_and(|home| home != Home::Device)
    }

    pub(crate) fn has(&self, id: ParamId) -> bool {
        self.is_table(id) || self.states.contains_key(&id) || self.receiving.states.contains_key(&id)
    }

    /// Begins to read a gradient in the background; `is_last` marks the step's last micro-batch.
    pub(crate) fn arrive<I: Backend, const D: usize>(
        &mut self,
        id: ParamId,
        gradient: Tensor<I, D>,
        weights: DType,
        is_last: bool,
    ) -> Result<(), HostOptimError> {
        if self.state(id)?.is_none() {
            return Ok(());
        }
        let state = &self.states[&id];
        let share = if self.settings.parameters.form(state.name()).gradients_in_tiles {
            self.settings.crossing.read(state, gradient)?
        } else {
            Incoming::begin(state.name(), narrowed(gradient, weights))?
        };
        self.receive(id, share, is_last)
    }

    /// Like [`arrive`](Self::arrive), for the sum of `1 << level` micro-batches.
    pub(crate) fn arrive_sum<I: Backend, const D: usize>(
        &mut self,
        id: ParamId,
        sum: Tensor<I, D>,
        level: u32,
        is_last: bool,
    ) -> Result<(), HostOptimError> {
        let Some(state) = self.state(id)? else { return Ok(()) };
        let share = Incoming::begin(state.name(), sum)?.at_level(level);
        self.receive(id, share, is_last)
    }

    fn receive(&mut self, id: ParamId, share: Incoming, is_last: bool) -> Result<(), HostOptimError> {
        let arrivals = self.receiving.arrivals.take().map_or_else(Arrivals::begin, Ok)?;
        let state = self.states.remove(&id).expect("it is here");
        self.receiving.states.insert(id, arrivals.take_in(state, share, is_last));
        self.receiving.arrivals = Some(arrivals);
        Ok(())
    }

    pub(crate) fn receives_tiles(&mut self, id: ParamId) -> Result<bool, HostOptimError> {
        let name = self.state(id)?.map(|state| state.name().to_owned());
        Ok(name.is_some_and(|name| self.settings.parameters.form(&name).gradients_in_tiles))
    }

    /// A failed arrival is reported once.
    pub(super) fn state(&mut self, id: ParamId) -> Result<Option<&mut HostState>, HostOptimError> {
        if let Some(arriving) = self.receiving.states.remove(&id) {
            let (state, outcome) = arriving.wait()?;
            self.states.insert(id, state);
            outcome?;
        }
        Ok(self.states.get_mut(&id))
    }

    pub(crate) fn gather(&mut self) -> Result<(), HostOptimError> {
        let outcomes: Vec<_> = self.order.clone().into_iter().map(|id| self.state(id).map(drop)).collect();
        outcomes.into_iter().collect()
    }

    /// Sets the number of this rank's first micro-batch, counted over all ranks.
    pub(crate) fn number_shares_from(&mut self, first: u64) {
        self.states.values_mut().for_each(|state| state.number_shares_from(first));
        self.table.iter().for_each(|table| table.rows().number_shares_from(first));
    }

    pub(crate) fn squares(&mut self) -> Result<f64, HostOptimError> {
        Ok(self.squares_of_each()?.into_iter().map(|(_, squares)| squares).sum())
    }

    /// In the model's order.
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

    /// Drops all gradients; requires [`gather`](Self::gather).
    pub(crate) fn withhold(&mut self) {
        self.states.values_mut().for_each(HostState::drop_gradient);
        self.table.iter().for_each(|table| table.rows().drop_gradient());
    }

    pub(super) fn prepare<I: Managed, const D: usize>(
        &mut self,
        id: ParamId,
        weights: Tensor<I, D>,
        stride: Stride,
    ) -> Result<(Update, Updated<Tensor<I, D>>), HostOptimError> {
        let state = self.states.remove(&id).expect("it is due");
        let (rule, stride) = self.rule_and_stride((state.name(), D), stride);
        state.begin_tensor(rule, stride, weights)
    }

    pub(super) fn rule_and_stride(
        &self,
        (name, dims): (&str, usize),
        stride: Stride,
    ) -> (host_optim::Rule, host_optim::Stride) {
        let settings = &self.settings.train;
        let (scale, decay) = rate_and_decay(settings, name, dims);
        let rule = if self.keeps_velocity() {
            Sgd { momentum: settings.momentum as f32, weight_decay: decay }.into()
        } else {
            adamw(settings, decay).into()
        };
        (rule, host_optim::Stride { lr: settings.lr * scale * stride.share, scale: stride.scale })
    }

    pub(super) fn begin(&mut self, prepared: Vec<(ParamId, Update)>) -> Result<(), HostOptimError> {
        assert!(self.steps.under_way.is_none(), "the last update was waited for before gradients arrived");
        let (parameters, updates) = prepared.into_iter().unzip();
        self.steps.under_way = Some(Stepping { parameters, updates: self.begin_updates(updates)? });
        Ok(())
    }

    /// Waits for all updates. After a failure the model is unusable, and later calls fail.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        if let Some(Stepping { parameters, updates }) = self.steps.under_way.take() {
            match self.times.time_wait(|| updates.finish()) {
                Ok(states) => self.states.extend(parameters.into_iter().zip(states)),
                Err(failure) => self.steps.failure = Some(failure.to_string()),
            }
        }
        match &self.steps.failure {
            Some(failure) => Err(anyhow!("the last update could not run: {failure}")),
            None => Ok(()),
        }
    }

    pub(super) fn is_due(&self, id: ParamId) -> bool {
        self.states.get(&id).is_some_and(HostState::has_gradient)
    }

    pub(super) fn saved_bytes(&self) -> u64 {
        let bytes = |moments: usize, len: usize| (moments * size_of::<f32>() * len) as u64;
        let table = self.table().map_or(0, |table| bytes(table.moments(), table.len()));
        table + self.states.values().map(|state| bytes(state.moments(), state.len())).sum::<u64>()
    }

    /// States by name, without the table. Fails before [`settle`](Self::settle) and [`gather`](Self::gather).
    pub(crate) fn by_name(&self) -> anyhow::Result<HashMap<&str, &HostState>> {
        ensure!(self.steps.under_way.is_none(), "parameters that are being stepped have no state to save");
        ensure!(self.receiving.states.is_empty(), "parameters that take a gradient in have no state to save");
        ensure!(self.steps.failure.is_none(), "the last update could not run, so there is nothing to save");
        let own = self.states.values().filter(|state| !state.belongs_to_another_rank());
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
    fn gradients_are_received_in_the_background_and_all_count_in_the_norm() {
        let (mut part, gpt) = tiny();
        let (id, other) = (gpt.wte.id, gpt.wpe.as_ref().expect("positions are learned").id);
        let rows = |rows: usize, value: f32| Tensor::<Offload<Flex>, 2>::full([rows, 8], value, &FlexDevice);
        part.arrive(id, rows(264, 1.0), DType::F32, false).expect("it can be read");
        assert!(part.receiving.states.contains_key(&id) && part.has(id), "no call has waited for it");
        assert!(part.by_name().is_err(), "it is not to be saved without this parameter");
        part.arrive(id, rows(264, 2.0), DType::F32, true).expect("the first was taken in");
        part.arrive(other, rows(4, 2.0), DType::F32, true).expect("it can be read");
        let squares = part.squares().expect("there is room");
        assert_eq!(squares.to_bits(), f64::from(9 * 264 * 8 + 4 * 4 * 8).to_bits());
        assert!(part.is_due(id) && part.is_due(other) && part.by_name().is_ok());
    }

    #[test]
    fn an_unusable_gradient_fails_before_the_step_and_loses_no_state() {
        let (mut part, gpt) = tiny();
        let id = gpt.wte.id;
        let short = Tensor::<Offload<Flex>, 1>::ones([3], &FlexDevice);
        part.arrive(id, short, DType::F32, true).expect("it can be read");
        let error = part.squares().expect_err("it is too short").to_string();
        assert!(error.contains("wte: the gradient has 3 elements"), "{error}");
        assert!(part.has(id) && !part.is_due(id) && part.by_name().is_ok());
    }

    #[test]
    fn a_failed_update_is_reported_at_every_later_call_and_nothing_is_saved() {
        let (mut part, gpt) = tiny();
        assert!(part.settle().is_ok() && part.by_name().is_ok());
        let (id, weights) = (gpt.wte.id, gpt.wte.val().inner());
        let stride = Stride { share: 1.0, scale: 1.0 };
        let (update, updated) = part.prepare(id, weights, stride).expect("it can begin");
        part.begin(vec![(id, update)]).expect("a thread");
        let made: Vec<f32> = updated.wait().into_data().iter().collect();
        assert!(made.iter().all(|x| x.is_nan()), "{made:?}");
        for _ in 0..2 {
            let error = part.settle().expect_err("it failed").to_string();
            assert!(error.contains("the last update could not run") && error.contains("wte"), "{error}");
        }
        assert!(part.by_name().is_err());
    }
}
