//! The memory that training holds and the bytes that spilling moves, whatever the machine.
//!
//! Two moments of a step decide. When a micro-batch's forward pass ends, all activations are alive; when its backward
//! pass ends and parameters are stepped, all gradients are. At either, parts keep their place on the device in the order
//! of what leaving would cost, and the rest spills. A part's price is how often each of its spilled bytes crosses the
//! link in a step; with everything spilled and one micro-batch that is 24 bytes in and 16 out per parameter under
//! `AdamW`. A weight leaves once a step however often it comes back: its host copy is valid until it is stepped.
//!
//! A parameter that is stepped on the host has neither moments nor updates on the device: its gradient leaves as it comes, and
//! its weights come in once a step, or as often as they are read where they have no room to stay.
//!
//! With weights, gradients and two moments alone, of which half or a quarter fits, this gives the bytes that
//! furthest-next-use eviction moves in a simulation of the same step.

use exchange::{OneBit, Share};
use models::{Chunks, Footprint};
use runs::config::{Config, CrossingKind, ExchangeKind, OptimizerKind};

use super::operations::Operations;
use super::placement::{Placement, in_blocks};

const WIDE: u64 = 4;

/// Tensors as wide as the MLP that a pass takes beside its tape.
const WIDE_IN_PASS: u64 = 4;

/// Tensors that live and move alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) what: &'static str,
    /// Bytes at the end of the forward pass, and while parameters are stepped.
    at: [u64; 2],
    /// Times that a spilled byte comes back in one step.
    pub(super) returns: u64,
    /// Times that it leaves by a copy.
    pub(super) leaves: u64,
}

