//! Parameters that learn: all, all but frozen groups, or adapters.

use models::{BaseForm, Compute, Footprint, ParameterInfo, Part};
use runs::config::Config;

use super::WIDE;
use super::placement::largest_block_matrix;
use crate::parameters::learned;

#[derive(Debug, Clone, Copy)]
pub(super) struct Learned {
    adapts: bool,
    pub(super) frozen: u64,
    /// Bytes of frozen weights below all that learns.
    pub(super) frozen_below: u64,
    /// Blocks that pass forward only.
    below: usize,
    /// Numbers that multiply tokens without a gradient.
    multiplied: u64,
    /// The block that learns most.
    pub(super) per_block: u64,
    /// Numbers of the largest parameter that learns.
    pub(super) largest: u64,
    /// Under adapters, the form of frozen block matrices that each use decodes.
    packed: Option<BaseForm>,
    /// Adapters' bytes per token on the tape: the product with `down`, wide and narrow.
    pub(super) tape_per_token: u64,
}

impl Learned {
    pub(super) fn new(config: &Config, footprint: &Footprint) -> Self {
        let (per_block, largest) = (footprint.per_block, footprint.largest_tensor);
        let (model, train) = (&config.model, &config.train);
        let all = Self {
            adapts: false,
            frozen: 0,
            frozen_below: 0,
            below: 0,
            multiplied: 0,
            per_block,
            largest,
            packed: None,
            tape_per_token: 0,
        };
        if train.lora.is_none() && train.freeze.is_empty() {
            return all;
        }

        let learned = learned(config);
        let block = |block: usize| -> u64 {
            let of_block = learned.iter().filter(|parameter| parameter.block() == Some(block));
            of_block.map(ParameterInfo::elements).sum()
        };
        let per_block = (0..model.n_layer).map(block).max().unwrap_or_default();
        let largest = learned.iter().map(ParameterInfo::elements).max().unwrap_or_default();
        let Some(lora) = &train.lora else {
            return Self { per_block, largest, ..all }.without_groups(config, &learned);
        };
        let blocks = train.recompute.map_or(model.n_layer, |every| every.clamp(1, model.n_layer)) as u64;
        let each = lora.rank as u64 * (WIDE + model.compute.bytes());
        Self {
            adapts: true,
            frozen: frozen_bytes(config),
            multiplied: footprint.multiplied,
            per_block,
            largest,
            packed: Some(config.memory.base).filter(|base| base.is_packed(model.compute)),
            tape_per_token: each.saturating_mul(lora.targets.len() as u64).saturating_mul(blocks),
            ..all
        }
    }

    /// Without `train.freeze`, whose weights stay f32.
    fn without_groups(mut self, config: &Config, learned: &[ParameterInfo]) -> Self {
        let model = &config.model;
        self.below = models::frozen_blocks(learned).min(model.n_layer);
        let all = model.parameters();
        for parameter in all.iter().filter(|parameter| config.train.freezes(&parameter.name)) {
            let numbers = parameter.elements();
            let passes_once = match parameter.part {
                Part::Block(block) => block < self.below,
                Part::Tokens => !model.tie_word_embeddings && self.below > 0,
                Part::Positions | Part::Followers | Part::EmbeddingNorm => self.below > 0,
                Part::FinalNorm | Part::Head => true,
            };
            *if passes_once { &mut self.frozen_below } else { &mut self.frozen } += WIDE * numbers;
            let multiplies = match parameter.part {
                Part::Block(_) | Part::Head => true,
                Part::Tokens => model.tie_word_embeddings,
                _ => false,
            };
            self.multiplied += if multiplies { numbers } else { 0 };
        }
        self
    }

    fn all(self) -> bool {
        self.frozen + self.frozen_below == 0
    }

    /// Bytes per token on the tape, without adapters'.
    pub(super) fn activation_bytes_per_token(self, config: &Config, footprint: &Footprint) -> u64 {
        let recompute = config.train.recompute;
        let untaped = match recompute {
            _ if self.below == 0 => 0,
            None => footprint.segment_bytes_per_token(self.below),
            Some(every) => (self.below / every) as u64 * config.model.n_embd as u64 * WIDE,
        };
        footprint.activation_bytes_per_token(recompute) - untaped
    }

