//! Parameters by place of update, and their memory there.

use models::tiles::{AT_ONCE, DECODED_AT_ONCE, TILE};
use models::{Compute, Footprint, ParameterInfo};
use runs::config::{Config, CrossingKind, ExchangeKind, PlacementKind, StateKind, StreamKind};

use super::demand::{Passes, partial_sums};
use super::learned::Learned;
use super::{NARROW, WIDE};
use crate::parameters::{Form, Home, home, learned};
use crate::rule::{format, keeps_second_moment, moments};

const COUNT: u64 = 4;

/// Steps in which each row of an embedding by rows has its turn.
const TURNS: u64 = 64;

/// f32 tensors that encoding or decoding allocates.
const TENSORS_PER_CODING: u64 = 3;
const TENSORS_PER_DECODING: u64 = 2;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) on_device: u64,
    with_two_moments: u64,
    /// Parameters updated on the host, f32 on the device.
    pub(super) wide: u64,
    /// The same, bf16 on the device.
    pub(super) narrow: u64,
    /// Wide parameters of an embedding by rows.
    table: u64,
    /// The most table parameters that a micro-batch and a step use.
    rows: [u64; 2],
    /// Parameters of block matrices updated on the host.
    matrices: u64,
    /// Bytes of a number in the compute type.
    pub(super) computed: u64,
    /// Whether weights and gradients of `matrices` cross the link in tiles.
    pub(super) tiles: [bool; 2],
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix {
    pub(super) sides: [usize; 2],
    /// Whether the device computes in bf16.
    pub(super) narrow: bool,
}

impl Matrix {
    pub(super) fn bytes(&self) -> u64 {
        let [rows, columns] = self.sides.map(|side| side as u64);
        rows.saturating_mul(columns).saturating_mul(if self.narrow { NARROW } else { WIDE })
    }
}

pub(super) fn matrices_on_host(config: &Config) -> [Vec<Matrix>; 2] {
    let matrices: Vec<_> = learned(config).into_iter().filter(ParameterInfo::is_matrix).collect();
    // All blocks whose matrices learn have the same ones.
    let first = matrices.iter().find_map(ParameterInfo::block);
    let (block, outer): (Vec<_>, Vec<_>) = matrices
        .into_iter()
        .filter(|matrix| matrix.block().is_none() || matrix.block() == first)
        .partition(|matrix| matrix.block().is_some());
    let matrix = |matrix: &ParameterInfo| Matrix {
        sides: [matrix.shape[0], matrix.shape[1]],
        narrow: Form::new(config, matrix).narrow,
    };
    let outer = outer.iter().filter(|matrix| home(config, matrix) != Home::HostRows);
    [block.iter().map(matrix).collect(), outer.map(matrix).collect()]
}

/// Bytes: 128 and a 4-byte scale for 128 numbers.
pub(super) fn in_tiles(numbers: u64) -> u64 {
    numbers + numbers / 32
}

pub(super) fn largest_block_matrix(config: &Config) -> u64 {
    let matrices = config.model.block_matrices().into_iter();
    matrices.map(|[rows, columns]| (rows * columns) as u64).max().unwrap_or_default()
}

impl Placement {
    pub(super) fn new(config: &Config) -> Self {
        let mut placement = Self::default();
        for parameter in learned(config) {
            let len = parameter.elements();
            match home(config, &parameter) {
                Home::Device => {
                    placement.on_device += len;
                    if keeps_second_moment(config.train.optimizer, &parameter.name, parameter.shape.len()) {
                        placement.with_two_moments += len;
                    }
                }
                Home::HostRows => {
                    placement.wide += len;
                    placement.table += len;
                }
                Home::Host(form) => {
                    *if form.narrow { &mut placement.narrow } else { &mut placement.wide } += len;
                    placement.matrices += if parameter.is_projection() { len } else { 0 };
                }
            }
        }

        let memory = &config.memory;
        if memory.optimizer == PlacementKind::Host {
            let tokens = (config.train.micro_batch * config.sequence() * config.model.n_embd) as u64;
            placement.rows = [1, config.train.accumulate as u64]
                .map(|each| placement.table.min(tokens.saturating_mul(each)));
            placement.computed = if config.model.compute == Compute::Bf16 { NARROW } else { WIDE };
            placement.tiles =
                [memory.stream != StreamKind::Computed, memory.gradients != CrossingKind::Computed];
        }
        placement
    }

    pub(super) fn device_state_bytes(&self) -> u64 {
        (self.on_device + self.with_two_moments) * WIDE
    }

