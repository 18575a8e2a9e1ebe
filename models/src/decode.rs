//! Decodes one token at a time over cached keys and values.
//!
//! A step appends with the only reference, so backends can write in place; Burn 0.21's CPU backend copies in
//! `slice_assign`. Prompts are padded on the left; positions count from a row's first token.

use std::ops::Range;

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

    /// A decoder for `prompts`, padded to one length, and their tokens.
    pub fn for_prompts(model: &'a Gpt<B>, prompts: &[Stretch<'_>], capacity: usize) -> (Self, Input<B>) {
        let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
        let columns: Vec<usize> = prompts.iter().map(|prompt| longest - prompt.tokens.len()).collect();
        let rows: Vec<_> = columns.iter().copied().zip(prompts.iter().copied()).collect();
        let mut decoder = Self::new(model, capacity);
        if columns.iter().any(|padding| *padding > 0) {
            let first: Vec<i32> = columns.iter().map(|padding| *padding as i32).collect();
            let first = TensorData::new(first, [prompts.len()]);
            let first_key = Tensor::from_data(first, &model.wte.lazy_device());
            decoder.padding = Some(Padding { columns, first_key });
        }
        (decoder, upload(model, &rows, [prompts.len(), longest]))
    }

    /// A decoder that has read `prompts`, padded to one length, and each one's logits `[batch, vocabulary]`.
    pub fn with_prompts(
        model: &'a Gpt<B>,
        prompts: &[Stretch<'_>],
        capacity: usize,
    ) -> Result<(Self, Tensor<B, 2>), DecoderFull> {
        let (mut decoder, input) = Self::for_prompts(model, prompts, capacity);
        let logits = decoder.feed(input)?;
        Ok((decoder, logits))
    }

    /// The next token of each sequence, to feed.
    pub fn next_input(&self, tokens: &[Stretch<'_>]) -> Input<B> {
        let rows: Vec<_> = tokens.iter().map(|token| (0, *token)).collect();
        upload(self.model, &rows, [tokens.len(), 1])
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
        let positions = self.positions(input.tokens.dims()[1])?;
        let embedded = self.model.embed_at(input, &positions, &Plain::default());
        let stream = self.run(0..self.layers.len(), embedded, &positions);
        Ok(self.logits(stream))
    }

    /// The residual stream of the next tokens before the first block, `[batch, time, width]`. Reads nothing.
    pub fn embed(&self, input: Input<B>) -> Result<Tensor<B, 3>, DecoderFull> {
        let positions = self.positions(input.tokens.dims()[1])?;
        Ok(self.model.embed_at(input, &positions, &Plain::default()))
    }

    /// Reads the next tokens in these blocks alone, whose weights a [stage](crate::stage::Stage) has. Takes and returns
    /// their residual stream.
    pub fn pass(&mut self, blocks: Range<usize>, stream: Tensor<B, 3>) -> Result<Tensor<B, 3>, DecoderFull> {
        let positions = self.positions(stream.dims()[1])?;
        Ok(self.run(blocks, stream, &positions))
    }

    /// The logits `[batch, vocabulary]` after the last token of a stream behind the last block.
    pub fn logits(&self, stream: Tensor<B, 3>) -> Tensor<B, 2> {
        let last = stream.dims()[1] - 1;
        self.model.logits(stream.slice_dim(1, last..last + 1), &Plain::default())
    }

    /// Those of the next `time` tokens.
    fn positions(&self, time: usize) -> Result<PositionIds<B>, DecoderFull> {
        let first = self.len;
        if first + time > self.capacity {
            return Err(DecoderFull { asked: time, read: first, capacity: self.capacity });
        }
        let Some(padding) = &self.padding else { return Ok(PositionIds::From { first, time }) };
        let row =
            |padding: &usize| (first..first + time).map(|at| at.saturating_sub(*padding) as i32).collect();
        let ids: Vec<i32> = padding.columns.iter().flat_map(|padding| -> Vec<i32> { row(padding) }).collect();
        let ids = TensorData::new(ids, [padding.columns.len(), time]);
        Ok(PositionIds::PerRow(Tensor::from_data(ids, &padding.first_key.device())))
    }

    fn run(
        &mut self,
        blocks: Range<usize>,
        mut stream: Tensor<B, 3>,
        positions: &PositionIds<B>,
    ) -> Tensor<B, 3> {
        let (kernels, first) = (Plain::default(), self.len);
        let time = stream.dims()[1];
        let angles = self.model.angles(positions);
        let first_key = self.padding.as_ref().map(|padding| &padding.first_key);
        for (block, layer) in self.model.blocks[blocks.clone()].iter().zip(&mut self.layers[blocks]) {
            stream = block.forward(stream, angles.as_ref(), None, &kernels, |q, k, v, options| {
                let k = append(&mut layer.keys, k, first, self.capacity);
                let v = append(&mut layer.values, v, first, self.capacity);
                attention::forward(&q, &k, &v, options, PROMPT_CHUNK, first_key).output
            });
        }
        self.len += time;
        stream
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
