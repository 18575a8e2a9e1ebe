//! A model's cost before it exists: parameters, bytes, floating-point operations.
//!
//! Overflow is an error: a mistyped size fails here, not in an allocator.
//!
//! Activation bytes are the tape's after a forward pass under [`Lean`](crate::Lean), at most 9 % below live bytes in a
//! test.

use crate::config::{Activation, GptConfig, NormPlacement, Positions};
use crate::error::ConfigError;
use crate::kernels::Chunks;
use crate::precision::Compute;

/// Sizes of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Trained numbers; a tied head counts once.
    pub parameters: u64,
    /// Parameters that multiply each token: blocks and head.
    pub multiplied: u64,
    /// Parameters of one block.
    pub per_block: u64,
    /// Parameters in block matrices, which Muon steps.
    pub hidden_matrices: u64,
    /// Parameters of the largest tensor, the least of an optimizer step.
    pub largest_tensor: u64,
    /// Numbers in the rotary tables, which are no parameters.
    pub rotary: u64,
    layers: u64,
    heads: u64,
    attention_width: u64,
    width: u64,
    vocabulary: u64,
    block_activations: u64,
    outer_activations: u64,
    compute: Compute,
}

const WIDE: u64 = 4;

impl Footprint {
    /// Sizes of a validated `config`.
    pub fn of(config: &GptConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Self::from_validated(config)
    }

    pub(crate) fn from_validated(config: &GptConfig) -> Result<Self, ConfigError> {
        Self::without_overflow(config).ok_or(ConfigError::TooLarge {
            n_layer: config.n_layer,
            n_embd: config.n_embd,
            n_inner: config.n_inner.unwrap_or(0),
            n_positions: config.n_positions,
            vocab_size: config.vocab_size,
        })
    }

    fn without_overflow(config: &GptConfig) -> Option<Self> {
        let width = config.n_embd as u64;
        let kv = (config.kv_heads() as u64).checked_mul(config.head_dim() as u64)?;
        let inner = match config.n_inner {
            Some(inner) => inner as u64,
            None => width.checked_mul(4)?,
        };
        let up_matrices = if config.has_gate() { 2 } else { 1 };
        let heads = (config.n_head as u64).checked_mul(config.head_dim() as u64)?;
        let square = width.checked_mul(heads)?;
        let attention = square.checked_add(width.checked_mul(kv)?)?.checked_mul(2)?;
        let mlp = width.checked_mul(inner)?.checked_mul(up_matrices + 1)?;
        let matrices = attention.checked_add(mlp)?;

        let offsets = |on: bool, count: u64| if on { count } else { 0 };
        let vectors_per_norm = u64::from(config.norm_weights) + u64::from(config.norm_bias);
        let normed = if config.qk_norm_across_heads { heads + kv } else { 2 * config.head_dim() as u64 };
        let head_norms = offsets(config.qk_norm, normed * vectors_per_norm);
        let per_block = matrices
            .checked_add(offsets(config.attention_bias, heads + 2 * kv))?
            .checked_add(offsets(config.has_output_bias(), width))?
            .checked_add(offsets(config.mlp_bias, up_matrices.checked_mul(inner)?.checked_add(width)?))?
            .checked_add(norms_per_block(config) * vectors_per_norm * width + head_norms)?;

        let blocks = per_block.checked_mul(config.n_layer as u64)?;
        let vocabulary = (config.vocab_size as u64).checked_mul(width)?;
        let positions = (config.n_positions as u64).checked_mul(width)?;
        let outer_norms = width * vectors_per_norm * (1 + u64::from(config.embedding_norm));
        let learned = offsets(config.positions == Positions::Learned, positions);
        let followers = offsets(config.longest_match, vocabulary.checked_add(width)?);

        let parameters = blocks
            .checked_add(vocabulary)?
            .checked_add(learned)?
            .checked_add(offsets(!config.tie_word_embeddings, vocabulary))?
            .checked_add(followers)?
            .checked_add(outer_norms)?;
        let tables = 2 * (1 + u64::from(config.rope_local_theta.is_some()));
        let rotary =
            (config.n_positions as u64).checked_mul(config.rotated_dim() as u64)?.checked_mul(tables)?;
        // Weights, gradients and two moments must be addressable together.
        isize::try_from(parameters.checked_add(positions)?.checked_mul(4 * WIDE)?).ok()?;

        Some(Self {
            parameters,
            multiplied: blocks.checked_add(vocabulary)?,
            per_block,
            hidden_matrices: matrices.checked_mul(config.n_layer as u64)?,
            rotary: if config.positions == Positions::Rope { rotary } else { 0 },
            largest_tensor: vocabulary.max(followers).max(width.checked_mul(inner)?).max(square).max(learned),
            layers: config.n_layer as u64,
            heads: config.n_head as u64,
            attention_width: heads,
            width,
            vocabulary: config.vocab_size as u64,
            compute: config.compute,
            block_activations: block_activations(config, inner, kv)?,
            outer_activations: outer_activations(config),
        })
    }

    /// Bytes of the parameters, or of one set of gradients, f32.
    pub fn weight_bytes(&self) -> u64 {
        self.parameters * WIDE
    }

    /// Bytes of all positions' cosines and sines, f32.
    pub fn rotary_bytes(&self) -> u64 {
        self.rotary * WIDE
    }

