//! The optimizer on the host among ranks: gradients that meet those of other ranks, and parameters that another rank steps.
//!
//! A parameter that another rank owns has no state here: its gradients arrive as all do and leave for their sum, and its new weights
//! come as its owner has them, in the type that the device computes with.

use std::sync::Arc;

use backend_offload::Managed;
use burn::module::ParamId;
use burn::tensor::{Tensor, TensorData, TensorPrimitive, backend::Backend};
use host_optim::{HostOptimError, HostState, Update, Values};

use super::{HostPart, Stride, is_narrow};
use crate::plan::StatesOnDisk;

impl HostPart {
    /// Takes over the gradients of a parameter whose owner steps it on its host. Its weights on the device are those that the owner
    /// begins with.
    pub(in crate::optimizer) fn left_to_its_owner<I: Backend, const D: usize>(
        &mut self,
        id: ParamId,
        name: &str,
        weights: Tensor<I, D>,
    ) -> anyhow::Result<Tensor<I, D>> {
        let time = self.times_elsewhere.remove(name).unwrap_or_default() as u32;
        let state = HostState::of_gradients(&self.memory, name, weights.shape().num_elements(), time)?;
        self.states.insert(id, state);
        if !self.completes(name, D) {
            return Ok(weights);
        }
        // However its state is kept, it decides what the device's weights are rounded to.
        Ok(self.adopted(name, weights, StatesOnDisk::none())?.1)
    }

    /// A parameter's gradient as far as it has arrived, sums of neighbouring shares; none of it is kept.
    pub(crate) fn leave(&mut self, id: ParamId) -> Result<Vec<Vec<f32>>, HostOptimError> {
        if let Some(table) = self.table.as_ref().filter(|table| table.is(id)) {
            let mut rows = table.rows();
            let shares = rows.shares();
            rows.drop_gradient();
            return Ok(shares);
        }
        let Some(state) = self.state(id)? else { return Ok(Vec::new()) };
        let own = state.shares().into_iter().map(|share| match share {
            Values::F32(share) => share.to_vec(),
            Values::Bf16(share) => share.iter().map(|x| x.to_f32()).collect(),
        });
        let own = own.collect();
        state.drop_gradient();
        Ok(own)
    }

    /// Takes in what a parameter's gradients of all ranks come to.
    pub(crate) fn land(&mut self, id: ParamId, sum: &[f32]) -> Result<(), HostOptimError> {
        if let Some(table) = self.table.as_ref().filter(|table| table.is(id)) {
            return table.rows().replace_gradient(sum);
        }
        self.state(id)?.map_or(Ok(()), |state| state.replace_gradient(Values::F32(sum)))
    }

    /// Whether new weights of this parameter come from a host: this one's or its owner's.
    pub(in crate::optimizer) fn tells(&self, id: ParamId) -> bool {
        self.to_tell.contains_key(&id) || self.is_elsewhere(id)
    }

    /// Whether another rank steps this parameter on its host.
    pub(in crate::optimizer) fn is_elsewhere(&self, id: ParamId) -> bool {
        self.states.get(&id).is_some_and(HostState::is_elsewhere)
    }

    /// Counts a step of a parameter that another rank takes.
    pub(in crate::optimizer) fn pass_step(&mut self, id: ParamId) {
        if let Some(state) = self.states.get_mut(&id) {
            state.drop_gradient();
            state.pass_step();
        }
    }

    /// As [`prepare`](Self::prepare), of a parameter whose new weights other ranks wait for.
    pub(in crate::optimizer) fn prepare_to_tell<I: Backend, const D: usize>(
        &mut self,
        id: ParamId,
        weights: Tensor<I, D>,
        stride: Stride,
    ) -> Result<Update, HostOptimError> {
        let (rule, stride) = self.rule_and_stride(D, stride);
        let state = self.states.remove(&id).expect("it is due");
        let (update, updated) = state.begin_data(rule, stride, weights)?;
        self.to_tell.insert(id, updated);
        Ok(update)
    }

    /// The weights that this process has stepped on the host and other ranks wait for, once they are there.
    pub(in crate::optimizer) fn stepped(&mut self, id: ParamId) -> Option<TensorData> {
        let updated = self.to_tell.remove(&id)?;
        let stepped = updated.wait();
        drop(updated);
        Some(Arc::unwrap_or_clone(stepped))
    }

    /// Puts stepped weights on the device, as steps that nobody waits for do.
    pub(in crate::optimizer) fn place<I: Managed, const D: usize>(
        &self,
        weights: TensorData,
        device: &I::Device,
    ) -> Tensor<I, D> {
        let made = self.memory.first(|| I::float_from_data(weights, device));
        Tensor::from_primitive(TensorPrimitive::Float(made))
    }

    /// Whether master weights of this parameter are on its owner's host alone: the device computes with fewer bits.
    pub(crate) fn completes(&self, name: &str, rank: usize) -> bool {
        self.takes(name, rank) && is_narrow(self.config.model.compute, name, rank)
    }

    /// Bytes of host memory that states take.
    pub(crate) fn host_bytes(&self) -> u64 {
        let table = self.table().map_or(0, |table| table.host_bytes());
        table + self.states.values().map(HostState::host_bytes).sum::<u64>()
    }
}

#[cfg(test)]
impl HostPart {
    /// Takes memory that nobody else takes, before it takes any.
    pub(crate) fn take_memory_from(&mut self, memory: backend_offload::HostMemory) {
        self.memory = memory;
    }
}
