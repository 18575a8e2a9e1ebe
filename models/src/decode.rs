//! Decodes one token at a time over cached keys and values.
//!
//! A step appends with the only reference, so backends can write in place; Burn 0.21's CPU backend copies in
//! `slice_assign`. Prompts are padded on the left; positions count from a row's first token.

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use thiserror::Error;

use crate::attention;
use crate::gpt::Gpt;
use crate::input::Input;
use crate::kernels::Plain;
use crate::lookup::{Stretch, upload};
use crate::rotary::PositionIds;

/// More tokens than the cache, or the model, has positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{asked} more tokens after {read} do not fit a decoder for {capacity}")]
pub struct DecoderFull {
    /// Tokens to read.
    pub asked: usize,
    /// Tokens already read.
    pub read: usize,
    /// Positions in all.
    pub capacity: usize,
}

/// Queries at once while a prompt is read.
pub(crate) const PROMPT_CHUNK: usize = 128;

/// A model and its cache of sequences.
#[derive(Debug)]
pub struct Decoder<'a, B: Backend> {
    model: &'a Gpt<B>,
    layers: Vec<Layer<B>>,
    capacity: usize,
    len: usize,
    padding: Option<Padding<B>>,
}

/// `[batch, kv_heads, capacity, width]`, absent before the first token.
#[derive(Debug)]
struct Layer<B: Backend> {
    keys: Option<Tensor<B, 4>>,
    values: Option<Tensor<B, 4>>,
}

#[derive(Debug)]
struct Padding<B: Backend> {
    columns: Vec<usize>,
    first_key: Tensor<B, 1, Int>,
}

impl<'a, B: Backend> Decoder<'a, B> {
    /// A decoder for up to `capacity` tokens, at most `n_positions`.
    pub fn new(model: &'a Gpt<B>, capacity: usize) -> Self {
        let layers = model.blocks.iter().map(|_| Layer { keys: None, values: None }).collect();
        let capacity = capacity.min(model.config().n_positions);
        Self { model, layers, capacity, len: 0, padding: None }
    }

    /// A decoder that has read `prompts`, padded to one length, and each one's logits `[batch, vocabulary]`.
    pub fn with_prompts(
        model: &'a Gpt<B>,
        prompts: &[Stretch<'_>],
        capacity: usize,
    ) -> Result<(Self, Tensor<B, 2>), DecoderFull> {
        let device = model.wte.device();
        let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
        let columns: Vec<usize> = prompts.iter().map(|prompt| longest - prompt.tokens.len()).collect();
        let rows: Vec<_> = columns.iter().copied().zip(prompts.iter().copied()).collect();
        let mut decoder = Self::new(model, capacity);
        if columns.iter().any(|padding| *padding > 0) {
            let first: Vec<i32> = columns.iter().map(|padding| *padding as i32).collect();
            let first_key = Tensor::from_data(TensorData::new(first, [prompts.len()]), &device);
            decoder.padding = Some(Padding { columns, first_key });
        }
        let logits = decoder.feed(upload(model, &rows, [prompts.len(), longest]))?;
        Ok((decoder, logits))
    }

    /// Tokens read so far, padding included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing has been read.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no further token fits.
    pub fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Reads the next tokens `[batch, time]`. Returns the logits `[batch, vocabulary]` after the last.
    pub fn feed(&mut self, input: impl Into<Input<B>>) -> Result<Tensor<B, 2>, DecoderFull> {
        let input = input.into();
        let [batch, time] = input.tokens.dims();
        let first = self.len;
        if first + time > self.capacity {
            return Err(DecoderFull { asked: time, read: first, capacity: self.capacity });
        }

        let positions = match &self.padding {
            None => PositionIds::From { first, time },
            Some(padding) => {
                let row = |padding: &usize| {
                    (first..first + time).map(|at| at.saturating_sub(*padding) as i32).collect()
                };
                let ids: Vec<i32> =
                    padding.columns.iter().flat_map(|padding| -> Vec<i32> { row(padding) }).collect();
                PositionIds::PerRow(Tensor::from_data(
                    TensorData::new(ids, [batch, time]),
                    &input.tokens.device(),
                ))
            }
        };

        let kernels = Plain::default();
        let mut x = self.model.embed_at(input, &positions, &kernels);
        let angles = self.model.angles(&positions);
        let first_key = self.padding.as_ref().map(|padding| &padding.first_key);
        for (block, layer) in self.model.blocks.iter().zip(&mut self.layers) {
            x = block.forward(x, angles.as_ref(), None, &kernels, |q, k, v, options| {
                let k = append(&mut layer.keys, k, first, self.capacity);
                let v = append(&mut layer.values, v, first, self.capacity);
                attention::forward(&q, &k, &v, options, PROMPT_CHUNK, first_key).output
            });
        }

        self.len += time;
        Ok(self.model.logits(x.slice_dim(1, time - 1..time), &kernels))
    }
}

/// Writes `new` after the first `len` positions of the cache, which grows to `capacity`. Returns all positions so far.
pub(crate) fn append<B: Backend>(
    cache: &mut Option<Tensor<B, 4>>,
    new: Tensor<B, 4>,
    len: usize,
    capacity: usize,
) -> Tensor<B, 4> {
    let [rows, heads, time, width] = new.dims();
    let empty = |positions| Tensor::zeros([rows, heads, positions, width], (&new.device(), new.dtype()));
    // Taken out: the write needs the only reference.
    let old = match cache.take() {
        None => empty(capacity),
        Some(old) if old.dims()[2] < capacity => {
            let more = capacity - old.dims()[2];
            Tensor::cat(vec![old, empty(more)], 2)
        }
        Some(old) => old,
    };
    let written = old.slice_assign([0..rows, 0..heads, len..len + time, 0..width], new);
    let seen = written.clone().slice_dim(2, 0..len + time);
    *cache = Some(written);
    seen
}
