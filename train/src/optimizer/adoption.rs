//! Moves parameters and their states to the host optimizer.

use std::collections::HashMap;

use anyhow::ensure;
use backend_offload::Managed;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{
    DType, Tensor,
    backend::{AutodiffBackend, Backend},
};
use host_optim::{HostOptimError, HostState, Saved, StateMemory};
use models::rows::RowsOnDemand;
use models::weights::TensorFile;
use models::{Gpt, OnDemand};
use runs::BadInput;

use super::rows::Table;
use super::streamed::{on_demand, placeholder};
use super::{HostPart, Owners};
use crate::parameters::Home;
use crate::plan::StatesOnDisk;
use crate::rule::MOMENT_NAMES;

/// A checkpoint's moments, read one by one: all may exceed host memory.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) stored: TensorFile,
    pub(crate) times: HashMap<String, usize>,
    pub(crate) other_times: HashMap<String, usize>,
}

impl Restored {
    /// Step count and moments; a velocity leaves the second empty.
    fn take(&mut self, name: &str, has_velocity: bool) -> anyhow::Result<Option<(usize, [Vec<f32>; 2])>> {
        let Some(time) = self.times.remove(name) else { return Ok(None) };
        let moment = |part: &str| -> anyhow::Result<Vec<f32>> {
            let numbers = self.stored.numbers(&format!("{name}.{part}"));
            Ok(numbers.map_err(|error| BadInput(error.to_string()))?.iter::<f32>().collect())
        };
        let [first, second] = MOMENT_NAMES;
        let second = if has_velocity { Vec::new() } else { moment(second)? };
        Ok(Some((time, [moment(first)?, second])))
    }
}

impl HostPart {
    /// Takes this rank's host parameters, with a checkpoint's moments; of other `owners`, only gradients.
    pub(crate) fn adopt<B: AutodiffBackend<InnerBackend: Managed>>(
        &mut self,
        gpt: Gpt<B>,
        owners: &Owners,
        on_disk: StatesOnDisk,
    ) -> anyhow::Result<Gpt<B>> {
        let (path, on_demand) = (Vec::new(), HashMap::new());
        let mut adopt = Adopt { part: self, owners, on_disk, path, on_demand, rows: None, failure: None };
        let gpt = gpt.map(&mut adopt);
        let gpt =
            gpt.with_weights_on_demand(|id| adopt.on_demand.remove(&id)).with_rows_on_demand(adopt.rows);
        if let Some(failure) = adopt.failure {
            return Err(failure.context("the optimizer cannot be set up on the host"));
        }
        let left = self.restored.take().and_then(|restored| restored.times.into_keys().min());
        ensure!(
            left.is_none(),
            "the checkpoint has moments of `{}`, which is no parameter of the model",
            left.unwrap_or_default()
        );
        Ok(gpt)
    }

    fn memory_for(&self, name: &str, dims: usize, on_disk: StatesOnDisk) -> StateMemory {
        let by_rows = self.settings.parameters.home(name) == Some(Home::HostRows);
        let block = self.settings.parameters.block(name);
        let disk = self.memory.disk().filter(|_| !by_rows && on_disk.contains(block, dims));
        disk.as_ref().map_or_else(|| (&self.memory).into(), StateMemory::from)
    }

    pub(super) fn adopted<I: Backend, const D: usize>(
        &mut self,
        name: &str,
        weights: Tensor<I, D>,
        on_disk: StatesOnDisk,
    ) -> anyhow::Result<(HostState, Tensor<I, D>)> {
        let memory = self.memory_for(name, D, on_disk);
        // Tiles are encoded from f32 masters, which bf16 would round first.
        let form = self.settings.parameters.form(name);
        let narrow = form.narrow && form.code.is_none();
        let has_velocity = self.keeps_velocity();

        let restored = match &mut self.restored {
            Some(restored) => restored.take(name, has_velocity)?,
            None => None,
        };
        if restored.is_none() && !narrow && !has_velocity {
            return Ok((HostState::from_tensor(memory, name, self.settings.format, &weights)?, weights));
        }

        let masters: Vec<f32> = if self.memory.computes_nothing() {
            vec![0.0; weights.shape().num_elements()]
        } else {
            host_optim::read(name, weights.clone())?.iter::<f32>().collect()
        };

        let (time, moments) = restored.unwrap_or_else(|| {
            let zeros = |keeps: bool| vec![0.0; if keeps { masters.len() } else { 0 }];
            (0, [zeros(true), zeros(!has_velocity)])
        });
        let saved = Saved { time: time as u32, weights: masters, moments };
        let kind = if narrow { DType::BF16 } else { DType::F32 };
        Ok(HostState::restore_tensor(memory, name, self.settings.format, &saved, weights, kind)?)
    }
}

