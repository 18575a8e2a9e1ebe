//! A gradient on the host: it arrives from the device, once or in shares, and waits there for its step.

use backend_offload::{HostBuffer, HostMemory, OffloadError};
use half::bf16;

use crate::numbers::Values;
use crate::pieces::{add, convert, copy, squares};

/// A gradient that has arrived. One share is kept in the type it came in; the sum of several is in f32.
#[derive(Debug)]
pub(crate) struct Gradient {
    buffer: HostBuffer,
    is_narrow: bool,
}

impl Gradient {
    pub(crate) fn first(memory: &HostMemory, name: &str, share: Values<'_>) -> Result<Self, OffloadError> {
        let mut buffer = memory.take(share.bytes().len(), format_args!("the gradient of {name}"))?;
        copy(&mut buffer, share.bytes());
        Ok(Self { buffer, is_narrow: share.is_narrow() })
    }

    /// Adds a further share.
    pub(crate) fn add(
        &mut self,
        memory: &HostMemory,
        name: &str,
        share: Values<'_>,
    ) -> Result<(), OffloadError> {
        if let Values::Bf16(narrow) = self.values() {
            let len = size_of::<f32>() * narrow.len();
            let mut wide = memory.take(len, format_args!("the summed gradients of {name}"))?;
            convert::<bf16, f32>(bytemuck::cast_slice_mut(&mut wide), narrow, |x| x);
            (self.buffer, self.is_narrow) = (wide, false);
        }
        let sum = bytemuck::cast_slice_mut(&mut self.buffer);
        match share {
            Values::F32(share) => add(sum, share),
            Values::Bf16(share) => add(sum, share),
        }
        Ok(())
    }

    pub(crate) fn values(&self) -> Values<'_> {
        if self.is_narrow {
            Values::Bf16(bytemuck::cast_slice(&self.buffer))
        } else {
            Values::F32(bytemuck::cast_slice(&self.buffer))
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// The sum of squares, read anew: it is asked for once a step, when every share has arrived.
    pub(crate) fn squares(&self) -> f64 {
        match self.values() {
            Values::F32(values) => squares(values),
            Values::Bf16(values) => squares(values),
        }
    }
}