impl Part {
    pub(super) fn bytes(&self) -> u64 {
        self.at[0].max(self.at[1])
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Demand {
    /// The one that stays longest first.
    pub(super) parts: Vec<Part>,
    /// Bytes of the most demanding single operation, estimated from above.
    pub(super) floor: u64,
    /// Bytes of an update that is one operation if the budget holds it.
    roomy_update: u64,
    /// Bytes that some single operation needs beyond doubt.
    pub(super) least: u64,
    pub(super) placement: Placement,
    pub(super) exchanged: Exchanged,
    rounds: u64,
}

/// Bytes of one step that ranks cost: sent by one to others, and over its link for that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Exchanged {
    pub(super) sent: u64,
    pub(super) link_in: u64,
    pub(super) link_out: u64,
    /// Bytes of host memory for residuals, the state of an outer optimizer or gradients under way, beside the host budget.
    pub(super) residuals: u64,
}

impl Exchanged {
    /// Where a rank holds so many `sums` of neighbouring micro-batches; `window` parameters are under way to an exact sum at once.
    fn of(config: &Config, placement: &Placement, ranks: usize, sums: u64, window: u64) -> Self {
        let others = ranks as u64 - 1;
        let share = |all: u64| all.div_ceil(ranks as u64);
        let on_device = placement.on_device * WIDE;
        // Everybody adds up a share of every gradient and tells it to the others.
        let all = placement.on_device + placement.on_host();
        let (part, residuals) = match config.ranks.exchange {
            // What is summed, and what the sums become.
            ExchangeKind::Exact => (share(all * WIDE), (sums + 1) * WIDE * window),
            // As if all parameters were one buffer. Each residual is there twice until its step is made.
            ExchangeKind::OneBit => {
                (OneBit::packed_bytes(share(all) as usize) as u64, 2 * WIDE * (all + share(all)))
            }
            ExchangeKind::Rarely => {
                // All weights once in so many steps. Those of the last outer step and its momentum stay on the host.
                let each = |bytes: u64| bytes.div_ceil(config.ranks.local_steps);
                return Self {
                    sent: each(2 * others * share(all * WIDE)),
                    link_in: each(on_device),
                    link_out: each(on_device),
                    residuals: 2 * WIDE * all,
                };
            }
        };
        let sent = 2 * others * part;
        let gradients = Self { sent, link_in: on_device, link_out: sums * on_device, residuals };
        if !config.memory.shard {
            return gradients;
        }
        // New weights that come from a host take the link on their way to the device, as they do without other ranks.
        let told = share(on_device);
        Self {
            // A sum is for one rank alone.
            sent: gradients.sent / 2 + others * share(on_device + placement.weight_bytes()),
            link_in: told + others * told,
            link_out: gradients.link_out + told,
            residuals,
        }
    }
}

/// The weights whose new values come from the host in every step, whatever has room.
const STREAMED: &str = "weights from the host";

/// Gradients on their way to the host.
const LEAVING: &str = "gradients leaving";

impl Demand {
    /// At one of so many ranks: at any, since which one has most of a part differs from part to part. `fused` devices make one
    /// kernel of several operations.
    pub(super) fn of(config: &Config, footprint: &Footprint, ranks: usize, fused: bool) -> Self {
        let train = &config.train;
        let rounds = train.accumulate.div_ceil(ranks) as u64;
        let (batch, sequence) = (train.micro_batch, config.sequence());
        let of_tokens = |each: u64| (batch as u64).saturating_mul(sequence as u64).saturating_mul(each);
        let hidden = of_tokens(config.model.inner() as u64 * WIDE);
        let operations = Operations::of(config, fused);
        let [attention, loss] = footprint.working_bytes(batch, sequence, Chunks::default());
        let beside_tape = hidden.saturating_mul(WIDE_IN_PASS).max(attention);
        let narrow = footprint.narrow_weight_bytes(train.recompute);
        let tape = of_tokens(footprint.activation_bytes_per_token(train.recompute));
        let (kept, kept_narrow, passing) = match train.recompute {
            None => (tape, narrow, beside_tape),
            Some(every) => {
                let segment = of_tokens(footprint.segment_bytes_per_token(every));
                let inputs = tape - segment;
                let in_tiles = config.memory.activations != CrossingKind::Computed;
                let beside_segment = hidden.saturating_mul(operations.beside_block()).max(attention);
                let kept = if in_tiles { inputs_in_tiles(inputs) } else { inputs };
                (kept, 0, beside_segment.saturating_add(segment).saturating_add(narrow))
            }
        };
        let placement = Placement::of(config, footprint);
        // What is decoded for each use leaves no copy.
        let kept_narrow = if placement.tiles[0] { 0 } else { kept_narrow };
        let (coding, beside_coding) =
            (placement.coding_bytes(config, fused), placement.beside_coding(config));
        // The loss is over when parameters are stepped.
        let [passing, late] = [passing.max(loss), passing]
            .map(|bytes| bytes.saturating_add(placement.decoded_bytes(config)).max(beside_coding));
        let sums = sums_held(config, ranks);
        let largest = placement.largest_tensor(config, footprint);
        let stepped = placement.largest_on_device(config, footprint);
        let rule = train.optimizer;
        // SGD has one way for all. Muon is for the matrices of blocks alone; AdamW steps tables in another way than these.
        let of_blocks = stepped.min(WIDE * in_blocks(config));
        let (by_rule, table) = match rule {
            OptimizerKind::AdamW | OptimizerKind::Muon if stepped > of_blocks => (of_blocks, stepped),
            OptimizerKind::AdamW | OptimizerKind::Sgd => (stepped, 0),
            OptimizerKind::Muon => (stepped, placement.largest_table_on_device(config)),
        };
        let stepping = (operations.beside_update(rule) * by_rule).max(operations.beside_table_update(table));
        let updating = (operations.of_update(rule) * by_rule).max(operations.of_table_update(table));
        let stepped_by_adamw = if rule == OptimizerKind::AdamW { by_rule.max(table) } else { table };
        let roomy_update = operations.roomy_update(stepped_by_adamw);
        let gradients = placement.on_device * WIDE;
        let streamed = placement.weight_bytes();
        let computed = placement.computed_bytes();
        // One segment's gradients at a time, and the embeddings': the head's wait for the tokens', and followers have their own.
        let leaving = match train.recompute {
            None => computed,
            Some(every) => {
                let segment = placement.gradients_of(every, config, footprint);
                let embeddings = if config.model.longest_match { 2 * largest } else { largest };
                computed.min(segment.saturating_add(embeddings))
            }
        };
        let named = placement.row_bytes();
        let accumulated = if rounds > 1 { gradients } else { 0 };
        let waiting = gradients.saturating_mul(sums.saturating_sub(1));
        // Without recomputation a micro-batch's gradients exist as a whole before they are added up.
        let apart = if train.recompute.is_none() { accumulated } else { 0 };

        // Ranks that divide moments keep only sums of gradients that they step.
        let summed =
            if config.memory.shard { gradients.div_ceil(ranks as u64).max(stepped) } else { gradients };
        let of_segment = train.recompute.map_or(0, |every| every.min(config.model.n_layer) as u64);
        let window = footprint.largest_tensor.max(of_segment * footprint.per_block);
        let [scores, logits] = footprint.chunk_bytes(batch, sequence, Chunks::default());
        let [of_scores, of_logits] = operations.of_chunk();
        let in_pass = hidden
            .saturating_mul(operations.of_mlp())
            .max(scores.saturating_mul(of_scores))
            .max(logits.saturating_mul(of_logits));
        let of_parameters = updating.max(Operations::OF_SUM * largest);
        // The first weights are drawn on the device and scaled there, whatever crosses the link later.
        let drawn = 2 * WIDE * footprint.largest_tensor;
        // Whole parameters are divided, so the largest one's are with somebody.
        let all = placement.device_state_bytes();
        let state = if config.memory.shard { all.div_ceil(ranks as u64).max(2 * stepped) } else { all };
        let part = |what, at, returns, leaves| Part { what, at, returns, leaves };
        let parts = vec![
            part("working memory", [passing, late.max(stepping)], rounds, rounds),
            part("rotary tables", [footprint.rotary_bytes(); 2], rounds, 0),
            part("weights", [placement.on_device * WIDE; 2], 2 * rounds + 1, 1),
            part(STREAMED, [streamed; 2], 2 * rounds, 0),
            part("rows of the embedding", [named, 0], rounds, 0),
            part(LEAVING, [0, leaving.saturating_add(named)], 1, 1),
            part("gradients", [accumulated, summed], rounds, rounds),
            part("partial sums of gradients", [waiting, waiting.min(apart)], 1, 1),
            part("a micro-batch's gradients", [0, apart], rounds - 1, rounds - 1),
            part("activations", [kept, 0], rounds, rounds),
            part("narrow copies of weights", [kept_narrow, 0], rounds, rounds),
            part("optimizer state", [state; 2], 1, 1),
        ];
        Self {
            parts: parts.into_iter().filter(|part| part.bytes() > 0).collect(),
            floor: of_parameters.max(in_pass).max(coding).max(drawn),
            roomy_update,
            least: largest.max(hidden).saturating_mul(2),
            placement,
            rounds,
            exchanged: if ranks > 1 {
                Exchanged::of(config, &placement, ranks, sums, window)
            } else {
                Exchanged::default()
            },
        }
    }

