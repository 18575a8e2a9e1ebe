//! The optimizer on the host among ranks: gradients that meet those of other ranks, and parameters that another rank steps.
//!
//! A parameter that another rank owns has no state here: its gradients arrive as all do and leave for their sum, and its new weights
//! come as its owner has them, in the type that the device computes with, or in tiles of eight bits where they cross the link so.

use std::sync::Arc;

use backend_offload::Managed;
use burn::module::ParamId;
use burn::tensor::{DType, Shape, Tensor, TensorData, TensorPrimitive, backend::Backend};
use host_optim::{Code, HostOptimError, HostState, Update, Values, tile_bytes, tile_tensors};
use models::OnDemand;

use super::super::streamed::{on_demand, placeholder};
use super::{HostPart, Stride, is_narrow};

impl HostPart {
    /// Takes over the gradients of a parameter of `len` elements whose owner steps it on its host.
    pub(in crate::optimizer) fn leave_to_its_owner(
        &mut self,
        id: ParamId,
        name: &str,
        len: usize,
    ) -> Result<(), HostOptimError> {
        let time = self.times_elsewhere.remove(name).unwrap_or_default() as u32;
        self.states.insert(id, HostState::of_gradients(&self.memory, name, len, time)?);
        Ok(())
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
        let (update, updated) = match self.crossing.code(state.name(), D) {
            Some(code) => state.begin_tile_data(rule, stride, code)?,
            None => state.begin_data(rule, stride, weights)?,
        };
        self.to_tell.insert(id, updated);
        Ok(update)
    }

    /// The decoder of a parameter in tiles until the new ones are told: NaN, and no memory of the old ones.
    pub(in crate::optimizer) fn awaited<I: Backend, const D: usize>(
        &self,
        id: ParamId,
        weights: &Tensor<I, D>,
    ) -> Option<OnDemand> {
        let state = self.states.get(&id)?;
        self.crossing.code(state.name(), D)?;
        let (kind, shape, device) = (self.crossing.kind, weights.shape(), weights.device());
        Some(OnDemand::new(move || placeholder::<I, 2>(kind, shape.clone(), &device)))
    }

    /// The weights that this process has stepped on the host and other ranks wait for, once they are there.
    pub(in crate::optimizer) fn stepped(&mut self, id: ParamId) -> Option<TensorData> {
        let updated = self.to_tell.remove(&id)?;
        let stepped = self.times.awaited(updated.wait_timed());
        drop(updated);
        Some(Arc::unwrap_or_clone(stepped))
    }

    /// Room for the new weights of a parameter of this shape as its owner tells them: of this type, or in tiles.
    pub(in crate::optimizer) fn room_for(code: Option<Code>, shape: Shape, kind: DType) -> TensorData {
        let (shape, kind) = match code {
            Some(_) => (Shape::new([tile_bytes(shape.num_elements())]), DType::U8),
            None => (shape, kind),
        };
        TensorData::from_bytes_vec(vec![0; kind.size() * shape.num_elements()], shape, kind)
    }

    /// Puts stepped weights in tiles on the device, where each use decodes them.
    pub(in crate::optimizer) fn place_tiles<I: Managed>(
        &self,
        code: Code,
        weights: &TensorData,
        shape: Shape,
        device: &I::Device,
    ) -> OnDemand {
        let tiles = self.memory.first(|| tile_tensors::<I>(&weights.bytes, shape.num_elements(), device));
        on_demand::<I>(self.crossing, code, shape, move || tiles.clone())
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

    /// Whether master weights of this parameter are on its owner's host alone: the device has fewer bits.
    pub(crate) fn completes(&self, name: &str, rank: usize) -> bool {
        let narrow = is_narrow(self.config.model.compute, name, rank);
        self.takes(name, rank) && (narrow || self.crossing.code(name, rank).is_some())
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
