//! The memory that training holds and the bytes it spills, on any machine.
//!
//! Parts that cross the link most often per step spill last. Peaks are the ends of the forward pass (all activations)
//! and the backward pass (all gradients). A spilled weight leaves once a step: its host copy stays valid until its
//! update.

use std::ops::Range;

use exchange::Share;
use models::{Chunks, Footprint, InputForm, ParameterInfo};
use runs::config::{Config, ExchangeKind, OptimizerKind, ShardKind};

use super::exchanged::Exchanged;
use super::gathered::Gathered;
use super::learned::Learned;
use super::operations::Operations;
use super::placement::{Placement, largest_block_matrix};
use super::saved::moments_of;
use super::{NARROW, WIDE};
use crate::parameters::{Home, home};

/// Tensors of the MLP's width in a pass, besides the tape.
const WIDE_IN_PASS: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    WorkingMemory,
    RotaryTables,
    GroupSums,
    Gathered,
    Weights,
    /// Copied to the device every step, under any budget.
    Streamed,
    EmbeddingRows,
    LeavingGradients,
    Gradients,
    PartialSums,
    OwnGradients,
    Activations,
    /// In blocks that pass forward only.
    FrozenBelow,
    /// Copied to the host once, then only to the device.
    Frozen,
    NarrowCopies,
    OptimizerState,
}

impl Kind {
    /// In the plan's table and its JSON.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::WorkingMemory => "working memory",
            Self::RotaryTables => "rotary tables",
            Self::GroupSums => "a group's sums of gradients",
            Self::Gathered => "gathered weights",
            Self::Weights => "weights",
            Self::Streamed => "weights from the host",
            Self::EmbeddingRows => "rows of the embedding",
            Self::LeavingGradients => "gradients leaving",
            Self::Gradients => "gradients",
            Self::PartialSums => "partial sums of gradients",
            Self::OwnGradients => "a micro-batch's gradients",
            Self::Activations => "activations",
            Self::FrozenBelow => "weights, frozen below",
            Self::Frozen => "weights, frozen",
            Self::NarrowCopies => "narrow copies of weights",
            Self::OptimizerState => "optimizer state",
        }
    }

    /// The rank's own weights, which keep their host copies until an update.
    pub(super) fn is_weights(self) -> bool {
        matches!(self, Self::Weights | Self::Streamed | Self::FrozenBelow | Self::Frozen)
    }
}

/// Tensors with the same lifetime and traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) kind: Kind,
    /// Bytes at the end of the forward pass, and during updates.
    at: [u64; 2],
    /// Copies to the device per step and spilled byte.
    returns: u64,
    /// Copies per step to the host.
    leaves: u64,
}

