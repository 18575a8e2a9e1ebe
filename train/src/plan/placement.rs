//! Parameters by where they are stepped, and what those on the host take there.

use models::tiles::{AT_ONCE, DECODED_AT_ONCE, TILE};
use models::{Compute, Footprint};
use runs::config::{Config, CrossingKind, ExchangeKind, OptimizerKind, PlacementKind, StateKind, StreamKind};

use super::demand::partial_sums;
use crate::optimizer::{come_by_rows, format};

const WIDE: u64 = 4;
const NARROW: u64 = 2;

/// Bytes of a row's count of steps.
const COUNT: u64 = 4;

/// Steps in which every row of an embedding that comes by rows has its turn.
const TURNS: u64 = 64;

/// Tensors in f32 of one step that makes tiles of numbers, and of one that makes numbers of tiles.
const TENSORS_PER_CODING: u64 = 3;
const TENSORS_PER_DECODING: u64 = 2;

/// Counts of parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) on_device: u64,
    /// Parameters on the device that have two moments.
    with_two_moments: u64,
    /// Stepped on the host, in f32 on the device too.
    pub(super) wide: u64,
    /// Stepped on the host, in bf16 on the device.
    pub(super) narrow: u64,
    /// Wide ones in an embedding that comes to the device by rows.
    table: u64,
    /// The most of these that one micro-batch names, and that a step does.
    rows: [u64; 2],
    /// Whether the optimizer keeps one velocity per parameter on the host, instead of two moments.
    velocity: bool,
    /// Parameters on the host that are in the blocks' matrices, and bytes of one of them where the device computes with it.
    matrices: u64,
    computed: u64,
    /// Whether the weights of these come to the device in tiles of eight bits, and whether their gradients leave it so.
    pub(super) tiles: [bool; 2],
}

/// A matrix that may be stepped on the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix {
    pub(super) sides: [usize; 2],
    /// Whether the device computes with it in bf16.
    pub(super) narrow: bool,
}

impl Matrix {
    /// Its bytes on the device.
    pub(super) fn bytes(&self) -> u64 {
        let [rows, columns] = self.sides.map(|side| side as u64);
        rows.saturating_mul(columns).saturating_mul(if self.narrow { NARROW } else { WIDE })
    }
}

/// Matrices of one block, and those outside of blocks without a table that comes by rows.
pub(super) fn matrices_on_host(config: &Config) -> [Vec<Matrix>; 2] {
    let (model, narrow) = (&config.model, config.model.compute == Compute::Bf16);
    let of_block = model.block_matrices().into_iter().map(|sides| Matrix { sides, narrow });
    let outer = model.outer_matrices().into_iter();
    let outer = outer.filter(|(name, _)| *name != "wte" || !come_by_rows(config));
    let outer = outer.map(|(name, sides)| Matrix { sides, narrow: narrow && name == "lm_head" });
    [of_block.collect(), outer.collect()]
}

/// Bytes of so many numbers in tiles: 128 of a byte each have a scale of four.
pub(super) fn in_tiles(numbers: u64) -> u64 {
    numbers + numbers / 32
}

/// Numbers in the largest matrix of a block.
pub(super) fn in_blocks(config: &Config) -> u64 {
    let model = &config.model;
    (model.n_embd * model.inner().max(model.n_embd)) as u64
}

impl Placement {
    pub(super) fn of(config: &Config, footprint: &Footprint) -> Self {
        let (all, matrices) = (footprint.parameters, footprint.hidden_matrices);
        let velocity = config.train.optimizer == OptimizerKind::Sgd;
        let muons = if config.train.optimizer == OptimizerKind::Muon { matrices } else { 0 };
        if config.memory.optimizer != PlacementKind::Host {
            let with_two_moments = if velocity { 0 } else { all - muons };
            return Self { on_device: all, with_two_moments, ..Self::default() };
        }
        let (blocks, layers) = (config.memory.device_blocks as u64, config.model.n_layer as u64);
        let (kept, kept_matrices) = (blocks * footprint.per_block, blocks * (matrices / layers));
        let beside_muon = if muons > 0 { kept - kept_matrices } else { kept };
        let with_two_moments = if velocity { 0 } else { beside_muon };
        let on_device = muons + beside_muon;
        let head = if config.model.tie_word_embeddings {
            0
        } else {
            config.model.vocab_size as u64 * config.model.n_embd as u64
        };
        let matrices = matrices - kept_matrices.max(muons);
        let (narrow, computed) = match config.model.compute {
            Compute::Bf16 => (matrices + head, NARROW),
            Compute::F32 | Compute::F16 => (0, WIDE),
        };
        let memory = &config.memory;
        let tiles = [memory.stream != StreamKind::Computed, memory.gradients != CrossingKind::Computed];
        let wide = all - on_device - narrow;
        // A table that comes by rows is as large as the head.
        let table = if come_by_rows(config) { head } else { 0 };
        let tokens = (config.train.micro_batch * config.sequence() * config.model.n_embd) as u64;
        let rows = [1, config.train.accumulate as u64].map(|each| table.min(tokens.saturating_mul(each)));
        Self { on_device, with_two_moments, wide, narrow, table, rows, velocity, matrices, computed, tiles }
    }

