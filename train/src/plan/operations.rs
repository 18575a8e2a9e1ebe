//! Counts of tensors that one operation names, and that are alive besides the tape.
//!
//! The CPU runs operations one by one: two factors, a result, and one more per intermediate. AdamW is in place there,
//! in one pass if the budget holds all operands, otherwise in two. On CUDA and Vulkan, fusion makes one kernel of
//! neighbouring operations; it names all inputs and outputs, and intermediates take no memory. `backend-offload` cuts
//! at eight operands, so an update is one kernel and never covers two parameters. A test compares the counts with
//! recorded steps.

use models::Activation;
use runs::config::{Config, OptimizerKind};

use crate::optimizer::BLOCK_BYTES;

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

    /// Tensors of the parameter's size that an operation of its update names at least.
    pub(super) fn update_tensors(self, rule: OptimizerKind) -> u64 {
        match (self.fused, rule) {
            (false, _) => 3,
            // The weight, its gradient and two moments; new tensors for three of these.
            (true, OptimizerKind::AdamW) => 7,
            (true, OptimizerKind::Muon | OptimizerKind::Sgd) => 5,
        }
    }

    /// Bytes that AdamW's one-pass update of `bytes` names; 0 if the device has no such pass.
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

    /// Bytes that an operation of a table's update names at least. A table is an embedding or the head; AdamW steps it.
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
            // Gate, input and the result's gradient; two gradients.
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

    /// Tensors of a chunk's scores, and of its logits, that one operation names.
    pub(super) fn chunk_tensors(self) -> [u64; 2] {
        [3, if self.caps_logits { 3 } else { 2 }]
    }

    /// Tensors of a parameter's size while two shares of its gradient are added.
    pub(super) const SUM_TENSORS: u64 = 3;
}