impl Part {
    pub(super) fn bytes(&self) -> u64 {
        self.at[0].max(self.at[1])
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Demand {
    /// The first parts spill last.
    pub(super) parts: Vec<Part>,
    /// Upper estimate of the largest operation's bytes.
    pub(super) floor: u64,
    /// Bytes of an update in one operation; split if above the budget.
    one_pass_update: u64,
    /// Lower bound of the largest operation's bytes.
    pub(super) least: u64,
    pub(super) placement: Placement,
    pub(super) exchanged: Exchanged,
    /// Inputs of blocks that run twice, of all micro-batches under way.
    pub(super) kept_inputs: u64,
    /// Bytes of host-stepped weights that this rank keeps.
    streamed: u64,
    passes: Passes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Passes {
    pub(super) micro_batches: u64,
    pub(super) groups: u64,
    /// Micro-batches of the largest group.
    pub(super) together: u64,
    /// Micro-batches whose inputs are kept at once.
    pub(super) under_way: u64,
}

impl Passes {
    pub(super) fn new(config: &Config, ranks: usize) -> Self {
        let micro_batches = config.train.accumulate.div_ceil(ranks) as u64;
        let most = config.train.together.count().unwrap_or(1);
        let count = config.train.accumulate as u64;
        let ranks: Vec<_> = (0..ranks).map(|rank| Share { count, world: ranks, rank }.groups(most)).collect();
        let together = ranks.iter().flatten().map(ExactSizeIterator::len).max().unwrap_or(1) as u64;
        let groups = ranks.iter().map(Vec::len).max().unwrap_or(1) as u64;
        let stages = config.ranks.pipeline as u64;
        let under_way = if stages > 1 { stages.min(micro_batches) } else { together };
        Self { micro_batches, groups, together, under_way }
    }
}

/// Bytes of sums on the device while a group passes.
struct GroupSums {
    segment: u64,
    head: u64,
    /// Per step and spilled byte, each way.
    moves: u64,
}

impl GroupSums {
    fn new(config: &Config, footprint: &Footprint, passes: Passes) -> Self {
        let held = u64::from(passes.together.ilog2());
        let layers = config.model.n_layer;
        let blocks = config.train.recompute.unwrap_or(layers).clamp(1, layers);
        let learns = Learned::new(config, footprint);
        let segment = (learns.per_block * WIDE).saturating_mul(blocks as u64).saturating_mul(held);
        let head = learns.head_gradient_bytes(config).saturating_mul(held);
        let segments = layers.div_ceil(blocks) as u64;
        let moves = passes.micro_batches.saturating_mul(segments) / held.max(1);
        Self { segment, head, moves }
    }

    /// Beside `loss` bytes of working memory and all activations: the head's, or those of the last segment, whose
    /// blocks take `passing` bytes.
    fn early(&self, [loss, passing]: [u64; 2]) -> u64 {
        loss.saturating_add(self.head).max(passing.saturating_add(self.segment)) - loss
    }
}

struct UpdateBytes {
    /// Operands of one of its operations.
    named: u64,
    temporaries: u64,
    /// Operands of an update in one operation.
    one_pass: u64,
}

impl UpdateBytes {
    /// `stepped`: the largest parameter's bytes.
    fn new(config: &Config, placement: &Placement, operations: Operations, stepped: u64) -> Self {
        let rule = config.train.optimizer;
        // Muon and AdamW update tables differently from block matrices.
        let block_bytes = stepped.min(WIDE * largest_block_matrix(config));
        let (by_rule, table) = match rule {
            OptimizerKind::AdamW | OptimizerKind::Muon if stepped > block_bytes => (block_bytes, stepped),
            OptimizerKind::AdamW | OptimizerKind::Sgd => (stepped, 0),
            OptimizerKind::Muon => (stepped, placement.largest_table_on_device(config)),
        };
        let by_adamw = if rule == OptimizerKind::AdamW { by_rule.max(table) } else { table };
        Self {
            named: (operations.update_tensors(rule) * by_rule).max(operations.table_update_bytes(table)),
            temporaries: (operations.update_temporaries(rule) * by_rule)
                .max(operations.table_update_temporaries(table)),
            one_pass: operations.one_pass_update(by_adamw),
        }
    }
}

impl Demand {
    pub(super) fn new(config: &Config, footprint: &Footprint, ranks: usize, fused: bool) -> Self {
        let train = &config.train;
        let passes = Passes::new(config, ranks);
        let Passes { groups, together, under_way, .. } = passes;
        let (batch, sequence) = (train.micro_batch, config.sequence());
        let for_tokens = |each: u64| (batch as u64).saturating_mul(sequence as u64).saturating_mul(each);
        let hidden = for_tokens(config.model.inner() as u64 * WIDE);
        let operations = Operations::new(config, fused);
        let [attention, loss] = footprint.working_bytes(batch, sequence, Chunks::default());
        let pass_temporaries = hidden.saturating_mul(WIDE_IN_PASS).max(attention);
        let learns = Learned::new(config, footprint);
        let narrow = learns.narrow_copies(config, footprint);
        let added = for_tokens(learns.tape_per_token);
        let tape = for_tokens(learns.activation_bytes_per_token(config, footprint)).saturating_add(added);

        let (kept, kept_narrow, passing) = match train.recompute {
            None => (tape, narrow, pass_temporaries),
            Some(every) => {
                let segment = for_tokens(footprint.segment_bytes_per_token(every)).saturating_add(added);
                let inputs = tape - segment;
                let temporaries = hidden.saturating_mul(operations.block_temporaries()).max(attention);
                let kept = kept_inputs(config.memory.activations, inputs);
                // Waiting micro-batches keep the residual stream, which exact inputs include, and, if tied, the head's
                // gradient.
                let is_exact = config.memory.activations == InputForm::Computed;
                let stream = if is_exact { 0 } else { for_tokens(config.model.n_embd as u64 * WIDE) };
                let tied = learns.tied_gradient_bytes(config);
                let waiting = (under_way - 1).saturating_mul(stream.saturating_add(tied));
                let kept = kept.saturating_mul(under_way).saturating_add(waiting);
                (kept, 0, temporaries.saturating_add(segment).saturating_add(narrow))
            }
        };

        let placement = Placement::new(config);
        // Decoded weights are not kept.
        let kept_narrow = if placement.tiles[0] { 0 } else { kept_narrow };
        let coding = placement.coding_bytes(config, fused).max(learns.decoding_bytes(config));
        let coding_temporaries = placement.coding_temporaries(config);
        let decoded = placement.decoded_bytes(config) + learns.decoded_bytes(config);
        let [passing, late] =
            [passing.max(loss), passing].map(|bytes| bytes.saturating_add(decoded).max(coding_temporaries));

        let largest = placement.largest_tensor(config, footprint);
        let stepped = placement.largest_on_device(config, learns);
        let updates = UpdateBytes::new(config, &placement, operations, stepped);

        let gradients = placement.on_device * WIDE;
        let gathered = Gathered::new(config, ranks, passes);
        let elsewhere = gathered.elsewhere();
        let streamed = placement.weight_bytes() - elsewhere[1];
        let computed = placement.computed_bytes();
        // One segment's gradients and the embeddings': the head's waits for the tokens'; followers have their own.
        let leaving = match train.recompute {
            None => computed,
            Some(every) => {
                let segment = placement.block_gradients(every, config, footprint);
                let embeddings = if config.model.longest_match { 2 * largest } else { largest };
                computed.min(segment.saturating_add(embeddings))
            }
        };
        let group_sums = GroupSums::new(config, footprint, passes);
        let early_sums = group_sums.early([passing, late]);
        let named = placement.row_bytes() * together;
        let accumulated = if groups > 1 { gradients } else { 0 };
        let waiting = gradients.saturating_mul(sums_between(config, ranks, passes).saturating_sub(1));
        // Without recomputation, all gradients exist before their sum.
        let apart = if train.recompute.is_none() { accumulated } else { 0 };

        let has_owners = config.memory.shard.has_owners();
        // With divided moments, a rank keeps the sums of its own parameters.
        let summed = if has_owners { gradients.div_ceil(ranks as u64).max(stepped) } else { gradients };
        let segment_blocks = train.recompute.map_or(0, |every| every.min(config.model.n_layer) as u64);
        let window = learns.largest.max(segment_blocks * learns.per_block);

        let mlp = hidden.saturating_mul(operations.mlp_tensors());
        let in_pass = mlp.max(chunk_operands(footprint, operations, [batch, sequence]));
        let summands = if placement.on_device > 0 { passes.micro_batches } else { together };
        let summed_tensors = operations.sum_tensors(summands);
        let update_or_sum = updates.named.max(summed_tensors * learns.largest_sum(largest));
        // Initial weights are scaled in f32.
        let drawn = 2 * WIDE * footprint.largest_tensor;
        let all = placement.device_state_bytes();
        let state = if has_owners { most_owned(config, ranks, [all, stepped]) } else { all };

        let part = |kind, at, returns, leaves| Part { kind, at, returns, leaves };
        let parts = vec![
            part(Kind::WorkingMemory, [passing, late.max(updates.temporaries)], groups, groups),
            part(Kind::RotaryTables, [footprint.rotary_bytes(); 2], groups, 0),
            part(Kind::GroupSums, [early_sums, group_sums.segment], group_sums.moves, group_sums.moves),
            part(Kind::Gathered, [gathered.window; 2], 0, 0),
            part(Kind::Weights, [placement.on_device * WIDE - elsewhere[0]; 2], 2 * groups + 1, 1),
            part(Kind::Streamed, [streamed; 2], 2 * groups, 0),
            part(Kind::EmbeddingRows, [named, 0], groups, 0),
            part(Kind::LeavingGradients, [0, leaving.saturating_add(named)], 1, 1),
            part(Kind::Gradients, [accumulated, summed], groups, groups),
            part(Kind::PartialSums, [waiting, waiting.min(apart)], 1, 1),
            part(Kind::OwnGradients, [0, apart], groups - 1, groups - 1),
            part(Kind::Activations, [kept, 0], groups, groups),
            // Dropping a clean block costs no copy: it spills earlier.
            part(Kind::FrozenBelow, [learns.frozen_below; 2], groups, 0),
            part(Kind::Frozen, [learns.frozen; 2], 2 * groups, 0),
            part(Kind::NarrowCopies, [kept_narrow, 0], groups, groups),
            part(Kind::OptimizerState, [state; 2], 1, 1),
        ];
        Self {
            parts: parts.into_iter().filter(|part| part.bytes() > 0).collect(),
            floor: update_or_sum.max(in_pass).max(coding).max(drawn),
            one_pass_update: updates.one_pass,
            least: learns.least(largest, hidden),
            placement,
            streamed,
            passes,
            exchanged: Exchanged::new(config, (&placement, gathered), ranks, window),
            kept_inputs: inputs_of_segments(config, footprint, learns).saturating_mul(under_way),
        }
    }

    pub(super) fn groups(&self) -> u64 {
        self.passes.groups
    }

    pub(super) fn working_set(&self) -> u64 {
        let at =
            |moment: usize| self.parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.at[moment]));
        at(0).max(at(1))
    }

    pub(super) fn largest_operation(&self, budget: u64) -> u64 {
        if self.one_pass_update <= budget { self.floor.max(self.one_pass_update) } else { self.floor }
    }

    /// Bytes per step that leave the device and return, as `spilled` parts do.
    pub(super) fn moved(&self, spilled: &[u64]) -> [u64; 2] {
        let sum = |times: fn(&Part) -> u64| {
            let each = self.parts.iter().zip(spilled);
            each.fold(0_u64, |sum, (part, bytes)| sum.saturating_add(bytes.saturating_mul(times(part))))
        };
        [sum(|part| part.leaves), sum(|part| part.returns)]
    }

    /// Bytes per step over the link, in and out, without a limit and without `spilled` weights.
    pub(super) fn streamed(&self, spilled: &[u64]) -> [u64; 2] {
        let weights = self.streamed;
        let away = self.weights_away(spilled);
        let weights = (weights - away.min(weights)).saturating_add(self.named());
        [weights, self.placement.gradients_crossing(self.passes)]
    }

    fn named(&self) -> u64 {
        self.placement.row_bytes().saturating_mul(self.passes.micro_batches)
    }

    /// Weight bytes read to the host; `streamed` bytes have no copy there.
    pub(super) fn read(&self, config: &Config, ranks: usize, streamed: u64) -> u64 {
        self.placement.read_bytes(config, ranks).min(streamed.saturating_sub(self.named()))
    }

    pub(super) fn spilled(&self, budget: u64) -> Vec<u64> {
        let at_each = [0, 1].map(|moment| self.spilled_at(budget, moment));
        at_each[0].iter().zip(&at_each[1]).map(|(first, second)| *first.max(second)).collect()
    }

    fn spilled_at(&self, budget: u64, moment: usize) -> Vec<u64> {
        let mut room = budget;
        let parts = self.parts.iter().map(|part| {
            let stays = part.at[moment].min(room);
            room -= stays;
            part.at[moment] - stays
        });
        parts.collect()
    }

    /// Peak host bytes, without copies of tensors on the device. The last group's gradients mostly arrive after the
    /// activations' peak.
    pub(super) fn host_peak(&self, config: &Config, ranks: usize, budget: u64) -> u64 {
        let [forward, update] = [0, 1].map(|moment| self.spilled_at(budget, moment));
        let sum = |spilled: &[u64]| spilled.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let states = self.placement.state_bytes_on_host(config, ranks);
        let gradients = |groups: u64| self.placement.gradient_bytes_on_host(config, ranks, groups);
        let all_gradients = gradients(self.passes.groups);
        let early_gradients = if ranks == 1 {
            gradients(self.passes.groups - 1).max(self.gradients_leaving()).min(all_gradients)
        } else {
            all_gradients
        };
        let (early, optimizer) = (states + early_gradients, states + all_gradients);
        let all_read = self.placement.read_bytes(config, ranks);
        // New weights replace old ones; if divided, old ones stay until the broadcast.
        let divided = ranks > 1 && config.memory.shard == ShardKind::States;
        let away = if divided { 0 } else { self.weights_away(&update) };
        let before = sum(&update).saturating_add(all_read - all_read.min(away));
        let kept = if divided { before } else { all_read };
        let stepping = kept.saturating_add(self.placement.largest_new_weights(config));
        let at_update = optimizer.saturating_add(before.max(stepping));
        early.saturating_add(sum(&forward)).max(at_update)
    }

    fn gradients_leaving(&self) -> u64 {
        self.parts.iter().filter(|part| part.kind == Kind::LeavingGradients).map(Part::bytes).sum()
    }

    fn weights_away(&self, spilled: &[u64]) -> u64 {
        let parts = self.parts.iter().zip(spilled);
        parts.filter(|(part, _)| part.kind == Kind::Streamed).map(|(_, spilled)| *spilled).sum()
    }
}

/// Operand bytes of the largest operation on a chunk of attention or loss.
fn chunk_operands(footprint: &Footprint, operations: Operations, [batch, sequence]: [usize; 2]) -> u64 {
    let [scores, logits] = footprint.chunk_bytes(batch, sequence, Chunks::default());
    let [score_tensors, logit_tensors] = operations.chunk_tensors();
    scores.saturating_mul(score_tensors).max(logits.saturating_mul(logit_tensors))
}

/// Bytes of the inputs that one micro-batch keeps.
fn inputs_of_segments(config: &Config, footprint: &Footprint, learns: Learned) -> u64 {
    let tokens = (config.train.micro_batch as u64).saturating_mul(config.sequence() as u64);
    let each = |every: usize| learns.input_bytes_per_token(config, footprint, every);
    let bytes = tokens.saturating_mul(config.train.recompute.map_or(0, each));
    kept_inputs(config.memory.activations, bytes)
}

/// Bytes of inputs that take `bytes` in f32.
fn kept_inputs(form: InputForm, bytes: u64) -> u64 {
    match form {
        InputForm::Computed => bytes,
        InputForm::Bf16 => bytes / WIDE * NARROW,
        InputForm::Int8 => super::placement::in_tiles(bytes / WIDE),
    }
}

/// Moments on the device, `all` bytes, of the rank with most. Whole parameters are divided, of at most `stepped` bytes.
fn most_owned(config: &Config, ranks: usize, [all, stepped]: [u64; 2]) -> u64 {
    let (rule, even) = (config.train.optimizer, all.div_ceil(ranks as u64).max(2 * stepped));
    if rule != OptimizerKind::Muon {
        return even;
    }
    // Owners are balanced by elements, and tables have two moments.
    let parameters = config.model.parameters();
    let sizes: Vec<u64> = parameters.iter().map(ParameterInfo::elements).collect();
    let mut owned = vec![0; ranks];
    for (parameter, owner) in parameters.iter().zip(exchange::shards(&sizes, ranks)) {
        if home(config, parameter) == Home::Device {
            owned[owner] += WIDE * moments_of(parameter, rule);
        }
    }
    owned.into_iter().fold(even, u64::max)
}

/// In the rare exchange, ranks sum alone.
fn sums_held(config: &Config, ranks: usize) -> u64 {
    let micro_batches = config.train.accumulate as u64;
    match config.ranks.exchange {
        ExchangeKind::Rarely => sums_of_gradients(micro_batches.div_ceil(ranks as u64), 1),
        _ => sums_of_gradients(micro_batches, ranks),
    }
}

fn sums_between(config: &Config, ranks: usize, passes: Passes) -> u64 {
    if passes.together == 1 {
        return sums_held(config, ranks);
    }
    if ranks == 1 || config.ranks.exchange == ExchangeKind::Rarely {
        return sums_of_gradients(passes.groups, 1);
    }
    let (count, most) = (config.train.accumulate as u64, config.train.together.count().unwrap_or(1));
    let held = |rank| {
        let share = Share { count, world: ranks, rank };
        let after = |group: Range<usize>| share.held(group.end as u64) as u64;
        share.groups(most).into_iter().map(after).max().unwrap_or(0)
    };
    (0..ranks).map(held).max().unwrap_or(0)
}

/// At once: the rest are folded while the last one arrives.
pub(super) fn sums_of_gradients(micro_batches: u64, ranks: usize) -> u64 {
    if ranks == 1 {
        return partial_sums(micro_batches - 1);
    }
    let held = |rank| {
        let share = Share { count: micro_batches, world: ranks, rank };
        let own = share.range();
        (0..=own.end - own.start).map(|added| share.held(added)).max().unwrap_or(0) as u64
    };
    (0..ranks).map(held).max().unwrap_or(0)
}

pub(super) fn partial_sums(micro_batches: u64) -> u64 {
    u64::from((micro_batches + 1).ilog2())
}
