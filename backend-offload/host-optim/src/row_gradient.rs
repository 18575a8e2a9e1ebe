//! The gradient of some rows of a matrix, all others zero: it arrives in shares, each of the rows that it names.
//!
//! Shares are added in the order of [`Gradient`](crate::gradient::Gradient), and a row that a share does not name counts as
//! zeros in it, so that the sum has the bits of whole gradients' sum.

use backend_offload::{HostBuffer, HostMemory, OffloadError};
use rayon::prelude::*;

use crate::pieces::{copy, squares_of_rows};

/// The sum of `1 << level` neighbouring shares.
#[derive(Debug)]
struct Part {
    level: u32,
    /// In order, each once.
    rows: Vec<u32>,
    buffer: HostBuffer,
}

impl Part {
    fn numbers(&self) -> &[f32] {
        bytemuck::cast_slice(&self.buffer)
    }

    /// The sum of these shares and of those that follow.
    fn plus(&self, memory: &HostMemory, name: &str, width: usize, more: &Self) -> Result<Self, OffloadError> {
        let mut rows = [&self.rows[..], &more.rows].concat();
        rows.sort_unstable();
        rows.dedup();
        let bytes = size_of::<f32>() * width * rows.len();
        let mut buffer = memory.take(bytes, format_args!("the summed gradients of {name}"))?;
        let zeros = vec![0.0f32; width];
        let sums = bytemuck::cast_slice_mut::<u8, f32>(&mut buffer);
        sums.par_chunks_exact_mut(width).zip(&rows).for_each(|(sums, row)| {
            let [left, right] = [self, more].map(|part| {
                part.rows.binary_search(row).map_or(&zeros[..], |at| &part.numbers()[at * width..][..width])
            });
            for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
                // Zero is added, too: it makes zero of its negative.
                *sum = left + right;
            }
        });
        Ok(Self { level: self.level + 1, rows, buffer })
    }
}

/// A gradient that has arrived, or the shares of it that have.
#[derive(Debug)]
pub(crate) struct RowGradient {
    width: usize,
    /// Number of the next share.
    next: u64,
    /// Sums of neighbours, the earlier ones first.
    parts: Vec<Part>,
}

impl RowGradient {
    /// Nothing yet; the first share has this number.
    pub(crate) fn new(width: usize, first: u64) -> Self {
        Self { width, next: first, parts: Vec::new() }
    }

    /// Takes the next share in.
    pub(crate) fn arrive(
        &mut self,
        memory: &HostMemory,
        name: &str,
        rows: &[u32],
        share: &[f32],
    ) -> Result<(), OffloadError> {
        let mut buffer = memory.take(size_of_val(share), format_args!("the gradient of {name}"))?;
        copy(&mut buffer, bytemuck::cast_slice(share));
        self.parts.push(Part { level: 0, rows: rows.to_vec(), buffer });
        while let [.., left, right] = &self.parts[..]
            && left.level == right.level
            && !(self.next >> right.level).is_multiple_of(2)
        {
            self.add_last(memory, name)?;
        }
        self.next += 1;
        Ok(())
    }

    /// Adds up what is left over, from the right. The gradient is whole then.
    pub(crate) fn complete(&mut self, memory: &HostMemory, name: &str) -> Result<(), OffloadError> {
        while self.parts.len() > 1 {
            self.add_last(memory, name)?;
        }
        Ok(())
    }

    fn add_last(&mut self, memory: &HostMemory, name: &str) -> Result<(), OffloadError> {
        let [.., left, right] = &self.parts[..] else { unreachable!("there are two") };
        let sum = left.plus(memory, name, self.width, right)?;
        self.parts.truncate(self.parts.len() - 2);
        self.parts.push(sum);
        Ok(())
    }

    /// The rows and the sum of all shares, where it is complete.
    pub(crate) fn whole(&self) -> (&[u32], &[f32]) {
        (&self.parts[0].rows, self.parts[0].numbers())
    }

    /// Sums of neighbouring shares, as gradients of the whole matrix of `len` numbers.
    pub(crate) fn parts(&self, len: usize) -> Vec<Vec<f32>> {
        let whole = |part: &Part| {
            let mut whole = vec![0.0; len];
            for (row, numbers) in part.rows.iter().zip(part.numbers().chunks_exact(self.width)) {
                whole[*row as usize * self.width..][..self.width].copy_from_slice(numbers);
            }
            whole
        };
        self.parts.iter().map(whole).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.buffer.len() as u64).sum()
    }

    /// The sum of squares of a whole gradient of `len` numbers.
    pub(crate) fn squares(&self, len: usize) -> f64 {
        let (rows, numbers) = self.whole();
        squares_of_rows(rows, self.width, len, numbers)
    }
}
