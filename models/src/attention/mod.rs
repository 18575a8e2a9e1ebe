//! Causal attention in query chunks over the causal prefix.
//!
//! A chunk of `c` queries from position `s` sees keys `0..s + c`: memory grows with T, not T², and half the T×T work is
//! skipped.
//!
//! Queries of one key head are stacked, `[batch, kv_heads, group · c, width]`, without copies of K and V.
//!
//! Burn's attention has no grouped queries, and a soft-cap, a scale or a bias costs T×T scores.

mod lean;

use std::ops::Range;

use burn::tensor::{Bool, Int, Tensor, backend::Backend};

use crate::precision::Compute;
pub(crate) use lean::lean;

/// Attention's settings, without chunk sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionOptions {
    /// Usually `1 / sqrt(width)`.
    pub scale: f64,
    /// `c * tanh(score / c)` before the softmax.
    pub soft_cap: Option<f64>,
    /// Visible positions, the query's own included; `None` for all earlier ones.
    pub window: Option<usize>,
    /// Type of the four matrix products.
    pub compute: Compute,
}

/// Finite: a padded query without keys gives garbage, erased by a zero weight, not NaN.
const MASKED: f64 = -1e30;

pub(crate) struct Attended<B: Backend> {
    /// `[batch, heads, time, width]`, wide.
    pub(crate) output: Tensor<B, 4>,
    /// Log of each query's softmax denominator, `[batch, heads, time, 1]`, wide.
    pub(crate) log_sum_exp: Tensor<B, 4>,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    time: usize,
    /// Keys in the cache before the first query.
    past: usize,
}

#[derive(Debug, Clone)]
struct Chunk {
    queries: Range<usize>,
    prefix: usize,
    /// First column of the chunk in the [`Band`].
    shift: usize,
}

/// Masks future keys and keys before the window. Earlier chunks use columns further right.
struct Band<B: Backend> {
    mask: Option<Tensor<B, 2, Bool>>,
    has_window: bool,
}

impl<B: Backend> Band<B> {
    fn new(shape: Shape, chunk_size: usize, window: Option<usize>, device: &B::Device) -> Self {
        let rows = chunk_size.clamp(1, shape.time);
        let first = shape.past + (shape.time - 1) / rows * rows;
        let window = window.filter(|window| *window < shape.past + shape.time);
        // A lone query without a window sees every key.
        let mask = (shape.time > 1 || window.is_some()).then(|| {
            let sides = [rows, first + rows];
            let future = Tensor::tril_mask(sides, first as i64, device);
            match window {
                Some(window) => {
                    future.bool_or(Tensor::triu_mask(sides, first as i64 - window as i64 + 1, device))
                }
                None => future,
            }
        });
        Self { mask, has_window: window.is_some() }
    }

    fn at(&self, chunk: &Chunk) -> Option<Tensor<B, 2, Bool>> {
        let (rows, columns) = (chunk.queries.len(), chunk.shift..chunk.shift + chunk.prefix);
        self.mask
            .as_ref()
            .filter(|_| rows > 1 || self.has_window)
            .map(|band| band.clone().slice([0..rows, columns]))
    }
}

impl Shape {
    fn new<B: Backend>(q: &Tensor<B, 4>, k: &Tensor<B, 4>) -> Self {
        let [batch, heads, time, _] = q.dims();
        let [_, kv_heads, keys, _] = k.dims();
        Self { batch, heads, kv_heads, time, past: keys - time }
    }

    fn chunks(self, size: usize) -> impl Iterator<Item = Chunk> {
        let size = size.clamp(1, self.time);
        let last = (self.time - 1) / size * size;
        (0..self.time).step_by(size).map(move |start| {
            let end = (start + size).min(self.time);
            Chunk { queries: start..end, prefix: self.past + end, shift: last - start }
        })
    }

    /// `[batch, heads, chunk, n]` → `[batch, kv_heads, group · chunk, n]`.
    fn stacked<B: Backend>(self, by_head: Tensor<B, 4>) -> Tensor<B, 4> {
        let [_, _, chunk, features] = by_head.dims();
        by_head.reshape([self.batch, self.kv_heads, self.heads / self.kv_heads * chunk, features])
    }

    fn by_head<B: Backend>(self, stacked: Tensor<B, 4>) -> Tensor<B, 4> {
        let [_, _, rows, features] = stacked.dims();
        stacked.reshape([self.batch, self.heads, rows * self.kv_heads / self.heads, features])
    }

