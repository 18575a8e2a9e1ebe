//! Tensors that an operation uses, besides the tape.
//!
//! The CPU's AdamW is in place, in one pass if all operands fit the budget, else in two. Fusing devices make one kernel
//! of neighbouring operations, with at most eight operands: an update is one.

use models::Activation;
use runs::config::{Config, OptimizerKind};

use crate::optimizer::BLOCK_BYTES;

const FUSED_OPERANDS: u64 = 8;

const BLOCK: u64 = BLOCK_BYTES as u64;

#[derive(Debug, Clone, Copy)]
pub(super) struct Operations {
    fused: bool,
    activation: Activation,
    caps_logits: bool,
}

impl Operations {
    pub(super) fn new(config: &Config, fused: bool) -> Self {
        let model = &config.model;
        Self { fused, activation: model.activation_function, caps_logits: model.logit_softcap.is_some() }
    }

    pub(super) fn update_tensors(self, rule: OptimizerKind) -> u64 {
        match (self.fused, rule) {
            (false, _) => 3,
            // Weight, gradient, two moments, three new tensors.
            (true, OptimizerKind::AdamW) => 7,
            (true, OptimizerKind::Muon | OptimizerKind::Sgd) => 5,
        }
    }

    /// Operand bytes of one-pass AdamW; 0 if the device has none.
    pub(super) fn one_pass_update(self, bytes: u64) -> u64 {
        if self.fused { 0 } else { 4 * bytes }
    }

    pub(super) fn update_temporaries(self, rule: OptimizerKind) -> u64 {
        match (self.fused, rule) {
            (true, OptimizerKind::AdamW | OptimizerKind::Muon) => 3,
            (true, OptimizerKind::Sgd) | (false, OptimizerKind::Muon) => 2,
            (false, OptimizerKind::Sgd) => 1,
            (false, OptimizerKind::AdamW) => 0,
        }
    }

    /// Operand bytes. A table is an embedding or the head.
    pub(super) fn table_update_bytes(self, bytes: u64) -> u64 {
        if self.is_by_rows(bytes) {
            4 * bytes + 3 * BLOCK
        } else {
            self.update_tensors(OptimizerKind::AdamW) * bytes
        }
    }

    pub(super) fn table_update_temporaries(self, bytes: u64) -> u64 {
        if self.is_by_rows(bytes) { 3 * BLOCK } else { self.update_temporaries(OptimizerKind::AdamW) * bytes }
    }

    fn is_by_rows(self, bytes: u64) -> bool {
        self.fused && bytes > BLOCK
    }

    pub(super) fn mlp_tensors(self) -> u64 {
        match (self.fused, self.activation) {
            // Gate, input and three gradients.
            (true, Activation::SwiGlu | Activation::GeGlu) => 5,
            _ => 3,
        }
    }

    pub(super) fn block_temporaries(self) -> u64 {
        match (self.fused, self.activation) {
            (true, _) | (false, Activation::ReluSquared) => 2,
            (false, Activation::GeluTanh | Activation::GeluErf | Activation::SwiGlu | Activation::GeGlu) => 4,
        }
    }

    pub(super) fn chunk_tensors(self) -> [u64; 2] {
        [3, if self.caps_logits { 3 } else { 2 }]
    }

    /// The last sum of `summands` gradients: a fused kernel adds all earlier sums at once.
    pub(super) fn sum_tensors(self, summands: u64) -> u64 {
        let earlier = u64::from(summands.ilog2()).max(1);
        if self.fused { (2 + earlier).min(FUSED_OPERANDS) } else { 3 }
    }
}