    /// Bytes of the moments of what is stepped on the device.
    pub(super) fn device_state_bytes(&self) -> u64 {
        (self.on_device + self.with_two_moments) * WIDE
    }

    /// Bytes of the largest parameter that is stepped on the device.
    pub(super) fn largest_on_device(&self, config: &Config, footprint: &Footprint) -> u64 {
        WIDE * match (self.on_host(), self.on_device) {
            (0, _) => footprint.largest_tensor,
            (_, 0) => 0,
            _ => in_blocks(config),
        }
    }

    /// Bytes of the largest table of embeddings, if those are stepped on the device.
    pub(super) fn largest_table_on_device(&self, config: &Config) -> u64 {
        let rows = config.model.vocab_size.max(config.model.n_positions) as u64;
        if self.on_host() == 0 { WIDE * rows * config.model.n_embd as u64 } else { 0 }
    }

    pub(super) fn on_host(&self) -> u64 {
        self.wide + self.narrow
    }

    /// Bytes of the parameters that are stepped on the host as the device computes with them, without those that come by rows.
    pub(super) fn computed_bytes(&self) -> u64 {
        (self.wide - self.table) * WIDE + self.narrow * NARROW
    }

    /// Bytes on the device of the parameters that are stepped on the host, without those that come by rows.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.crossing(self.tiles[0])
    }

    /// The most bytes of the embedding's rows that a micro-batch names, where these come by themselves; as many as of their
    /// gradient.
    pub(super) fn row_bytes(&self) -> u64 {
        self.rows[0] * WIDE
    }

    /// Bytes of all gradients as they leave.
    pub(super) fn gradient_bytes(&self) -> u64 {
        self.crossing(self.tiles[1]) + self.row_bytes()
    }

    /// Bytes of one micro-batch's gradients as they wait on the host.
    pub(super) fn single_gradient_bytes(&self) -> u64 {
        self.computed_bytes() + self.row_bytes()
    }

    fn crossing(&self, tiles: bool) -> u64 {
        let saved = if tiles { self.matrices * self.computed - in_tiles(self.matrices) } else { 0 };
        self.computed_bytes() - saved
    }

    /// Bytes of the most demanding operation that makes numbers of tiles or tiles of numbers. Devices that fuse have one kernel for
    /// the former; elsewhere a matrix is taken in pieces, and put together.
    pub(super) fn coding_bytes(&self, config: &Config, fused: bool) -> u64 {
        let numbers = self.largest_matrix(config);
        let of_piece = |tensors: u64, most: usize| tensors * WIDE * numbers.min((most * TILE) as u64);
        let decoded = self.computed * numbers;
        let decoding = if fused {
            in_tiles(numbers) + decoded
        } else {
            of_piece(TENSORS_PER_DECODING, DECODED_AT_ONCE).max(2 * decoded)
        };
        let encoding = of_piece(TENSORS_PER_CODING, AT_ONCE);
        let [comes, leaves] = self.tiles;
        (if comes { decoding } else { 0 }).max(if leaves { encoding } else { 0 })
    }

    /// Bytes that live beside a gradient while it becomes tiles, when smaller ones have left, and beside tiles while they become
    /// numbers.
    pub(super) fn beside_coding(&self, config: &Config) -> u64 {
        if self.tiles == [false; 2] {
            0
        } else {
            WIDE * self.largest_matrix(config).min((AT_ONCE * TILE) as u64)
        }
    }

    /// Bytes of the gradients of so many blocks, as wide as the weights that the device computes with.
    pub(super) fn gradients_of(&self, blocks: usize, config: &Config, footprint: &Footprint) -> u64 {
        let matrices = footprint.hidden_matrices / config.model.n_layer as u64;
        let vectors = footprint.per_block - matrices;
        let each = vectors.saturating_mul(WIDE).saturating_add(matrices.saturating_mul(self.computed));
        each.saturating_mul(blocks as u64)
    }

    /// Bytes of the matrix that is there for its use alone, and of its gradient.
    pub(super) fn decoded_bytes(&self, config: &Config) -> u64 {
        if self.tiles[0] { 2 * self.computed * self.largest_matrix(config) } else { 0 }
    }

    fn largest_matrix(&self, config: &Config) -> u64 {
        if self.matrices == 0 { 0 } else { in_blocks(config) }
    }

    /// Bytes on the device of the largest parameter.
    pub(super) fn largest_tensor(&self, config: &Config, footprint: &Footprint) -> u64 {
        let (all, model) = (footprint.largest_tensor, &config.model);
        if self.narrow == 0 || self.on_device > 0 {
            return all * WIDE;
        }
        let named = self.rows[0] / model.n_embd as u64;
        let vocabulary = if self.table > 0 && !model.longest_match { named } else { model.vocab_size as u64 };
        let rows = vocabulary.max(model.n_positions as u64);
        (all * NARROW).max((rows * model.n_embd as u64).min(all) * WIDE)
    }

    /// Numbers in the largest parameter that may be stepped on the host: a table of embeddings, or a matrix of a block.
    fn largest_on_host(&self, config: &Config) -> u64 {
        let rows = config.model.vocab_size.max(config.model.n_positions) as u64;
        self.on_host().min(in_blocks(config).max(rows * config.model.n_embd as u64))
    }

    /// Bytes of host memory: the states, and one gradient of each parameter that waits for its step. Blocks that share bases
    /// end with a tensor, which this leaves out.
    pub(super) fn host_bytes(&self, config: &Config, ranks: usize) -> u64 {
        let format = format(config.memory.optimizer_state);
        let micro_batches = config.train.accumulate.div_ceil(ranks);
        let waiting = partial_sums(micro_batches as u64);
        let largest = self.largest_on_host(config);
        // A single gradient is as wide as its weights; a sum is in f32. The last micro-batch's leave for other ranks as they come.
        let leaves = ranks > 1 && config.ranks.exchange == ExchangeKind::Exact;
        let single = match micro_batches {
            1 if leaves => WIDE * largest,
            _ if waiting > 1 || micro_batches == 1 => self.single_gradient_bytes(),
            _ => 0,
        };
        let own_sums = if micro_batches > 1 { waiting.saturating_sub(1).max(1) } else { 0 };
        // What ranks make of their gradients names no rows.
        let of_rows = if ranks > 1 { self.table } else { self.rows[1] };
        let sum = (self.on_host() - self.table + of_rows) * WIDE;
        // The sum of all ranks is in f32, too. Who owns a parameter alone keeps it.
        let of_all = match (ranks, config.memory.shard) {
            (1, _) => 0,
            (_, false) => sum,
            (_, true) => sum.div_ceil(owners(config, ranks)).max(WIDE * largest),
        };
        let gradients = single + (own_sums * sum).max(of_all);
        let states = |wide, narrow| {
            if self.velocity {
                format.velocity_bytes(wide + narrow)
            } else {
                format.host_bytes(wide, false) + format.host_bytes(narrow, true)
            }
        };
        let all = states(self.wide, self.narrow);
        // Each row of a table counts the steps it has taken.
        let counts = if self.table > 0 { COUNT * config.model.vocab_size as u64 } else { 0 };
        // Whole parameters are divided, so somebody has the largest one's.
        all.div_ceil(owners(config, ranks)).max(states(largest, 0)) + gradients + counts
    }
}

