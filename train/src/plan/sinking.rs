//! States of the optimizer that go to the disk, where host memory does not hold them.
//!
//! They go by blocks, the last ones first, as their matrices: vectors are small, and an embedding that comes by rows is read by
//! its rows' numbers. Heads and embeddings follow when all blocks are there. As few go as leave room for everything that spills;
//! and none where the host holds them all with what passes it on its way to the disk: a state on the disk is read and written
//! in every step. Where ranks divide the states, those of all matrices that a rank owns go to its own file, or none. Numbers do not
//! depend on where a state is, so this may be chosen anew whenever a run goes on.

use host_optim::{DiskBytes, Format};
use runs::config::{Config, OptimizerKind};
use serde::Serialize;

use super::Machine;
use super::placement::{Matrix, matrices_on_host};
use crate::optimizer::format;

/// States that are on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct StatesOnDisk {
    /// The first block whose matrices are.
    first_block: usize,
    /// Whether matrices outside of blocks are.
    others: bool,
}

/// Bytes of the states of some parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StateBytes {
    /// In host memory, if they are there.
    pub(super) in_memory: u64,
    /// On the disk, if they are there.
    pub(super) on_disk: u64,
    /// The most that one of them takes there.
    largest: u64,
    disk: DiskBytes,
    /// New weights that the first step has beside all gradients, wherever its state is.
    weights: u64,
}

impl StateBytes {
    /// One parameter's.
    fn of(format: Format, Matrix { sides: [rows, columns], narrow }: Matrix, velocity: bool) -> Self {
        let len = (rows as u64).saturating_mul(columns as u64);
        let in_memory = if velocity { format.velocity_bytes(len) } else { format.host_bytes(len, narrow) };
        let disk = format.disk_bytes(len, narrow, velocity);
        Self { in_memory, on_disk: disk.on_disk(), largest: disk.on_disk(), disk, weights: 0 }
    }

    /// These and others.
    fn and(self, others: Self) -> Self {
        Self {
            in_memory: self.in_memory.saturating_add(others.in_memory),
            on_disk: self.on_disk.saturating_add(others.on_disk),
            largest: self.largest.max(others.largest),
            disk: self.disk + others.disk,
            weights: self.weights.max(others.weights),
        }
    }

    /// The bytes of so many like these.
    fn times(self, count: u64) -> Self {
        let [in_memory, on_disk] = [self.in_memory, self.on_disk].map(|bytes| bytes.saturating_mul(count));
        Self { in_memory, on_disk, disk: self.disk * count, ..self }
    }

    /// The bytes of one of so many ranks that divide these. Whole parameters are divided, so somebody has the largest one's.
    fn share(self, ranks: u64) -> Self {
        let on_disk = self.on_disk.div_ceil(ranks).max(self.largest);
        Self { in_memory: self.in_memory / ranks, on_disk, ..self }
    }

    /// In host memory then, for a while: chunks on their way and new weights.
    pub(super) fn passing(self) -> u64 {
        self.disk.on_host().saturating_add(self.weights)
    }
}

impl StatesOnDisk {
    pub(crate) fn none() -> Self {
        Self { first_block: usize::MAX, others: false }
    }

    /// All matrices.
    #[cfg(test)]
    pub(crate) fn all() -> Self {
        Self { first_block: 0, others: true }
    }

    /// Whether a parameter's state is among these, if it is stepped on the host.
    pub(crate) fn have(self, block: Option<usize>, rank: usize) -> bool {
        rank == 2 && block.map_or(self.others, |block| block >= self.first_block)
    }

    /// The states that go to the disk of `machine`, and their bytes: `all` host memory that the optimizer takes and `spills`
    /// share its budget; of spilled tensors that have no room there, so much is on its `way` to the disk.
    pub(super) fn chosen(
        config: &Config,
        machine: &Machine,
        all: u64,
        spills: u64,
        way: u64,
    ) -> (Self, StateBytes) {
        let none = (Self::none(), StateBytes::default());
        let Some(host) = machine.host_budget.filter(|_| machine.disk_budget > 0 && all > 0) else {
            return none;
        };
        if all.saturating_add(spills.min(way)) <= host {
            return none;
        }
        let model = &config.model;
        let [of_block, others] = Self::candidates(config);
        // Muon steps the blocks' matrices where they are.
        let steps_blocks = config.train.optimizer != OptimizerKind::Muon;
        let first = if steps_blocks { config.memory.device_blocks } else { model.n_layer };
        let blocks = (model.n_layer - first) as u64;
        let missing = all.saturating_add(of_block.passing()).saturating_add(spills).saturating_sub(host);
        let count = missing.div_ceil(of_block.in_memory).max(1);
        let ranks = if config.memory.shard { machine.ranks() as u64 } else { 1 };
        if count <= blocks && ranks == 1 {
            let first_block = model.n_layer - count as usize;
            return (Self { first_block, others: false }, of_block.times(count));
        }
        let of_blocks = if blocks > 0 { of_block.times(blocks) } else { StateBytes::default() };
        (Self { first_block: first, others: true }, of_blocks.and(others).share(ranks))
    }

    /// The states of one block, and of all other matrices, that may go to the disk.
    fn candidates(config: &Config) -> [StateBytes; 2] {
        let (state, velocity) =
            (format(config.memory.optimizer_state), config.train.optimizer == OptimizerKind::Sgd);
        let matrices = matrices_on_host(config);
        let weights = matrices.iter().flatten().map(Matrix::bytes).max().unwrap_or_default();
        matrices.map(|matrices| {
            let each = matrices.iter().map(|matrix| StateBytes::of(state, *matrix, velocity));
            StateBytes { weights, ..each.fold(StateBytes::default(), StateBytes::and) }
        })
    }
}