struct Adopt<'a> {
    part: &'a mut HostPart,
    owners: &'a Owners,
    on_disk: StatesOnDisk,
    path: Vec<String>,
    on_demand: HashMap<ParamId, OnDemand>,
    rows: Option<RowsOnDemand>,
    failure: Option<anyhow::Error>,
}

impl Adopt<'_> {
    fn in_tiles<I: Managed, const D: usize>(
        &mut self,
        id: ParamId,
        state: HostState,
        weights: Tensor<I, D>,
    ) -> Result<(HostState, Tensor<I, D>), HostOptimError> {
        let crossing = self.part.settings.crossing;
        let Some(code) = self.part.settings.parameters.form(state.name()).code else {
            return Ok((state, weights));
        };
        let (shape, device) = (weights.shape(), weights.device());
        drop(weights);
        let tiles = state.tiles::<I>(code, &device)?;
        self.on_demand.insert(id, on_demand::<I>(crossing, code, shape.clone(), move || tiles.clone()));
        Ok((state, placeholder(crossing.kind, shape, &device)))
    }

    /// Another owner's parameter as the device holds it.
    fn leave_to_owner<I: Managed, const D: usize>(
        &mut self,
        id: ParamId,
        name: &str,
        weights: Tensor<I, D>,
    ) -> anyhow::Result<Tensor<I, D>> {
        self.part.receive_gradients_only(id, name, weights.shape().num_elements())?;
        if !self.part.completes(name) {
            return Ok(weights);
        }
        // Made from a state, like the owner's weights.
        let (state, weights) = self.part.adopted(name, weights, StatesOnDisk::none())?;
        Ok(self.in_tiles(id, state, weights)?.1)
    }

    fn by_rows<I: Managed, const D: usize>(
        &mut self,
        id: ParamId,
        state: HostState,
        weights: &Tensor<I, D>,
    ) -> Result<Tensor<I, D>, HostOptimError> {
        let (shape, device) = (weights.shape(), weights.device());
        let memory = self.part.memory.clone();
        let (table, rows) = Table::new::<I>(id, state, shape[D - 1], memory, &device)?;
        (self.part.table, self.rows) = (Some(table), Some(rows));
        Ok(placeholder(weights.dtype(), shape, &device))
    }

    fn placed<I: Managed, const D: usize>(
        &mut self,
        id: ParamId,
        state: HostState,
        weights: Tensor<I, D>,
    ) -> Result<Tensor<I, D>, HostOptimError> {
        if self.part.settings.parameters.home(state.name()) == Some(Home::HostRows) {
            return self.by_rows(id, state, &weights);
        }
        let (state, weights) = self.in_tiles(id, state, weights)?;
        self.part.states.insert(id, state);
        Ok(weights)
    }
}

impl<B: AutodiffBackend<InnerBackend: Managed>> ModuleMapper<B> for Adopt<'_> {
    models::keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let name = self.path.join(".");
        if self.failure.is_some() || !self.part.takes(&name) {
            return param;
        }
        if self.owners.gather(&name) && !self.owners.has(&name) {
            let len = param.lazy_shape().num_elements();
            match self.part.receive_gradients_only(param.id, &name, len) {
                Ok(()) => self.part.order.push(param.id),
                Err(failure) => self.failure = Some(failure.into()),
            }
            return param;
        }
        let (id, weights, mapper) = param.consume();
        let adopted = if self.owners.has(&name) {
            let adopted = self.part.adopted(&name, weights.clone().inner(), self.on_disk);
            adopted.and_then(|(state, weights)| Ok(self.placed(id, state, weights)?))
        } else {
            self.leave_to_owner(id, &name, weights.clone().inner())
        };
        match adopted {
            Ok(weights) => {
                self.part.order.push(id);
                Param::from_mapped_value(id, Tensor::from_inner(weights).require_grad(), mapper)
            }
            Err(failure) => {
                self.failure = Some(failure);
                Param::from_mapped_value(id, weights, mapper)
            }
        }
    }
}
