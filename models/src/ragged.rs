//! Several sequences in one pass, each with its own cache and length.
//!
//! Projections read their weights, decoding's main cost, once for all sequences. Nothing is padded: one may read its
//! prompt while others read a token.

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};

use crate::attention;
use crate::decode::{DecoderFull, PROMPT_CHUNK, append};
use crate::gpt::Gpt;
use crate::kernels::Plain;
use crate::lookup::{Stretch, upload};
use crate::rotary::PositionIds;

/// Positions by which a cache grows.
pub const POSITIONS_AT_ONCE: usize = 64;

pub(crate) fn capacity_for(len: usize, window: usize) -> usize {
    len.next_multiple_of(POSITIONS_AT_ONCE).min(window)
}

/// A sequence with its cache.
#[derive(Debug, Clone)]
pub struct Sequence<B: Backend> {
    tokens: Vec<u32>,
    layers: Vec<Layer<B>>,
    capacity: usize,
    window: usize,
}

#[derive(Debug, Clone)]
struct Layer<B: Backend> {
    keys: Option<Tensor<B, 4>>,
    values: Option<Tensor<B, 4>>,
}

/// A sequence and its next tokens, at least one.
#[derive(Debug)]
pub struct Turn<'a, B: Backend> {
    /// The sequence.
    pub sequence: &'a mut Sequence<B>,
    /// Tokens to read.
    pub next: Stretch<'a>,
    /// Whether to return logits after each token, not just the last.
    pub all: bool,
}

impl<B: Backend> Sequence<B> {
    /// A sequence that has read nothing.
    pub fn new(model: &Gpt<B>) -> Self {
        let layers = model.blocks.iter().map(|_| Layer { keys: None, values: None }).collect();
        Self { tokens: Vec::new(), layers, capacity: 0, window: model.config().n_positions }
    }

    /// The tokens read so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Allocated positions.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The first `len` tokens, with little room for more. Both share memory until one reads on.
    #[must_use]
    pub fn beginning(&self, len: usize) -> Self {
        let capacity = capacity_for(len, self.capacity);
        let cut = |cache: &Option<Tensor<B, 4>>| {
            let cache = cache.clone();
            if capacity == self.capacity { cache } else { cache.map(|cache| cache.slice_dim(2, 0..capacity)) }
        };
        let layer = |layer: &Layer<B>| Layer { keys: cut(&layer.keys), values: cut(&layer.values) };
        Self {
            tokens: self.tokens[..len].to_vec(),
            layers: self.layers.iter().map(layer).collect(),
            capacity,
            window: self.window,
        }
    }

    fn check(&self, more: usize) -> Result<(), DecoderFull> {
        let read = self.tokens.len();
        if read + more > self.window {
            return Err(DecoderFull { asked: more, read, capacity: self.window });
        }
        Ok(())
    }

    fn reserve(&mut self, more: usize) {
        let needed = self.tokens.len() + more;
        if needed > self.capacity {
            self.capacity = capacity_for(needed, self.window);
        }
    }
}

/// Reads each sequence's next tokens, or none if one lacks positions. Returns logits `[rows, vocabulary]`: per turn a
/// row after its last token, or a row per token.
pub fn read<B: Backend>(model: &Gpt<B>, turns: &mut [Turn<'_, B>]) -> Result<Tensor<B, 2>, DecoderFull> {
    turns.iter().try_for_each(|turn| turn.sequence.check(turn.next.tokens.len()))?;
    let places = turns.iter().flat_map(|turn| {
        let first = turn.sequence.tokens.len();
        (first..first + turn.next.tokens.len()).map(|at| at as i32)
    });
    let places: Vec<i32> = places.collect();
    let count = places.len();
    let device = model.wte.device();
    let positions = PositionIds::PerRow(Tensor::from_data(TensorData::new(places, [1, count]), &device));

    let stretches: Vec<_> = turns.iter().map(|turn| (0, turn.next)).collect();
    let input = upload(model, &stretches, [1, count]);
    let kernels = Plain::default();
    let mut x = model.embed_at(input, &positions, &kernels);
    let angles = model.angles(&positions);
    for turn in &mut *turns {
        turn.sequence.reserve(turn.next.tokens.len());
    }

    for (at, block) in model.blocks.iter().enumerate() {
        x = block.forward(x, angles.as_ref(), None, &kernels, |q, k, v, options| {
            let mut mixed = Vec::with_capacity(turns.len());
            let mut first = 0;
            for Turn { sequence, next: Stretch { tokens, .. }, .. } in &mut *turns {
                let mine = |all: &Tensor<B, 4>| all.clone().slice_dim(2, first..first + tokens.len());
                let (len, capacity) = (sequence.tokens.len(), sequence.capacity);
                let layer = &mut sequence.layers[at];
                let keys = append(&mut layer.keys, mine(&k), len, capacity);
                let values = append(&mut layer.values, mine(&v), len, capacity);
                mixed.push(attention::forward(&mine(&q), &keys, &values, options, PROMPT_CHUNK, None).output);
                first += tokens.len();
            }
            if mixed.len() == 1 { mixed.remove(0) } else { Tensor::cat(mixed, 2) }
        });
    }

    let mut end = 0;
    let mut ends = Vec::with_capacity(turns.len());
    for Turn { sequence, next: Stretch { tokens, .. }, all } in turns {
        sequence.tokens.extend_from_slice(tokens);
        let first = end;
        end += tokens.len();
        ends.extend((if *all { first } else { end - 1 }..end).map(|at| at as i32));
    }
    let count = ends.len();
    let ends = Tensor::<B, 1, Int>::from_data(TensorData::new(ends, [count]), &device);
    Ok(model.logits(x.select(1, ends), &kernels))
}