    fn rows<B: Backend>(self, by_head: &Tensor<B, 4>, queries: Range<usize>) -> Tensor<B, 4> {
        if queries == (0..self.time) { by_head.clone() } else { by_head.clone().slice_dim(2, queries) }
    }

    fn prefix<B: Backend>(self, keys: &Tensor<B, 4>, prefix: usize) -> Tensor<B, 4> {
        if prefix == self.past + self.time { keys.clone() } else { keys.clone().slice_dim(2, 0..prefix) }
    }
}

/// `q`, `k` and `v` are narrow. `first_key`, per batch row, hides shorter prompts' padding.
pub(crate) fn forward<B: Backend>(
    q: &Tensor<B, 4>,
    k: &Tensor<B, 4>,
    v: &Tensor<B, 4>,
    options: &AttentionOptions,
    chunk_size: usize,
    first_key: Option<&Tensor<B, 1, Int>>,
) -> Attended<B> {
    let shape = Shape::new(q, k);
    let band = Band::new(shape, chunk_size, options.window, &q.device());
    let mut outputs = Vec::new();
    let mut log_sums = Vec::new();
    for chunk in shape.chunks(chunk_size) {
        let scores = scores(shape, &chunk, q, k, options);
        let scores = mask(shape, &chunk, &band, scores, first_key);
        let highest = scores.clone().detach().max_dim(3);
        let weights = (scores - highest.clone()).exp();
        let total = weights.clone().sum_dim(3);
        let v = shape.prefix(v, chunk.prefix);
        let output = options.compute.product(options.compute.narrow(weights), v) / total.clone();
        outputs.push(shape.by_head(output));
        log_sums.push(shape.by_head(highest + total.log()));
    }
    Attended { output: joined(outputs), log_sum_exp: joined(log_sums) }
}

/// Scaled, capped, unmasked scores: `[batch, kv_heads, group · chunk, prefix]`, wide.
fn scores<B: Backend>(
    shape: Shape,
    chunk: &Chunk,
    q: &Tensor<B, 4>,
    k: &Tensor<B, 4>,
    options: &AttentionOptions,
) -> Tensor<B, 4> {
    let q = shape.stacked(shape.rows(q, chunk.queries.clone()));
    let k = shape.prefix(k, chunk.prefix);
    let scores = options.compute.product(q, k.swap_dims(2, 3)).mul_scalar(options.scale);
    soft_cap(scores, options.soft_cap)
}

pub(crate) fn soft_cap<B: Backend, const D: usize>(x: Tensor<B, D>, cap: Option<f64>) -> Tensor<B, D> {
    match cap {
        Some(cap) => x.div_scalar(cap).tanh().mul_scalar(cap),
        None => x,
    }
}

pub(crate) fn soft_cap_backward<B: Backend, const D: usize>(
    grad: Tensor<B, D>,
    capped: Tensor<B, D>,
    cap: Option<f64>,
) -> Tensor<B, D> {
    match cap {
        Some(cap) => grad * capped.div_scalar(cap).powi_scalar(2).neg().add_scalar(1.0),
        None => grad,
    }
}

fn mask<B: Backend>(
    shape: Shape,
    chunk: &Chunk,
    band: &Band<B>,
    scores: Tensor<B, 4>,
    first_key: Option<&Tensor<B, 1, Int>>,
) -> Tensor<B, 4> {
    let device = scores.device();
    let len = chunk.queries.len();
    let Shape { batch, heads, kv_heads, .. } = shape;
    let full = [batch, kv_heads, heads / kv_heads, len, chunk.prefix];
    let stacked = scores.dims();
    let mut scores: Tensor<B, 5> = scores.reshape(full);
    if let Some(hidden) = band.at(chunk) {
        scores = scores.mask_fill(hidden.reshape([1, 1, 1, len, chunk.prefix]).expand(full), MASKED);
    }
    if let Some(first_key) = first_key {
        let keys = Tensor::<B, 1, Int>::arange(0..chunk.prefix as i64, &device).reshape([1, chunk.prefix]);
        let padding = keys.lower(first_key.clone().reshape([batch, 1]));
        scores = scores.mask_fill(padding.reshape([batch, 1, 1, 1, chunk.prefix]).expand(full), MASKED);
    }
    scores.reshape(stacked)
}

fn joined<B: Backend>(mut parts: Vec<Tensor<B, 4>>) -> Tensor<B, 4> {
    if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 2) }
}
