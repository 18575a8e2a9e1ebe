//! Matrix products in f32: Flex's calls of `gemm`, into uninitialised memory.
//!
//! Flex zeroes the product first, which costs one or two more writes. Tasks change only speed, not the order of sums.

use burn_flex::FlexTensor;
use gemm::Parallelism;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Multiplications worth a second thread.
const MANY: usize = 1 << 21;

/// Distances in elements.
#[derive(Clone, Copy)]
struct Matrices {
    first: *const f32,
    row: isize,
    column: isize,
}

// SAFETY: read only, from memory that is borrowed meanwhile.
unsafe impl Sync for Matrices {}

/// `[.., m, k] · [.., k, n]`, leading dimensions equal or 1. `None` if there is nothing to multiply.
pub(super) fn product(left: &FlexTensor, right: &FlexTensor, shape: &[usize]) -> Option<Vec<f32>> {
    let (batch, matrix) = shape.split_at(shape.len() - 2);
    let [m, n] = matrix else { unreachable!("a product has two dimensions at least") };
    let (m, n) = (*m, *n);
    let k = left.layout().shape()[left.layout().num_dims() - 1];
    let count: usize = batch.iter().product();
    if m * n * k * count == 0 {
        return None;
    }

    let size = m * n;
    let [lefts, rights] = [left, right].map(|tensor| offsets(tensor, batch));
    let [left, right] = [left, right].map(matrices);
    let mut made: Vec<f32> = Vec::with_capacity(count * size);
    let room = &mut made.spare_capacity_mut()[..count * size];

    let one = |at: usize, to: &mut [MaybeUninit<f32>], threads: Parallelism| {
        let (left, right) = (left, right);
        // SAFETY: `to` has m · n elements in rows; by their layouts, the factors lie within their storages.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                to.as_mut_ptr().cast::<f32>(),
                1,
                n as isize,
                false,
                left.first.offset(lefts[at]),
                left.column,
                left.row,
                right.first.offset(rights[at]),
                right.column,
                right.row,
                0.0,
                1.0,
                false,
                false,
                false,
                threads,
            );
        }
    };

    let each = m.saturating_mul(n).saturating_mul(k);
    let batched = count >= 4 || (count > 1 && each < MANY);
    if batched && each.saturating_mul(count) >= MANY {
        room.par_chunks_mut(size).enumerate().for_each(|(at, to)| one(at, to, Parallelism::None));
    } else {
        let threads = if each >= MANY { Parallelism::Rayon(0) } else { Parallelism::None };
        room.chunks_mut(size).enumerate().for_each(|(at, to)| one(at, to, threads));
    }

    // SAFETY: each call has written its m · n elements and read none.
    unsafe { made.set_len(count * size) };
    Some(made)
}

fn matrices(tensor: &FlexTensor) -> Matrices {
    let strides = tensor.layout().strides();
    let [.., row, column] = strides else { unreachable!("a factor has two dimensions at least") };
    let first = tensor.storage::<f32>()[tensor.layout().start_offset()..].as_ptr();
    Matrices { first, row: *row, column: *column }
}

fn offsets(tensor: &FlexTensor, batch: &[usize]) -> Vec<isize> {
    let layout = tensor.layout();
    let own = layout.num_dims() - 2;
    let (sizes, strides) = (&layout.shape().as_slice()[..own], &layout.strides()[..own]);
    let strides = super::walk::repeated(sizes, strides, batch);
    (0..batch.iter().product())
        .map(|mut at: usize| {
            let mut offset = 0;
            for (size, stride) in batch.iter().zip(&strides).rev() {
                offset += (at % size) as isize * stride;
                at /= size;
            }
            offset
        })
        .collect()
}
