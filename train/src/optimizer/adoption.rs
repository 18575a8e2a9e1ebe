//! How parameters come to be stepped on the host: each with its state, new or a checkpoint's, where that is to be.

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

use super::host::{block_of, is_narrow};
use super::rows::Table;
use super::streamed::{on_demand, placeholder};
use super::{HostPart, Owners};
use crate::plan::StatesOnDisk;
use crate::training::PARTS;

/// Moments of a checkpoint, each read when its parameter is there: all together may be more than host memory holds.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) stored: TensorFile,
    /// Steps taken, of each parameter that is stepped here.
    pub(crate) times: HashMap<String, usize>,
}

impl Restored {
    /// The steps that a parameter has taken, and its moments: one where it has a velocity.
    fn take(&mut self, name: &str, has_velocity: bool) -> anyhow::Result<Option<(usize, [Vec<f32>; 2])>> {
        let Some(time) = self.times.remove(name) else { return Ok(None) };
        let moment = |part: &str| -> anyhow::Result<Vec<f32>> {
            let numbers = self.stored.numbers(&format!("{name}.{part}"));
            Ok(numbers.map_err(|error| BadInput(error.to_string()))?.iter::<f32>().collect())
        };
        let [first, second] = PARTS;
        let second = if has_velocity { Vec::new() } else { moment(second)? };
        Ok(Some((time, [moment(first)?, second])))
    }
}

impl HostPart {
    /// Takes over the parameters of `gpt` that are stepped here, with their moments where a checkpoint had any, and puts their states
    /// where they are to be; and the gradients of those that another of their `owners` steps on its host. The model that comes back
    /// computes with all of them in the type the device is to have.
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

    /// The memory for a parameter's state.
    fn memory_for(&self, name: &str, rank: usize, on_disk: StatesOnDisk) -> StateMemory {
        let by_rows = self.by_rows && name == "wte";
        let disk = self.memory.disk().filter(|_| !by_rows && on_disk.have(block_of(name), rank));
        disk.as_ref().map_or_else(|| (&self.memory).into(), StateMemory::from)
    }

    pub(super) fn adopted<I: Backend, const D: usize>(
        &mut self,
        name: &str,
        weights: Tensor<I, D>,
        on_disk: StatesOnDisk,
    ) -> anyhow::Result<(HostState, Tensor<I, D>)> {
        let memory = self.memory_for(name, D, on_disk);
        // Tiles are made of the masters, which weights in bf16 would round first.
        let in_tiles = self.crossing.code(name, D).is_some();
        let narrow = !in_tiles && is_narrow(self.config.model.compute, name, D);
        let has_velocity = self.keeps_velocity();
        let restored = match &mut self.restored {
            Some(restored) => restored.take(name, has_velocity)?,
            None => None,
        };
        if restored.is_none() && !narrow && !has_velocity {
            return Ok((HostState::of_tensor(memory, name, self.format, &weights)?, weights));
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
        Ok(HostState::restore_tensor(memory, name, self.format, &saved, weights, kind)?)
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
    /// Chooses a parameter's form on the device: its weights, or tiles of its masters with a placeholder for the weights.
    fn in_tiles<I: Managed, const D: usize>(
        &mut self,
        id: ParamId,
        state: HostState,
        weights: Tensor<I, D>,
    ) -> Result<(HostState, Tensor<I, D>), HostOptimError> {
        let crossing = self.part.crossing;
        let Some(code) = crossing.code(state.name(), D) else { return Ok((state, weights)) };
        let (shape, device) = (weights.shape(), weights.device());
        drop(weights);
        let tiles = state.tiles::<I>(code, &device)?;
        self.on_demand.insert(id, on_demand::<I>(crossing, code, shape.clone(), move || tiles.clone()));
        Ok((state, placeholder(crossing.kind, shape, &device)))
    }

    /// Leaves a parameter to its owner; the parameter as the device is to have it, which the owner begins with.
    fn elsewhere<I: Managed, const D: usize>(
        &mut self,
        id: ParamId,
        name: &str,
        weights: Tensor<I, D>,
    ) -> anyhow::Result<Tensor<I, D>> {
        self.part.leave_to_its_owner(id, name, weights.shape().num_elements())?;
        if !self.part.completes(name, D) {
            return Ok(weights);
        }
        // However its state is kept, it decides what the device's weights are made of.
        let (state, weights) = self.part.adopted(name, weights, StatesOnDisk::none())?;
        Ok(self.in_tiles(id, state, weights)?.1)
    }

    /// Keeps the table on the host, with a placeholder for it on the device.
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

    /// Puts a parameter's state where it is stepped; the parameter as the device is to have it.
    fn placed<I: Managed, const D: usize>(
        &mut self,
        id: ParamId,
        state: HostState,
        weights: Tensor<I, D>,
    ) -> Result<Tensor<I, D>, HostOptimError> {
        if self.part.by_rows && state.name() == "wte" {
            return self.by_rows(id, state, &weights);
        }
        let (state, weights) = self.in_tiles(id, state, weights)?;
        self.part.states.insert(id, state);
        Ok(weights)
    }
}

impl<B: AutodiffBackend<InnerBackend: Managed>> ModuleMapper<B> for Adopt<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let name = self.path.join(".");
        if self.failure.is_some() || !self.part.takes(&name, D) {
            return param;
        }
        let (id, weights, mapper) = param.consume();
        let adopted = if self.owners.has(&name) {
            let adopted = self.part.adopted(&name, weights.clone().inner(), self.on_disk);
            adopted.and_then(|(state, weights)| Ok(self.placed(id, state, weights)?))
        } else {
            self.elsewhere(id, &name, weights.clone().inner())
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
