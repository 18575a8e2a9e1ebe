//! Bytes of a checkpoint, and of what ranks save beside it.

use models::ParameterInfo;
use runs::config::{ChangesKind, Config, ExchangeKind, OptimizerKind};

use crate::parameters::{learned, saved};
use crate::rule::keeps_second_moment;

/// Weights and states in f32; with adapters, theirs alone.
pub(super) fn checkpoint_bytes(config: &Config) -> u64 {
    4 * (saved(config) + moments(config))
}

/// All ranks' own, in f32.
pub(super) fn own_bytes(config: &Config, ranks: usize) -> u64 {
    if ranks == 1 {
        return 0;
    }
    let (elements, ranks) = (learned(config).iter().map(ParameterInfo::elements).sum::<u64>(), ranks as u64);
    // Of each rank's numbers, and of its part of the sum.
    let residuals = elements * (ranks + 1);
    let numbers = match config.ranks.exchange {
        ExchangeKind::Exact | ExchangeKind::Bf16 => 0,
        ExchangeKind::OneBit => residuals,
        ExchangeKind::Rarely => {
            let unsent = if config.ranks.changes == ChangesKind::OneBit { residuals } else { 0 };
            // All have weights, rank 0 the outer momentum, and others their moments.
            elements * (ranks + 1) + moments(config) * (ranks - 1) + unsent
        }
    };
    4 * numbers
}

fn moments(config: &Config) -> u64 {
    let kind = config.train.optimizer;
    learned(config).iter().map(|parameter| moments_of(parameter, kind)).sum()
}

/// Elements of a parameter's moments.
pub(super) fn moments_of(parameter: &ParameterInfo, kind: OptimizerKind) -> u64 {
    let second = keeps_second_moment(kind, &parameter.name, parameter.shape.len());
    parameter.elements() * (1 + u64::from(second))
}
