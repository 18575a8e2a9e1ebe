//! The optimizer's state as a Burn record, without conversion.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::ParamId;
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use serde::{Deserialize, Serialize};

use crate::error::HostOptimError;
use crate::format::Format;
use crate::layout::{CODE_BASES, FIRST, Layout, MASTERS, Moments, PARTS, SECOND};
use crate::state::{HostState, check_len};
use crate::storage::StateMemory;

/// State of a [`HostAdamW`](crate::HostAdamW), whatever the precision settings. With `Compact` it belongs to the record
/// of the model whose weights it completes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostAdamWRecord(BTreeMap<u64, Parts>);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Parts {
    format: Format,
    time: u32,
    len: usize,
    bytes: Vec<Vec<u8>>,
}

impl HostAdamWRecord {
    pub(crate) fn new(
        states: &BTreeMap<ParamId, Arc<HostState>>,
        loaded: &BTreeMap<ParamId, Parts>,
    ) -> Result<Self, HostOptimError> {
        let stepped = states.iter().map(|(id, state)| Ok((id.val(), state.to_parts()?)));
        let unstepped = loaded.iter().map(|(id, parts)| Ok((id.val(), parts.clone())));
        Ok(Self(stepped.chain(unstepped).collect::<Result<_, HostOptimError>>()?))
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
    pub(crate) fn to_parts(&self) -> Result<Parts, HostOptimError> {
        let order = order(self.layout.format);
        let mut bytes = vec![Vec::new(); order.len()];
        self.storage.read(0..PARTS, self.len, |_, parts| {
            let recorded = order.iter().map(|part| parts[*part]);
            bytes.iter_mut().zip(recorded).for_each(|(bytes, part)| bytes.extend_from_slice(part));
        })?;
        Ok(Parts { format: self.layout.format, time: self.time, len: self.len, bytes })
    }

    pub(crate) fn from_parts(
        memory: &StateMemory,
        name: &str,
        format: Format,
        parts: &Parts,
        len: usize,
    ) -> Result<Self, HostOptimError> {
        check_len(name, "the recorded state", len, parts.len)?;

        let layout = Layout::new(parts.format, Moments::Two, true);
        let (sizes, order) = (layout.bytes(len), order(parts.format));
        let sizes_agree = order.iter().map(|part| sizes[*part]).eq(parts.bytes.iter().map(Vec::len));
        // `Compact` keeps f32 parameters in `Bf16Moments`.
        let formats_agree =
            parts.format == format || (format, parts.format) == (Format::Compact, Format::Bf16Moments);
        if !sizes_agree || !formats_agree {
            return Err(HostOptimError::OtherFormat {
                name: name.to_owned(),
                wanted: format,
                found: parts.format,
            });
        }

        let mut state = Self::build(memory, name, layout, len, |range, arrays| {
            let (before, recorded) = (layout.bytes(range.start), arrays.parts());
            for (part, bytes) in order.iter().zip(&parts.bytes) {
                let into = &mut *recorded[*part];
                into.copy_from_slice(&bytes[before[*part]..][..into.len()]);
            }
        })?;
        state.time = parts.time;
        Ok(state)
    }

    pub(crate) fn duplicate(&self, memory: &StateMemory) -> Result<Self, HostOptimError> {
        Self::from_parts(memory, &self.name, self.layout.format, &self.to_parts()?, self.len)
    }
}

fn order(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::Bf16Moments => &[MASTERS, FIRST, SECOND],
        Format::Compact => &[MASTERS, FIRST, SECOND, CODE_BASES],
    }
}
