//! Element-wise loops on the processor's widest vectors, with many elements on all threads.
//!
//! They share rayon's global pool with Flex. Elements are computed alone: threads and vectors change no bit.

#![expect(
    clippy::inline_always,
    reason = "a call that is not inlined into the vectorised loop is compiled for the oldest processor"
)]

use super::walk::Walk;
use pulp::Arch;
use rayon::prelude::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Decides how many elements are worth a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost {
    /// Arithmetic, which waits for memory.
    Memory,
    /// A call into the C library.
    Call,
}

impl Cost {
    /// Another thread takes tens of microseconds to start.
    fn least(self) -> usize {
        match self {
            Self::Memory => 1 << 16,
            Self::Call => 1 << 13,
        }
    }
}

pub(super) fn in_tasks<T: Send>(
    elements: &mut [T],
    cost: Cost,
    task: impl Fn(Range<usize>, &mut [T]) + Sync + Send,
) {
    let count = elements.len();
    if count < 2 * cost.least() {
        return task(0..count, elements);
    }
    // A few per thread: others take a delayed thread's share.
    let size = count.div_ceil(4 * rayon::current_num_threads()).max(cost.least());
    elements.par_chunks_mut(size).enumerate().for_each(|(n, elements)| {
        let begin = n * size;
        task(begin..begin + elements.len(), elements);
    });
}

fn collected<T: Copy + Send>(
    count: usize,
    cost: Cost,
    task: impl Fn(Range<usize>, &mut [MaybeUninit<T>]) + Sync + Send,
) -> Vec<T> {
    let mut elements = Vec::with_capacity(count);
    in_tasks(&mut elements.spare_capacity_mut()[..count], cost, task);
    // SAFETY: the tasks have written all elements; a panic skips this line.
    unsafe { elements.set_len(count) };
    elements
}

#[inline(always)]
fn vectorised<T>(work: impl FnOnce() -> T) -> T {
    Arch::new().dispatch(work)
}

pub(super) fn map(from: &[f32], cost: Cost, f: impl Fn(f32) -> f32 + Copy + Sync + Send) -> Vec<f32> {
    collected(from.len(), cost, |range, to| {
        vectorised(
            #[inline(always)]
            || to.iter_mut().zip(&from[range]).for_each(|(to, from)| _ = to.write(f(*from))),
        );
    })
}

pub(super) fn map_in_place(elements: &mut [f32], cost: Cost, f: impl Fn(f32) -> f32 + Copy + Sync + Send) {
    in_tasks(elements, cost, |_, elements| {
        vectorised(
            #[inline(always)]
            || elements.iter_mut().for_each(|x| *x = f(*x)),
        );
    });
}

pub(super) fn map_along<E: Copy + Sync, T: Copy + Send>(
    count: usize,
    walk: &Walk<1>,
    from: &[E],
    cost: Cost,
    f: impl Fn(E) -> T + Copy + Sync + Send,
) -> Vec<T> {
    let [step] = walk.steps();

    collected(count, cost, |range, to| {
        vectorised(
            #[inline(always)]
            || {
                walk.pieces(
                    range,
                    #[inline(always)]
                    |piece, [first]| {
                        let to = &mut to[piece];
                        match step {
                            1 => {
                                let from = &from[first..first + to.len()];
                                to.iter_mut().zip(from).for_each(|(to, from)| _ = to.write(f(*from)));
                            }
                            0 => to.fill(MaybeUninit::new(f(from[first]))),
                            _ => {
                                for (n, to) in to.iter_mut().enumerate() {
                                    to.write(f(from[along(first, step, n)]));
                                }
                            }
                        }
                    },
                );
            },
        );
    })
}

pub(super) fn zip_along<L: Copy + Sync, R: Copy + Sync>(
    count: usize,
    walk: &Walk<2>,
    (left, right): (&[L], &[R]),
    f: impl Fn(L, R) -> f32 + Copy + Sync + Send,
) -> Vec<f32> {
    let steps = walk.steps();

    collected(count, Cost::Memory, |range, to| {
        vectorised(
            #[inline(always)]
            || {
                walk.pieces(
                    range,
                    #[inline(always)]
                    |piece, [l, r]| {
                        let to = &mut to[piece];
                        let len = to.len();
                        match steps {
                            [1, 1] => {
                                let pairs = left[l..l + len].iter().zip(&right[r..r + len]);
                                to.iter_mut().zip(pairs).for_each(|(to, (l, r))| _ = to.write(f(*l, *r)));
                            }
                            [1, 0] => {
                                let r = right[r];
                                let left = &left[l..l + len];
                                to.iter_mut().zip(left).for_each(|(to, l)| _ = to.write(f(*l, r)));
                            }
                            [0, 1] => {
                                let l = left[l];
                                let right = &right[r..r + len];
                                to.iter_mut().zip(right).for_each(|(to, r)| _ = to.write(f(l, *r)));
                            }
                            [by_left, by_right] => {
                                for (n, to) in to.iter_mut().enumerate() {
                                    to.write(f(left[along(l, by_left, n)], right[along(r, by_right, n)]));
                                }
                            }
                        }
                    },
                );
            },
        );
    })
}

pub(super) fn zip_in_place<R: Copy + Sync>(
    elements: &mut [f32],
    walk: &Walk<1>,
    right: &[R],
    f: impl Fn(f32, R) -> f32 + Copy + Sync + Send,
) {
    let [step] = walk.steps();

    in_tasks(elements, Cost::Memory, |range, elements| {
        vectorised(
            #[inline(always)]
            || {
                walk.pieces(
                    range,
                    #[inline(always)]
                    |piece, [r]| {
                        let elements = &mut elements[piece];
                        match step {
                            1 => {
                                let right = &right[r..r + elements.len()];
                                elements.iter_mut().zip(right).for_each(|(l, r)| *l = f(*l, *r));
                            }
                            0 => {
                                let r = right[r];
                                for l in elements {
                                    *l = f(*l, r);
                                }
                            }
                            _ => {
                                for (n, l) in elements.iter_mut().enumerate() {
                                    *l = f(*l, right[along(r, step, n)]);
                                }
                            }
                        }
                    },
                );
            },
        );
    });
}

#[inline(always)]
fn along(first: usize, step: isize, n: usize) -> usize {
    (first as isize + n as isize * step) as usize
}
