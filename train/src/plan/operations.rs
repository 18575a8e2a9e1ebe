//! How many tensors one operation names, and how many live beside the tape meanwhile.
//!
//! The CPU runs operations one by one: two factors and a result, and a further result for whatever comes in between. On CUDA
//! and Vulkan fusion makes one kernel of neighbouring operations. It names everything that goes into them and comes out, and
//! results in between take no memory. `backend-offload` cuts at eight operands whatever the budget, so that an update is one
//! kernel and never two parameters'. The counts are those of recorded steps; a test holds them against the records.

use models::Activation;
use runs::config::{Config, OptimizerKind};

/// The operations of a step, as the device runs them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operations {
    fused: bool,
    optimizer: OptimizerKind,
    activation: Activation,
    caps_logits: bool,
}

impl Operations {
    pub(super) fn of(config: &Config, fused: bool) -> Self {
        let (optimizer, model) = (config.train.optimizer, &config.model);
        let caps_logits = model.logit_softcap.is_some();
        Self { fused, optimizer, activation: model.activation_function, caps_logits }
    }

    /// Tensors of one parameter's size that an operation of its update by `rule` names.
    pub(super) fn of_update(self, rule: OptimizerKind) -> u64 {
        match (self.fused, rule) {
            (false, _) => 3,
            // The weight, its gradient and two moments; three of these anew.
            (true, OptimizerKind::AdamW) => 7,
            (true, OptimizerKind::Muon | OptimizerKind::Sgd) => 5,
        }
    }

    /// Tensors of one parameter's size that its update takes for a while.
    pub(super) fn beside_update(self) -> u64 {
        match (self.fused, self.optimizer) {
            (true, OptimizerKind::AdamW | OptimizerKind::Muon) => 3,
            (true, OptimizerKind::Sgd) | (false, OptimizerKind::AdamW | OptimizerKind::Muon) => 2,
            (false, OptimizerKind::Sgd) => 1,
        }
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
