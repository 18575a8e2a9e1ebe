//! The host optimizer with several ranks.
//!
//! Another owner's parameter has no moments here: gradients leave, and new weights arrive by broadcast
//! (`a_rank_takes_host_memory_for_what_it_owns_and_no_more`).

use std::sync::Arc;

use backend_offload::Managed;
use burn::module::ParamId;
use burn::tensor::{DType, Shape, Tensor, TensorData, TensorPrimitive, backend::Backend};
use host_optim::{Code, HostOptimError, HostState, Update, Values, tile_bytes, tile_tensors};
use models::OnDemand;

use super::super::streamed::{on_demand, placeholder};
use super::{HostPart, Stride};

impl HostPart {
    pub(in crate::optimizer) fn receive_gradients_only(
        &mut self,
        id: ParamId,
        name: &str,
        len: usize,
    ) -> Result<(), HostOptimError> {
        let time = self.restored.as_mut().and_then(|restored| restored.other_times.remove(name));
        self.states
            .insert(id, HostState::for_gradients(&self.memory, name, len, time.unwrap_or_default() as u32)?);
        Ok(())
    }

    /// Takes a gradient: one sum per group of neighbouring micro-batches.
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

    pub(crate) fn land(&mut self, id: ParamId, sum: &[f32]) -> Result<(), HostOptimError> {
        if let Some(table) = self.table.as_ref().filter(|table| table.is(id)) {
            return table.rows().replace_gradient(sum);
        }
        self.state(id)?.map_or(Ok(()), |state| state.replace_gradient(Values::F32(sum)))
    }

    /// Whether the owner's host provides new weights.
    pub(in crate::optimizer) fn is_broadcast_from_host(&self, id: ParamId) -> bool {
        self.to_broadcast.contains_key(&id) || self.belongs_to_another_rank(id)
    }

    pub(in crate::optimizer) fn belongs_to_another_rank(&self, id: ParamId) -> bool {
        self.states.get(&id).is_some_and(HostState::belongs_to_another_rank)
    }

    /// Counts another rank's update and drops the gradient.
    pub(in crate::optimizer) fn pass_step(&mut self, id: ParamId) {
        if let Some(state) = self.states.get_mut(&id) {
            state.drop_gradient();
            state.pass_step();
        }
    }

    /// Like [`prepare`](Self::prepare), for weights to broadcast.
    pub(in crate::optimizer) fn prepare_to_broadcast<I: Backend, const D: usize>(
        &mut self,
        id: ParamId,
        weights: Tensor<I, D>,
        stride: Stride,
    ) -> Result<Update, HostOptimError> {
        let state = self.states.remove(&id).expect("it is due");
        // Other ranks wait for it whatever happens.
        self.to_broadcast.insert(id, None);
        let (rule, stride) = self.rule_and_stride((state.name(), D), stride);
        let (update, updated) = match self.settings.parameters.form(state.name()).code {
            Some(code) => state.begin_tile_data(rule, stride, code)?,
            None => state.begin_data(rule, stride, weights)?,
        };
        self.to_broadcast.insert(id, Some(updated));
        Ok(update)
    }

    /// A decoder to NaN until the broadcast, for parameters in tiles. Frees the old tiles.
    pub(in crate::optimizer) fn nan_until_broadcast<I: Backend, const D: usize>(
        &self,
        id: ParamId,
        weights: &Tensor<I, D>,
    ) -> Option<OnDemand> {
        let state = self.states.get(&id)?;
        self.settings.parameters.form(state.name()).code?;
        let (kind, shape, device) = (self.settings.crossing.kind, weights.shape(), weights.device());
        Some(OnDemand::new(move || placeholder::<I, 2>(kind, shape.clone(), &device)))
    }

    /// Waits for the weights to broadcast.
    pub(in crate::optimizer) fn stepped(&mut self, id: ParamId) -> Option<TensorData> {
        let updated = self.to_broadcast.remove(&id).flatten()?;
        let stepped = self.times.add_wait(updated.wait_timed());
        drop(updated);
        Some(Arc::unwrap_or_clone(stepped))
    }

    /// Bytes of broadcast weights of type `kind`, or in tiles.
    pub(in crate::optimizer) fn broadcast_bytes(code: Option<Code>, shape: &Shape, kind: DType) -> usize {
        let elements = shape.num_elements();
        code.map_or(kind.size() * elements, |_| tile_bytes(elements))
    }

    pub(in crate::optimizer) fn received(
        code: Option<Code>,
        shape: Shape,
        kind: DType,
        bytes: Vec<u8>,
    ) -> TensorData {
        match code {
            Some(_) => {
                let shape = [bytes.len()];
                TensorData::from_bytes_vec(bytes, shape, DType::U8)
            }
            None => TensorData::from_bytes_vec(bytes, shape, kind),
        }
    }

    pub(in crate::optimizer) fn place_tiles<I: Managed>(
        &self,
        code: Code,
        weights: &TensorData,
        shape: Shape,
        device: &I::Device,
    ) -> OnDemand {
        let tiles = self.memory.first(|| tile_tensors::<I>(&weights.bytes, shape.num_elements(), device));
        on_demand::<I>(self.settings.crossing, code, shape, move || tiles.clone())
    }

    /// Puts new weights on the device, or first on the host if tensors spill.
    pub(in crate::optimizer) fn place<I: Managed, const D: usize>(
        &self,
        weights: TensorData,
        device: &I::Device,
    ) -> Tensor<I, D> {
        let made = self.memory.first(|| I::float_without_copy(weights, device));
        Tensor::from_primitive(TensorPrimitive::Float(made))
    }

    /// Whether only the owner's host has full precision.
    pub(crate) fn completes(&self, name: &str) -> bool {
        let form = self.settings.parameters.form(name);
        form.narrow || form.code.is_some()
    }

    pub(crate) fn host_bytes(&self) -> u64 {
        let table = self.table().map_or(0, |table| table.host_bytes());
        table + self.states.values().map(HostState::host_bytes).sum::<u64>()
    }
}

#[cfg(test)]
impl HostPart {
    /// Replaces the memory for states. Call it before the first allocation.
    pub(crate) fn take_memory_from(&mut self, memory: backend_offload::HostMemory) {
        self.memory = memory;
    }
}