    pub(super) fn largest_on_device(&self, config: &Config, learns: Learned) -> u64 {
        WIDE * match (self.on_host(), self.on_device) {
            (0, _) => learns.largest,
            (_, 0) => 0,
            _ => largest_block_matrix(config),
        }
    }

    pub(super) fn largest_table_on_device(&self, config: &Config) -> u64 {
        let rows = config.model.vocab_size.max(config.model.n_positions) as u64;
        if self.on_host() == 0 { WIDE * rows * config.model.n_embd as u64 } else { 0 }
    }

    pub(super) fn on_host(&self) -> u64 {
        self.wide + self.narrow
    }

    /// Bytes of host parameters in the compute type, without an embedding by rows.
    pub(super) fn computed_bytes(&self) -> u64 {
        (self.wide - self.table) * WIDE + self.narrow * NARROW
    }

    /// The same bytes as they cross the link.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.crossing(self.tiles[0])
    }

    /// Most bytes of rows, or of their gradients, per micro-batch.
    pub(super) fn row_bytes(&self) -> u64 {
        self.rows[0] * WIDE
    }

    /// Bytes per step. A group's sum crosses once, in f32; rows and tiles cross per micro-batch.
    pub(super) fn gradients_crossing(&self, passes: Passes) -> u64 {
        let Passes { micro_batches, groups, together, .. } = passes;
        let rows = self.row_bytes().saturating_mul(micro_batches);
        if together == 1 {
            return rows.saturating_add(self.crossing(self.tiles[1]).saturating_mul(micro_batches));
        }
        let in_tiles = if self.tiles[1] { self.matrices } else { 0 };
        let summed = (self.on_host() - self.table - in_tiles) * WIDE;
        let tiles = self::in_tiles(in_tiles).saturating_mul(micro_batches);
        rows.saturating_add(summed.saturating_mul(groups)).saturating_add(tiles)
    }

    fn single_gradient_bytes(&self) -> u64 {
        self.computed_bytes() + self.row_bytes()
    }

    fn crossing(&self, tiles: bool) -> u64 {
        let saved = if tiles { self.matrices * self.computed - in_tiles(self.matrices) } else { 0 };
        self.computed_bytes() - saved
    }

    /// Bytes of the largest operation on tiles. Without fusion, decoded pieces are concatenated.
    pub(super) fn coding_bytes(&self, config: &Config, fused: bool) -> u64 {
        let numbers = self.largest_matrix(config);
        let in_pieces = |tensors: u64, most: usize| tensors * WIDE * numbers.min((most * TILE) as u64);
        let decoded = self.computed * numbers;
        let decoding = if fused {
            in_tiles(numbers) + decoded
        } else {
            in_pieces(TENSORS_PER_DECODING, DECODED_AT_ONCE).max(2 * decoded)
        };
        let encoding = in_pieces(TENSORS_PER_CODING, AT_ONCE);
        let [comes, leaves] = self.tiles;
        (if comes { decoding } else { 0 }).max(if leaves { encoding } else { 0 })
    }

    /// Bytes besides the operands of encoding or decoding.
    pub(super) fn coding_temporaries(&self, config: &Config) -> u64 {
        if self.tiles == [false; 2] {
            0
        } else {
            WIDE * self.largest_matrix(config).min((AT_ONCE * TILE) as u64)
        }
    }

    pub(super) fn block_gradients(&self, blocks: usize, config: &Config, footprint: &Footprint) -> u64 {
        let matrices = footprint.hidden_matrices / config.model.n_layer as u64;
        let vectors = footprint.per_block - matrices;
        let each = vectors.saturating_mul(WIDE).saturating_add(matrices.saturating_mul(self.computed));
        each.saturating_mul(blocks as u64)
    }

    pub(super) fn decoded_bytes(&self, config: &Config) -> u64 {
        if self.tiles[0] { 2 * self.computed * self.largest_matrix(config) } else { 0 }
    }

    fn largest_matrix(&self, config: &Config) -> u64 {
        if self.matrices == 0 { 0 } else { largest_block_matrix(config) }
    }

    pub(super) fn largest_tensor(&self, config: &Config, footprint: &Footprint) -> u64 {
        let (all, model) = (footprint.largest_tensor, &config.model);
        // Frozen weights are f32.
        if self.narrow == 0 || self.on_device > 0 || !config.train.freeze.is_empty() {
            return all * WIDE;
        }
        let named = self.rows[0] / model.n_embd as u64;
        let vocabulary = if self.table > 0 && !model.longest_match { named } else { model.vocab_size as u64 };
        let rows = vocabulary.max(model.n_positions as u64);
        (all * NARROW).max((rows * model.n_embd as u64).min(all) * WIDE)
    }

    /// In numbers.
    fn largest_on_host(&self, config: &Config) -> u64 {
        let rows = config.model.vocab_size.max(config.model.n_positions) as u64;
        self.on_host().min(largest_block_matrix(config).max(rows * config.model.n_embd as u64))
    }

    /// Host bytes of states and waiting gradients.
    pub(super) fn host_bytes(&self, config: &Config, ranks: usize) -> u64 {
        let groups = Passes::new(config, ranks).groups;
        self.state_bytes_on_host(config, ranks) + self.gradient_bytes_on_host(config, ranks, groups)
    }

    /// Short last blocks count as whole.
    pub(super) fn state_bytes_on_host(&self, config: &Config, ranks: usize) -> u64 {
        let (format, moments) = (format(config.memory.optimizer_state), moments(config.train.optimizer));
        let states = |wide, narrow| format.bytes(wide, moments, false) + format.bytes(narrow, moments, true);
        let all = states(self.wide, self.narrow);
        // One step count per row.
        let counts = if self.table > 0 { COUNT * config.model.vocab_size as u64 } else { 0 };
        // Whole parameters are divided: one rank has the largest.
        all.div_ceil(owners(config, ranks)).max(states(self.largest_on_host(config), 0)) + counts
    }

    /// The most that waits on the host in the first `groups` of a step.
    pub(super) fn gradient_bytes_on_host(&self, config: &Config, ranks: usize, groups: u64) -> u64 {
        let together = Passes::new(config, ranks).together;
        let waiting = partial_sums(groups);
        let largest = self.largest_on_host(config);
        let with_rows = |rows: u64| (self.on_host() - self.table + rows) * WIDE;
        // A single gradient has its weight's type, a sum is f32. With ranks, the last leave one by one.
        let leaves = ranks > 1 && matches!(config.ranks.exchange, ExchangeKind::Exact | ExchangeKind::Bf16);
        let single = match groups {
            1 if leaves => WIDE * largest,
            _ if waiting <= 1 && groups != 1 => 0,
            _ if together > 1 => with_rows(self.rows[1]),
            _ => self.single_gradient_bytes(),
        };

        let own_sums = if groups > 1 { waiting.saturating_sub(1).max(1) } else { 0 };
        let sum = with_rows(if ranks > 1 { self.table } else { self.rows[1] });
        // The sum over ranks is f32; only its owner keeps it.
        let total = match (ranks, config.memory.shard.has_owners()) {
            (1, _) => 0,
            (_, false) => sum,
            (_, true) => sum.div_ceil(owners(config, ranks)).max(WIDE * largest),
        };
        single + (own_sums * sum).max(total) + self.tiles_in_group(config, together)
    }

    /// Bytes of a segment's partial sums. The host adds gradients in tiles before their group is whole.
    fn tiles_in_group(&self, config: &Config, together: u64) -> u64 {
        if !self.tiles[1] {
            return 0;
        }
        let blocks = config.model.n_layer.saturating_sub(config.memory.device_blocks).max(1) as u64;
        let every = config.train.recompute.map_or(blocks, |every| blocks.min(every as u64));
        WIDE * u64::from(together.ilog2()) * self.matrices.div_ceil(blocks) * every
    }
}