    /// Bytes per token of the inputs that recomputed segments keep. In one process the first segment has tokens
    /// instead.
    pub(super) fn input_bytes_per_token(self, config: &Config, footprint: &Footprint, every: usize) -> u64 {
        let segment = footprint.segment_bytes_per_token(every);
        let all = self.activation_bytes_per_token(config, footprint) - segment;
        let has_tokens = self.below < every && config.ranks.pipeline == 1;
        if has_tokens { all - config.model.n_embd as u64 * WIDE } else { all }
    }

    /// Bytes of the head's gradient while it waits for the embedding's.
    pub(super) fn tied_gradient_bytes(self, config: &Config) -> u64 {
        let learns = !self.adapts && !config.train.freezes("wte");
        if config.model.tie_word_embeddings && learns { table_bytes(config) } else { 0 }
    }

    /// Bytes of a head's gradient that waits for no other.
    pub(super) fn head_gradient_bytes(self, config: &Config) -> u64 {
        let learns = !self.adapts && !config.train.freezes("lm_head");
        if !config.model.tie_word_embeddings && learns { table_bytes(config) } else { 0 }
    }

    pub(super) fn largest_sum(self, largest: u64) -> u64 {
        if self.all() { largest } else { self.largest * WIDE }
    }

    /// Lower bound of the largest operation's bytes. A frozen weight has no second tensor of its size.
    pub(super) fn least(self, largest: u64, hidden: u64) -> u64 {
        if self.all() { largest.max(hidden).saturating_mul(2) } else { largest.max(hidden.saturating_mul(2)) }
    }

    /// Bytes of narrow copies of weights in a pass; a base is narrow.
    pub(super) fn narrow_copies(self, config: &Config, footprint: &Footprint) -> u64 {
        if self.adapts { 0 } else { footprint.narrow_weight_bytes(config.train.recompute) }
    }

    /// Operand bytes of the largest decoding: its pieces in f32, or these joined.
    pub(super) fn decoding_bytes(self, config: &Config) -> u64 {
        let Some(base) = self.packed else { return 0 };
        let numbers = largest_block_matrix(config);
        let pieces = WIDE * numbers.min(base.decoded_at_once()) * OPERANDS_PER_DECODING;
        pieces.max(2 * numbers * config.model.compute.bytes())
    }

    /// Bytes of decoded weights in a pass, or of their pieces beside the joined matrix.
    pub(super) fn decoded_bytes(self, config: &Config) -> u64 {
        let Some(base) = self.packed else { return 0 };
        let numbers = largest_block_matrix(config);
        2 * numbers * config.model.compute.bytes() + 2 * WIDE * numbers.min(base.decoded_at_once())
    }

    /// FLOPs per token of [`Footprint::flops_per_token`] that frozen weights save.
    pub(super) fn saved_flops_per_token(self, footprint: &Footprint, time: usize, recompute: bool) -> f64 {
        2.0 * self.multiplied as f64 + footprint.backward_flops_per_token(self.below, time, recompute)
    }
}

fn table_bytes(config: &Config) -> u64 {
    WIDE * config.model.vocab_size as u64 * config.model.n_embd as u64
}

/// f32 tensors of a piece's size.
const OPERANDS_PER_DECODING: u64 = 2;

/// Under adapters: block matrices in the base's form, a head in the compute type, others in f32, and a tied head's
/// narrow copy.
fn frozen_bytes(config: &Config) -> u64 {
    let (model, base) = (&config.model, config.memory.base);
    let bytes = |parameter: &ParameterInfo| {
        let numbers = parameter.elements();
        if parameter.is_projection() {
            return base.bytes(numbers, model.compute);
        }
        let each = match parameter.part {
            Part::Head => model.compute.bytes(),
            Part::Tokens if model.tie_word_embeddings && model.compute != Compute::F32 => {
                WIDE + model.compute.bytes()
            }
            _ => WIDE,
        };
        numbers.saturating_mul(each)
    };
    model.parameters().iter().fold(0, |sum, parameter| sum.saturating_add(bytes(parameter)))
}
