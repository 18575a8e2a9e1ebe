//! How many tensors one operation names, and how many live beside the tape meanwhile.
//!
//! The CPU runs operations one by one: two factors and a result, and a further result for whatever comes in between. AdamW is in
//! place there, in one pass where the budget holds all that it reads, and else in two. On CUDA and Vulkan fusion makes one kernel
//! of neighbouring operations. It names everything that goes into them and comes out, and results in between take no memory.
//! `backend-offload` cuts at eight operands whatever the budget, so that an update is one kernel and never two parameters'. The
//! counts are those of recorded steps; a test holds them against the records.

use models::Activation;
use runs::config::{Config, OptimizerKind};

use crate::optimizer::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The operations of a step, as the device runs them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operations {
    fused: bool,
    activation: Activation,
    caps_logits: bool,
}

impl Operations {
    pub(super) fn of(config: &Config, fused: bool) -> Self {
        let model = &config.model;
        Self { fused, activation: model.activation_function, caps_logits: model.logit_softcap.is_some() }
    }

    /// Tensors of one parameter's size that an operation of its update by `rule` names, at least.
    pub(super) fn of_update(self, rule: OptimizerKind) -> u64 {
        match (self.fused, rule) {
            (false, _) => 3,
            // The weight, its gradient and two moments; three of these anew.
            (true, OptimizerKind::AdamW) => 7,
            (true, OptimizerKind::Muon | OptimizerKind::Sgd) => 5,
        }
    }

    /// Bytes that AdamW's update of so many names where the budget holds them, if that is more.
    pub(super) fn roomy_update(self, bytes: u64) -> u64 {
        if self.fused { 0 } else { 4 * bytes }
    }

    /// Tensors of one parameter's size that its update by `rule` takes for a while.
    pub(super) fn beside_update(self, rule: OptimizerKind) -> u64 {
        match (self.fused, rule) {
            (true, OptimizerKind::AdamW | OptimizerKind::Muon) => 3,
            (true, OptimizerKind::Sgd) | (false, OptimizerKind::Muon) => 2,
            (false, OptimizerKind::Sgd) => 1,
            (false, OptimizerKind::AdamW) => 0,
        }
    }

    /// Bytes that an operation of the update of a table names, at least: embeddings and the head, by AdamW.
    pub(super) fn of_table_update(self, bytes: u64) -> u64 {
        if self.is_by_rows(bytes) {
            4 * bytes + 3 * BLOCK
        } else {
            self.of_update(OptimizerKind::AdamW) * bytes
        }
    }

    /// Bytes that the update of a table takes for a while.
    pub(super) fn beside_table_update(self, bytes: u64) -> u64 {
        if self.is_by_rows(bytes) { 3 * BLOCK } else { self.beside_update(OptimizerKind::AdamW) * bytes }
    }

    fn is_by_rows(self, bytes: u64) -> bool {
        self.fused && bytes > BLOCK
    }

    /// Tensors as wide as the MLP that one operation names.
    pub(super) fn of_mlp(self) -> u64 {
        match (self.fused, self.activation) {
            // Gate, input and the result's gradient; the gradients of two.
            (true, Activation::SwiGlu) => 5,
            _ => 3,
        }
    }

    /// Tensors as wide as the MLP that are made of a block's tape in its backward pass.
    pub(super) fn beside_block(self) -> u64 {
        match (self.fused, self.activation) {
            (true, _) | (false, Activation::ReluSquared) => 2,
            (false, Activation::GeluTanh | Activation::GeluErf | Activation::SwiGlu) => 4,
        }
    }

    /// Tensors as large as a chunk's scores, and as its logits, that one operation names.
    pub(super) fn of_chunk(self) -> [u64; 2] {
        [3, if self.caps_logits { 3 } else { 2 }]
    }

    /// Tensors of one parameter's size while two shares of its gradient are added.
    pub(super) const OF_SUM: u64 = 3;
}