    /// Floating-point operations per token at length `time`, forward and backward. Attention counts the full square, as
    /// is customary; recomputation adds the blocks' forward pass.
    pub fn flops_per_token(&self, time: usize, recompute: bool) -> f64 {
        let attention = 2.0 * (2 * self.layers * self.attention_width) as f64 * time as f64;
        let forward = 2.0 * self.multiplied as f64 + attention;
        let again = 2.0 * (self.per_block * self.layers) as f64 + attention;
        3.0 * forward + if recompute { again } else { 0.0 }
    }

    /// The share of [`Self::flops_per_token`] for the backward pass of `blocks`, without gradients of weights.
    pub fn backward_flops_per_token(&self, blocks: usize, time: usize, recompute: bool) -> f64 {
        let (products, attention) =
            (2.0 * self.per_block as f64, 4.0 * self.attention_width as f64 * time as f64);
        let again = if recompute { products + attention } else { 0.0 };
        (products + 2.0 * attention + again) * blocks as f64
    }

    /// Bytes of narrow weights on the tape: of all products, or of a segment of `n` blocks. 0 in f32.
    pub fn narrow_weight_bytes(&self, checkpoint_every: Option<usize>) -> u64 {
        let matrices = self.multiplied - self.vocabulary * self.width;
        match (self.compute, checkpoint_every) {
            (Compute::F32, _) => 0,
            (narrow, None) => matrices * narrow.bytes(),
            (narrow, Some(every)) => self.segment(every) * self.per_block * narrow.bytes(),
        }
    }

    /// Working bytes of an attention chunk, or of the loss if more.
    pub fn working_bytes(&self, batch: usize, time: usize, chunks: Chunks) -> [u64; 2] {
        self.chunk_bytes(batch, time, chunks).map(|bytes| bytes.saturating_mul(TENSORS_PER_CHUNK))
    }

    /// Bytes of an attention chunk's scores, and a loss chunk's logits.
    pub fn chunk_bytes(&self, batch: usize, time: usize, chunks: Chunks) -> [u64; 2] {
        let queries = chunks.queries(time) as u64;
        let all = batch.saturating_mul(time);
        let tokens = chunks.tokens(all, self.width as usize, self.vocabulary as usize) as u64;
        let scores = (batch as u64).saturating_mul(self.heads * queries).saturating_mul(time as u64);
        [scores, tokens.saturating_mul(self.vocabulary)].map(|numbers| numbers.saturating_mul(WIDE))
    }

    fn segment(&self, every: usize) -> u64 {
        (every.max(1) as u64).min(self.layers)
    }

    /// Tape bytes per token after the forward pass. Recomputation of `n` blocks keeps each segment's input and one
    /// segment's tape.
    pub fn activation_bytes_per_token(&self, checkpoint_every: Option<usize>) -> u64 {
        match checkpoint_every {
            None => self.layers * self.block_activations + self.outer_activations,
            Some(every) => {
                let inputs = self.layers.div_ceil(self.segment(every)) * self.width * WIDE;
                inputs + self.segment_bytes_per_token(every)
            }
        }
    }

    /// The recomputed segment's share of [`Self::activation_bytes_per_token`].
    pub fn segment_bytes_per_token(&self, every: usize) -> u64 {
        self.segment(every) * self.block_activations
    }
}

/// Tensors alive in a chunk's backward step.
const TENSORS_PER_CHUNK: u64 = 4;

fn block_activations(config: &GptConfig, inner: u64, kv: u64) -> Option<u64> {
    let width = config.n_embd as u64;
    let narrow = config.compute.bytes();

    // A norm keeps its result. Without a scale or cast, the next product keeps the same tensor, as does attention
    // without rotation.
    let own_result = config.norm_weights || config.norm_bias || config.compute != Compute::F32;
    let norms = norms_per_block(config) * norm_activations(if own_result { width } else { 0 }, 1);
    let heads = (config.n_head * config.head_dim()) as u64;

    let head_norms = if config.qk_norm {
        let own_result = own_result || config.positions == Positions::Rope;
        let rows = if config.qk_norm_across_heads { 2 } else { (config.n_head + config.kv_heads()) as u64 };
        norm_activations(if own_result { heads + kv } else { 0 }, rows)
    } else {
        0
    };

    // Projections share a narrow input; attention keeps q, k, v, its output and the log-sum-exp.
    let attention =
        (width + heads) * narrow + (heads + 2 * kv) * narrow + heads * WIDE + config.n_head as u64 * WIDE;

    let activation = match config.activation_function {
        Activation::GeluTanh | Activation::GeluErf | Activation::ReluSquared => WIDE,
        Activation::SwiGlu => 2 * WIDE,
        // The gate, its GELU and the other factor.
        Activation::GeGlu => 3 * WIDE,
    };

    let mlp = (activation + narrow).checked_mul(inner)?.checked_add(width * narrow)?;
    let dropped = if config.resid_pdrop > 0.0 { 2 * width * MASK } else { 0 };
    mlp.checked_add(norms + head_norms + attention + dropped)
}

/// Tape bytes per token: norms, the loss's precomputed gradient, token ids.
fn outer_activations(config: &GptConfig) -> u64 {
    let width = config.n_embd as u64;
    let norms = (1 + u64::from(config.embedding_norm)) * norm_activations(width, 1);
    let dropped = if config.embd_pdrop > 0.0 { width * MASK } else { 0 };
    let ids = TOKEN * (1 + u64::from(config.longest_match));
    norms + width * WIDE + dropped + ids
}

fn norms_per_block(config: &GptConfig) -> u64 {
    if config.norm_placement == NormPlacement::Both { 4 } else { 2 }
}

fn norm_activations(features: u64, rows: u64) -> u64 {
    (features + rows) * WIDE
}

const MASK: u64 = 1;
const TOKEN: u64 = 4;
