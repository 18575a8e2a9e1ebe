//! A gradient in host memory: it arrives from the device, whole or in shares, and waits for its step.
//!
//! Shares are added pairwise by number, as a binary counter carries: 2k and 2k + 1 first, then neighbouring pairs. So
//! the sum has the same bits whether one process adds all shares, or several add neighbours and combine the results.

use backend_offload::{HostBuffer, HostMemory, OffloadError};
use half::bf16;

use crate::numbers::Values;
use crate::pieces::{add, convert, copy};

/// The sum of `1 << level` neighbouring shares.
#[derive(Debug)]
struct PartialSum {
    level: u32,
    buffer: HostBuffer,
    is_narrow: bool,
}

impl PartialSum {
    fn values(&self) -> Values<'_> {
        if self.is_narrow {
            Values::Bf16(bytemuck::cast_slice(&self.buffer))
        } else {
            Values::F32(bytemuck::cast_slice(&self.buffer))
        }
    }

    /// Adds the following shares. A single share keeps its type; sums are in f32.
    fn add(&mut self, memory: &HostMemory, name: &str, more: Values<'_>) -> Result<(), OffloadError> {
        let computes = !memory.computes_nothing();
        self.level += 1;
        if let Values::Bf16(narrow) = self.values() {
            let len = size_of::<f32>() * narrow.len();
            let mut wide = memory.take(len, format_args!("the summed gradients of {name}"))?;
            if computes {
                convert::<bf16, f32>(bytemuck::cast_slice_mut(&mut wide), narrow, |x| x);
            }
            (self.buffer, self.is_narrow) = (wide, false);
        }
        let sum = bytemuck::cast_slice_mut(&mut self.buffer);
        match more {
            Values::F32(more) if computes => add(sum, more),
            Values::Bf16(more) if computes => add(sum, more),
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Gradient {
    /// Number of the next share.
    next: u64,
    /// In the order of their shares.
    partial_sums: Vec<PartialSum>,
}

impl Gradient {
    /// Empty; `first` is the number of the first share.
    pub(crate) fn new(first: u64) -> Self {
        Self { next: first, partial_sums: Vec::new() }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn arrive(
        &mut self,
        memory: &HostMemory,
        name: &str,
        share: Values<'_>,
    ) -> Result<(), OffloadError> {
        let neighbour =
            self.partial_sums.last_mut().filter(|left| left.level == 0 && !self.next.is_multiple_of(2));
        if let Some(left) = neighbour {
            left.add(memory, name, share)?;
        } else {
            let mut buffer = memory.take(share.bytes().len(), format_args!("the gradient of {name}"))?;
            if !memory.computes_nothing() {
                copy(&mut buffer, share.bytes());
            }
            self.partial_sums.push(PartialSum { level: 0, buffer, is_narrow: share.is_narrow() });
        }
        while let [.., left, right] = &mut self.partial_sums[..]
            && left.level == right.level
            && !(self.next >> right.level).is_multiple_of(2)
        {
            left.add(memory, name, right.values())?;
            self.partial_sums.pop();
        }
        self.next += 1;
        Ok(())
    }

    /// Adds the remaining partial sums, from the right; afterwards one is left.
    pub(crate) fn complete(&mut self, memory: &HostMemory, name: &str) -> Result<(), OffloadError> {
        while let [.., left, right] = &mut self.partial_sums[..] {
            left.add(memory, name, right.values())?;
            self.partial_sums.pop();
        }
        Ok(())
    }

    /// The sum of all shares, after [`complete`](Self::complete).
    pub(crate) fn whole(&self) -> Values<'_> {
        self.partial_sums[0].values()
    }

    pub(crate) fn partial_sums(&self) -> impl ExactSizeIterator<Item = Values<'_>> {
        self.partial_sums.iter().map(PartialSum::values)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.partial_sums.iter().map(|part| part.buffer.len() as u64).sum()
    }

    pub(crate) fn squares(&self) -> f64 {
        self.whole().squares()
    }
}