    /// Bytes at the worst moment.
    pub(super) fn working_set(&self) -> u64 {
        let at =
            |moment: usize| self.parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.at[moment]));
        at(0).max(at(1))
    }

    /// Bytes of the most demanding single operation under `budget`.
    pub(super) fn largest_operation(&self, budget: u64) -> u64 {
        if self.roomy_update <= budget { self.floor.max(self.roomy_update) } else { self.floor }
    }

    /// Bytes in and out of one step that cross the link although they have room: gradients that are wanted on the host, the
    /// weights made of them, and rows of the embedding. `spilled` weights are among what comes in anyway.
    pub(super) fn streamed(&self, spilled: &[u64]) -> [u64; 2] {
        let (weights, gradients) = (self.placement.weight_bytes(), self.placement.gradient_bytes());
        let away = self.weights_away(spilled);
        let weights = (weights - away.min(weights)).saturating_add(self.named());
        [weights, gradients.saturating_mul(self.rounds)]
    }

    /// Bytes of the embedding's rows that come in, where these come by themselves: in every micro-batch.
    fn named(&self) -> u64 {
        self.placement.row_bytes().saturating_mul(self.rounds)
    }

    /// Bytes of weights that are read for their steps, of `streamed` ones that come in and have no copy on the host.
    pub(super) fn read(&self, config: &Config, ranks: usize, streamed: u64) -> u64 {
        self.placement.read_bytes(config, ranks).min(streamed.saturating_sub(self.named()))
    }

    /// Bytes of each part that have no place under `budget` at one of the moments.
    pub(super) fn spilled(&self, budget: u64) -> Vec<u64> {
        let at_each = [0, 1].map(|moment| self.spilled_at(budget, moment));
        at_each[0].iter().zip(&at_each[1]).map(|(first, second)| *first.max(second)).collect()
    }

    /// The same at this moment.
    fn spilled_at(&self, budget: u64, moment: usize) -> Vec<u64> {
        let mut room = budget;
        let parts = self.parts.iter().map(|part| {
            let stays = part.at[moment].min(room);
            room -= stays;
            part.at[moment] - stays
        });
        parts.collect()
    }

    /// The most bytes that host memory holds at one time below `budget`, without copies of what is on the device. When all
    /// activations are alive a single micro-batch's gradients have not come, but for the first ones; when all have, activations are
    /// gone, and weights that steps read are on the host.
    pub(super) fn held_on_host(&self, config: &Config, ranks: usize, budget: u64) -> u64 {
        let [forward, update] = [0, 1].map(|moment| self.spilled_at(budget, moment));
        let sum = |spilled: &[u64]| spilled.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let optimizer = self.placement.host_bytes(config, ranks);
        let come_once = ranks == 1 && config.train.accumulate == 1;
        let late = self.placement.single_gradient_bytes().saturating_sub(self.gradients_leaving());
        let early = optimizer.saturating_sub(if come_once { late } else { 0 });
        let all_read = self.placement.read_bytes(config, ranks);
        // What is read takes the place of the old weights. Those of a parameter that is divided stay until its owner has told the new ones.
        let divided = ranks > 1 && config.memory.shard;
        let away = if divided { 0 } else { self.weights_away(&update) };
        let before = sum(&update).saturating_add(all_read - all_read.min(away));
        let kept = if divided { before } else { all_read };
        let stepping = kept.saturating_add(self.placement.largest_new_weights(config));
        let at_update = optimizer.saturating_add(before.max(stepping));
        early.saturating_add(sum(&forward)).max(at_update)
    }

    fn gradients_leaving(&self) -> u64 {
        self.parts.iter().filter(|part| part.what == LEAVING).map(Part::bytes).sum()
    }

    fn weights_away(&self, spilled: &[u64]) -> u64 {
        let parts = self.parts.iter().zip(spilled);
        parts.filter(|(part, _)| part.what == STREAMED).map(|(_, spilled)| *spilled).sum()
    }
}

