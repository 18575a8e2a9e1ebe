//! What learns: all weights, or adapters beside frozen ones.

use models::{BaseForm, Compute, Footprint, ParameterInfo, Part};
use runs::config::Config;

use super::placement::largest_block_matrix;
use crate::parameters::learned;

const WIDE: u64 = 4;

#[derive(Debug, Clone, Copy)]
pub(super) struct Learned {
    /// Whether all weights learn. Frozen ones are narrow or packed, without gradient.
    pub(super) all: bool,
    pub(super) per_block: u64,
    /// Numbers of the largest parameter that learns.
    pub(super) largest: u64,
    pub(super) frozen: u64,
    /// Form of frozen block matrices that each use decodes.
    packed: Option<BaseForm>,
    /// Adapters' bytes per token on the tape: the product with `down`, wide and narrow.
    pub(super) tape_per_token: u64,
}

impl Learned {
    pub(super) fn new(config: &Config, footprint: &Footprint) -> Self {
        let (per_block, largest) = (footprint.per_block, footprint.largest_tensor);
        let Some(lora) = &config.train.lora else {
            return Self { all: true, per_block, largest, frozen: 0, packed: None, tape_per_token: 0 };
        };

        let adapters = learned(config);
        let of_first = adapters.iter().filter(|adapter| adapter.block() == Some(0));
        let (layers, compute) = (config.model.n_layer, config.model.compute);
        let blocks = config.train.recompute.map_or(layers, |every| every.clamp(1, layers)) as u64;
        let each = lora.rank as u64 * (WIDE + compute.bytes());
        Self {
            all: false,
            per_block: of_first.map(ParameterInfo::elements).sum(),
            largest: adapters.iter().map(ParameterInfo::elements).max().unwrap_or_default(),
            frozen: frozen_bytes(config),
            packed: Some(config.memory.base).filter(|base| base.is_packed(compute)),
            tape_per_token: each.saturating_mul(lora.targets.len() as u64).saturating_mul(blocks),
        }
    }

    /// Bytes of the head's gradient while it waits for the embedding's.
    pub(super) fn tied_gradient_bytes(self, config: &Config) -> u64 {
        if config.model.tie_word_embeddings && self.all { self.largest * WIDE } else { 0 }
    }

    pub(super) fn largest_sum(self, largest: u64) -> u64 {
        if self.all { largest } else { self.largest * WIDE }
    }

    /// Lower bound of the largest operation's bytes. A frozen weight has no second tensor of its size.
    pub(super) fn least(self, largest: u64, hidden: u64) -> u64 {
        if self.all { largest.max(hidden).saturating_mul(2) } else { largest.max(hidden.saturating_mul(2)) }
    }

    /// Bytes of narrow copies of weights in a pass; frozen weights are narrow.
    pub(super) fn narrow_copies(self, config: &Config, footprint: &Footprint) -> u64 {
        if self.all { footprint.narrow_weight_bytes(config.train.recompute) } else { 0 }
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

    /// FLOPs per token for gradients of frozen weights.
    pub(super) fn saved_flops_per_token(self, footprint: &Footprint) -> f64 {
        if self.all { 0.0 } else { footprint.weight_gradient_flops_per_token() }
    }
}

/// f32 tensors of a piece's size.
const OPERANDS_PER_DECODING: u64 = 2;

/// Block matrices in the base's form, a head in the compute type, others in f32, a narrow copy of a tied head.
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