fn owners(config: &Config, ranks: usize) -> u64 {
    if config.memory.shard.has_owners() { ranks as u64 } else { 1 }
}

impl Placement {
    /// Weight bytes read to the host per step.
    pub(super) fn read_bytes(&self, config: &Config, ranks: usize) -> u64 {
        let read = config.memory.optimizer_state == StateKind::Compact;
        if read { (self.narrow * NARROW).div_ceil(owners(config, ranks)) } else { 0 }
    }

    /// The largest allocation for new weights; read weights are overwritten in place.
    pub(super) fn largest_new_weights(&self, config: &Config) -> u64 {
        if self.on_host() == 0 {
            return 0;
        }
        let reads = config.memory.optimizer_state == StateKind::Compact;
        let matrices = matrices_on_host(config).into_iter().flatten();
        let new = matrices.filter(|matrix| !(reads && matrix.narrow)).map(|matrix| matrix.bytes());
        new.max().unwrap_or_default().max(WIDE * config.model.inner() as u64)
    }

    pub(super) fn step_bytes(&self, config: &Config, ranks: usize) -> u64 {
        let (format, moments) = (format(config.memory.optimizer_state), moments(config.train.optimizer));
        // Rows in use, and in turn.
        let wide = self.wide - self.table + self.table.min(self.rows[1] + self.table.div_ceil(TURNS));
        let all = format.step_bytes(wide, moments, false) + format.step_bytes(self.narrow, moments, true);
        all.div_ceil(owners(config, ranks))
    }
}