/// Bytes in tiles of eight bits for so many bytes of f32.
fn inputs_in_tiles(bytes: u64) -> u64 {
    super::placement::in_tiles(bytes / WIDE)
}

/// The same under `config`. Ranks that step apart each add up their own, as if they were alone.
fn sums_held(config: &Config, ranks: usize) -> u64 {
    let micro_batches = config.train.accumulate as u64;
    match config.ranks.exchange {
        ExchangeKind::Rarely => sums_of_gradients(micro_batches.div_ceil(ranks as u64), 1),
        _ => sums_of_gradients(micro_batches, ranks),
    }
}

/// Most sums of neighbours that some rank holds at a time. A process that is alone adds up all that are left as the last
/// micro-batch comes in.
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

/// Most sums of neighbours that are held while so many micro-batches come in, which are added pairwise.
pub(super) fn partial_sums(micro_batches: u64) -> u64 {
    u64::from((micro_batches + 1).ilog2())
}

/// Bytes that the optimizer remembers from step to step.
pub(super) fn state_bytes(optimizer: OptimizerKind, footprint: &Footprint) -> u64 {
    match optimizer {
        OptimizerKind::AdamW => footprint.adamw_bytes(),
        OptimizerKind::Muon => footprint.adamw_bytes() - footprint.hidden_matrices * WIDE,
        OptimizerKind::Sgd => footprint.weight_bytes(),
    }
}