/// Ranks that divide the parameters.
fn owners(config: &Config, ranks: usize) -> u64 {
    if config.memory.shard { ranks as u64 } else { 1 }
}

impl Placement {
    /// Bytes of weights that are read to the host for their step, and stay there until they are new.
    pub(super) fn read_bytes(&self, config: &Config, ranks: usize) -> u64 {
        let read = config.memory.optimizer_state == StateKind::Compact;
        if read { (self.narrow * NARROW).div_ceil(owners(config, ranks)) } else { 0 }
    }

    /// Bytes of the largest new weights that a step on the host takes room for while its gradient is there: all but those that are
    /// written over weights that were read.
    pub(super) fn largest_new_weights(&self, config: &Config) -> u64 {
        if self.on_host() == 0 {
            return 0;
        }
        let reads = config.memory.optimizer_state == StateKind::Compact;
        let matrices = matrices_on_host(config).into_iter().flatten();
        let new = matrices.filter(|matrix| !(reads && matrix.narrow)).map(|matrix| matrix.bytes());
        new.max().unwrap_or_default().max(WIDE * config.model.inner() as u64)
    }

    /// Bytes of host memory that the steps on the host read and write.
    pub(super) fn step_bytes(&self, config: &Config, ranks: usize) -> u64 {
        let format = format(config.memory.optimizer_state);
        // Rows that a step names, and those whose turn it is.
        let wide = self.wide - self.table + self.table.min(self.rows[1] + self.table.div_ceil(TURNS));
        let all = if self.velocity {
            let computed = wide * WIDE + self.narrow * NARROW;
            2 * (computed + format.velocity_bytes(wide + self.narrow))
        } else {
            format.step_bytes(wide, false) + format.step_bytes(self.narrow, true)
        };
        all.div_ceil(owners(config, ranks))
    }
}
