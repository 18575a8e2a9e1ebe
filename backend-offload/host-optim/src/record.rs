//! The optimizer's state as Burn records it: the buffers as they are kept, with no loss and no conversion.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend_offload::HostMemory;
use burn::module::ParamId;
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use serde::{Deserialize, Serialize};

use crate::error::HostOptimError;
use crate::format::Format;
use crate::state::{HostState, Moments, matching};

/// State of a [`HostAdamW`](crate::HostAdamW), in its own format: precision settings do not apply. In the format `Compact`
/// it completes the model's bf16 weights and belongs to the record of that model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostAdamWRecord(BTreeMap<u64, Parts>);

/// The buffers of one parameter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Parts {
    format: Format,
    time: u32,
    len: usize,
    bytes: Vec<Vec<u8>>,
}

impl HostAdamWRecord {
    pub(crate) fn of(states: &BTreeMap<ParamId, Arc<HostState>>, loaded: &BTreeMap<ParamId, Parts>) -> Self {
        let stepped = states.iter().map(|(id, state)| (id.val(), state.to_parts()));
        let unstepped = loaded.iter().map(|(id, parts)| (id.val(), parts.clone()));
        Self(stepped.chain(unstepped).collect())
    }

    pub(crate) fn into_parts(self) -> BTreeMap<ParamId, Parts> {
        self.0.into_iter().map(|(id, parts)| (ParamId::from(id), parts)).collect()
    }
}

impl<B: Backend> Record<B> for HostAdamWRecord {
    type Item<S: PrecisionSettings> = Self;

    fn into_item<S: PrecisionSettings>(self) -> Self {
        self
    }

    fn from_item<S: PrecisionSettings>(item: Self, _device: &B::Device) -> Self {
        item
    }
}

impl HostState {
    pub(crate) fn to_parts(&self) -> Parts {
        let bytes = self.kept.parts().into_iter().map(|part| part.to_vec()).collect();
        Parts { format: self.kept.format(), time: self.time, len: self.len, bytes }
    }

    /// The state of a parameter of `len` elements, for an optimizer of this `format`.
    pub(crate) fn from_parts(
        memory: &HostMemory,
        name: &str,
        format: Format,
        parts: &Parts,
        len: usize,
    ) -> Result<Self, HostOptimError> {
        matching(name, "the recorded state", len, parts.len)?;
        let mut state = Self::blank(memory, name, (parts.format, Moments::Two), len, true)?;
        let sizes_agree =
            state.kept.parts().iter().map(|part| part.len()).eq(parts.bytes.iter().map(Vec::len));
        // An f32 parameter of an optimizer in the compact format is kept with moments in bf16.
        let formats_agree =
            parts.format == format || (format, parts.format) == (Format::Compact, Format::Bf16Moments);
        if !sizes_agree || !formats_agree {
            return Err(HostOptimError::OtherFormat {
                name: name.to_owned(),
                wanted: format,
                found: parts.format,
            });
        }
        for (buffer, bytes) in state.kept.parts_mut().into_iter().zip(&parts.bytes) {
            buffer.copy_from_slice(bytes);
        }
        state.time = parts.time;
        Ok(state)
    }

    /// A copy that takes memory of its own.
    pub(crate) fn duplicate(&self) -> Result<Self, HostOptimError> {
        Self::from_parts(&self.memory, &self.name, self.kept.format(), &self.to_parts(), self.len)
    }
}
