//! The gradient of a matrix's rows, received in shares, each with its own rows.
//!
//! Shares are added as in [`Gradient`](crate::gradient::Gradient). Absent rows count as zeros: bits equal a sum of
//! whole gradients.

use backend_offload::{HostBuffer, HostMemory, OffloadError};
use rayon::prelude::*;

use crate::pieces::{copy, squares_of_rows};

#[derive(Debug)]
struct PartialSum {
    level: u32,
    /// Ascending, without duplicates.
    rows: Vec<u32>,
    buffer: HostBuffer,
}

impl PartialSum {
    fn numbers(&self) -> &[f32] {
        bytemuck::cast_slice(&self.buffer)
    }

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
                // Zeros matter: adding 0.0 turns -0.0 into 0.0.
                *sum = left + right;
            }
        });
        Ok(Self { level: self.level + 1, rows, buffer })
    }
}

#[derive(Debug)]
pub(crate) struct RowGradient {
    width: usize,
    next: u64,
    partial_sums: Vec<PartialSum>,
}

impl RowGradient {
    pub(crate) fn new(width: usize, first: u64) -> Self {
        Self { width, next: first, partial_sums: Vec::new() }
    }

    pub(crate) fn arrive(
        &mut self,
        memory: &HostMemory,
        name: &str,
        rows: &[u32],
        share: &[f32],
    ) -> Result<(), OffloadError> {
        let mut buffer = memory.take(size_of_val(share), format_args!("the gradient of {name}"))?;
        copy(&mut buffer, bytemuck::cast_slice(share));
        self.partial_sums.push(PartialSum { level: 0, rows: rows.to_vec(), buffer });
        while let [.., left, right] = &self.partial_sums[..]
            && left.level == right.level
            && !(self.next >> right.level).is_multiple_of(2)
        {
            self.add_last(memory, name)?;
        }
        self.next += 1;
        Ok(())
    }

    pub(crate) fn complete(&mut self, memory: &HostMemory, name: &str) -> Result<(), OffloadError> {
        while self.partial_sums.len() > 1 {
            self.add_last(memory, name)?;
        }
        Ok(())
    }

    fn add_last(&mut self, memory: &HostMemory, name: &str) -> Result<(), OffloadError> {
        let [.., left, right] = &self.partial_sums[..] else { unreachable!("there are two") };
        let sum = left.plus(memory, name, self.width, right)?;
        self.partial_sums.truncate(self.partial_sums.len() - 2);
        self.partial_sums.push(sum);
        Ok(())
    }

    /// Valid after [`complete`](Self::complete).
    pub(crate) fn whole(&self) -> (&[u32], &[f32]) {
        (&self.partial_sums[0].rows, self.partial_sums[0].numbers())
    }

    pub(crate) fn partial_sums(&self, len: usize) -> Vec<Vec<f32>> {
        let whole = |part: &PartialSum| {
            let mut whole = vec![0.0; len];
            for (row, numbers) in part.rows.iter().zip(part.numbers().chunks_exact(self.width)) {
                whole[*row as usize * self.width..][..self.width].copy_from_slice(numbers);
            }
            whole
        };
        self.partial_sums.iter().map(whole).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.partial_sums.iter().map(|part| part.buffer.len() as u64).sum()
    }

    pub(crate) fn squares(&self, len: usize) -> f64 {
        let (rows, numbers) = self.whole();
        squares_of_rows(rows, self.width, len, numbers)
    }
}
