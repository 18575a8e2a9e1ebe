//! Optimizer states on the disk: as few as host memory requires.
//!
//! Block matrices go first, from the last block, then heads and embeddings; vectors and an embedding by rows stay. If
//! ranks divide states or have stages, all matrices of a rank go, or none. Results do not change
//! (`states_on_the_disk_give_the_bits_of_states_in_memory_in_every_format`), so a resumed run chooses anew.

use host_optim::{DiskBytes, Format, Moments};
use models::ParameterInfo;
use runs::config::Config;
use serde::Serialize;

use super::Machine;
use super::placement::{Matrix, matrices_on_host};
use crate::parameters::{Home, home, learned};
use crate::rule::{format, moments};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct StatesOnDisk {
    first_block: usize,
    others: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StateBytes {
    pub(super) in_memory: u64,
    pub(super) on_disk: u64,
    largest: u64,
    disk: DiskBytes,
    weights: u64,
}

impl StateBytes {
    fn new(format: Format, Matrix { sides: [rows, columns], narrow }: Matrix, moments: Moments) -> Self {
        let len = (rows as u64).saturating_mul(columns as u64);
        let (in_memory, disk) = (format.bytes(len, moments, narrow), format.disk_bytes(len, moments, narrow));
        Self { in_memory, on_disk: disk.on_disk(), largest: disk.on_disk(), disk, weights: 0 }
    }

    fn plus(self, others: Self) -> Self {
        Self {
            in_memory: self.in_memory.saturating_add(others.in_memory),
            on_disk: self.on_disk.saturating_add(others.on_disk),
            largest: self.largest.max(others.largest),
            disk: self.disk + others.disk,
            weights: self.weights.max(others.weights),
        }
    }

    fn times(self, count: u64) -> Self {
        let [in_memory, on_disk] = [self.in_memory, self.on_disk].map(|bytes| bytes.saturating_mul(count));
        Self { in_memory, on_disk, disk: self.disk * count, ..self }
    }

    fn share(self, ranks: u64) -> Self {
        let on_disk = self.on_disk.div_ceil(ranks).max(self.largest);
        Self { in_memory: self.in_memory / ranks, on_disk, ..self }
    }

    /// Host bytes for states on the disk: chunks in flight, new weights.
    pub(super) fn passing(self) -> u64 {
        self.disk.on_host().saturating_add(self.weights)
    }
}

impl StatesOnDisk {
    pub(crate) fn none() -> Self {
        Self { first_block: usize::MAX, others: false }
    }

    #[cfg(test)]
    pub(crate) fn all() -> Self {
        Self { first_block: 0, others: true }
    }

    pub(crate) fn contains(self, block: Option<usize>, dims: usize) -> bool {
        dims == 2 && block.map_or(self.others, |block| block >= self.first_block)
    }

    /// Chooses states for the disk, and counts their bytes. The optimizer's `all` host bytes and `spills` share the
    /// host budget; spilled tensors on the disk need up to `in_flight` host bytes.
    pub(super) fn choose(
        config: &Config,
        machine: &Machine,
        all: u64,
        spills: u64,
        in_flight: u64,
    ) -> (Self, StateBytes) {
        let none = (Self::none(), StateBytes::default());
        let Some(host) = machine.host_budget.filter(|_| machine.disk_budget > 0 && all > 0) else {
            return none;
        };
        if all.saturating_add(spills.min(in_flight)) <= host {
            return none;
        }

        let [per_block, others] = Self::candidates(config);
        let parameters = learned(config);
        let on_host = parameters.iter().filter(|parameter| {
            parameter.is_projection() && matches!(home(config, parameter), Home::Host(_))
        });
        let mut on_host: Vec<usize> = on_host.filter_map(ParameterInfo::block).collect();
        on_host.dedup();
        let blocks = on_host.len() as u64;
        let missing = all.saturating_add(per_block.passing()).saturating_add(spills).saturating_sub(host);
        let count = missing.div_ceil(per_block.in_memory.max(1)).max(1);
        let ranks = if config.memory.shard.has_owners() { machine.ranks() as u64 } else { 1 };

        // Other stages have other blocks.
        let is_stage = config.ranks.pipeline > 1;
        if count <= blocks && ranks == 1 && !is_stage {
            let first_block = on_host[on_host.len() - count as usize];
            return (Self { first_block, others: false }, per_block.times(count));
        }
        let in_blocks = if blocks > 0 { per_block.times(blocks) } else { StateBytes::default() };
        let first_block = on_host.first().copied().filter(|_| !is_stage);
        let first_block = first_block.unwrap_or(if is_stage { 0 } else { config.model.n_layer });
        (Self { first_block, others: true }, in_blocks.plus(others).share(ranks))
    }

    fn candidates(config: &Config) -> [StateBytes; 2] {
        let (format, moments) = (format(config.memory.optimizer_state), moments(config.train.optimizer));
        let matrices = matrices_on_host(config);
        let weights = matrices.iter().flatten().map(Matrix::bytes).max().unwrap_or_default();
        matrices.map(|matrices| {
            let each = matrices.iter().map(|matrix| StateBytes::new(format, *matrix, moments));
            StateBytes { weights, ..each.fold(StateBytes::default(), StateBytes::plus) }
        })
    }
}
