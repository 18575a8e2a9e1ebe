//! Several sequences in one pass, each with a cache and a length of its own.
//!
//! The tokens that each of them reads next lie behind one another in a single row, so that every projection is one
//! product: weights are read once for all sequences, which is what decoding costs, above all where they come from the
//! host. Attention alone looks at one sequence at a time, over its own keys. Nothing is padded and no column is shared,
//! so sequences join and leave between any two passes, and one may read a piece of its prompt while others read a
//! token.

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};

use crate::attention;
use crate::decode::{DecoderFull, PROMPT_CHUNK, append};
use crate::gpt::Gpt;
use crate::kernels::Plain;
use crate::layers::PositionIds;
use crate::lookup::{Stretch, upload};

/// Positions by which a cache grows.
const GROWTH: usize = 64;

/// A sequence and the keys and values of the tokens that were read.
#[derive(Debug, Clone)]
pub struct Sequence<B: Backend> {
    tokens: Vec<u32>,
    layers: Vec<Layer<B>>,
    /// Positions that the caches have.
    capacity: usize,
    /// Positions that the model has.
    window: usize,
}

/// Keys and values of one block, `[1, kv_heads, capacity, width]`; absent before the first token.
#[derive(Debug, Clone)]
struct Layer<B: Backend> {
    keys: Option<Tensor<B, 4>>,
    values: Option<Tensor<B, 4>>,
}

/// A sequence and at least one token that it reads next.
#[derive(Debug)]
pub struct Turn<'a, B: Backend> {
    /// The sequence.
    pub sequence: &'a mut Sequence<B>,
    /// Tokens that the sequence reads next.
    pub next: Stretch<'a>,
}

impl<B: Backend> Sequence<B> {
    /// One that has read nothing.
    pub fn new(model: &Gpt<B>) -> Self {
        let layers = model.blocks.iter().map(|_| Layer { keys: None, values: None }).collect();
        Self { tokens: Vec::new(), layers, capacity: 0, window: model.config().n_positions }
    }

    /// The tokens that were read.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions it holds memory for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Another sequence that has read the first `len` of these tokens. The two share memory until one of them reads on.
    #[must_use]
    pub fn beginning(&self, len: usize) -> Self {
        Self { tokens: self.tokens[..len].to_vec(), ..self.clone() }
    }

    fn check(&self, more: usize) -> Result<(), DecoderFull> {
        let read = self.tokens.len();
        if read + more > self.window {
            return Err(DecoderFull { asked: more, read, capacity: self.window });
        }
        Ok(())
    }

    /// Makes room for `more` tokens.
    fn reserve(&mut self, more: usize) {
        let needed = self.tokens.len() + more;
        if needed > self.capacity {
            self.capacity = needed.next_multiple_of(GROWTH).min(self.window);
        }
    }
}

/// Each sequence reads its next tokens; the logits `[turns, vocabulary]` after the last token of each. Where one of them
/// does not fit its sequence, none is read.
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
            for Turn { sequence, next: Stretch { tokens, .. } } in &mut *turns {
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
    for Turn { sequence, next: Stretch { tokens, .. } } in turns {
        sequence.tokens.extend_from_slice(tokens);
        end += tokens.len();
        ends.push(end as i32 - 1);
    }
    let count = ends.len();
    let ends = Tensor::<B, 1, Int>::from_data(TensorData::new(ends, [count]), &device);
    Ok(model.logits(x.select(1, ends), &kernels))
}
