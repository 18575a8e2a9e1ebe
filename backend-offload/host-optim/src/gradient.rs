//! A gradient on the host: it arrives from the device, once or in shares, and waits there for its step.
//!
//! Shares are added pairwise by their number, as a binary counter carries: 2k and 2k + 1 first, then neighbouring pairs. The
//! sum then has the same bits whether one process adds all shares or several add neighbours and meet later.

use backend_offload::{HostBuffer, HostMemory, OffloadError};
use half::bf16;

use crate::numbers::Values;
use crate::pieces::{add, convert, copy};

/// The sum of `1 << level` neighbouring shares.
#[derive(Debug)]
struct Part {
    level: u32,
    buffer: HostBuffer,
    is_narrow: bool,
}

impl Part {
    fn values(&self) -> Values<'_> {
        if self.is_narrow {
            Values::Bf16(bytemuck::cast_slice(&self.buffer))
        } else {
            Values::F32(bytemuck::cast_slice(&self.buffer))
        }
    }

    /// Adds what follows these shares. One share is kept in the type it came in; the sum of several is in f32.
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

/// A gradient that has arrived, or the shares of it that have.
#[derive(Debug)]
pub(crate) struct Gradient {
    /// Number of the next share.
    next: u64,
    /// Sums of neighbours, the earlier ones first.
    parts: Vec<Part>,
}

impl Gradient {
    /// Nothing yet; the first share has this number.
    pub(crate) fn new(first: u64) -> Self {
        Self { next: first, parts: Vec::new() }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Takes the next share in.
    pub(crate) fn arrive(
        &mut self,
        memory: &HostMemory,
        name: &str,
        share: Values<'_>,
    ) -> Result<(), OffloadError> {
        let neighbour = self.parts.last_mut().filter(|left| left.level == 0 && !self.next.is_multiple_of(2));
        if let Some(left) = neighbour {
            left.add(memory, name, share)?;
        } else {
            let mut buffer = memory.take(share.bytes().len(), format_args!("the gradient of {name}"))?;
            if !memory.computes_nothing() {
                copy(&mut buffer, share.bytes());
            }
            self.parts.push(Part { level: 0, buffer, is_narrow: share.is_narrow() });
        }
        while let [.., left, right] = &mut self.parts[..]
            && left.level == right.level
            && !(self.next >> right.level).is_multiple_of(2)
        {
            left.add(memory, name, right.values())?;
            self.parts.pop();
        }
        self.next += 1;
        Ok(())
    }

    /// Adds up what is left over, from the right. The gradient is whole then.
    pub(crate) fn complete(&mut self, memory: &HostMemory, name: &str) -> Result<(), OffloadError> {
        while let [.., left, right] = &mut self.parts[..] {
            left.add(memory, name, right.values())?;
            self.parts.pop();
        }
        Ok(())
    }

    /// The sum of all shares, where it is complete.
    pub(crate) fn whole(&self) -> Values<'_> {
        self.parts[0].values()
    }

    /// Sums of neighbouring shares; a single one where it is whole.
    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = Values<'_>> {
        self.parts.iter().map(Part::values)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.buffer.len() as u64).sum()
    }

    /// The sum of squares, read anew: it is asked for once a step, when every share has arrived.
    pub(crate) fn squares(&self) -> f64 {
        self.whole().squares()
    }
}
