//! The plan of a run, from its configuration and a few numbers of the machine.
//!
//! It uses no device: the machine may be only described. Estimates of memory are rather too high.

mod checkpoints;
mod choice;
mod demand;
mod described_machine;
mod exchange_time;
mod exchanged;
mod gathered;
mod learned;
mod machine;
mod measured;
mod operations;
mod placement;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod recorded;
mod refusal;
mod replay;
mod saved;
mod stage;
mod states_on_disk;
mod table;
#[cfg(test)]
mod tests;
mod together;

pub(crate) use choice::placed;
pub(crate) use described_machine::{DescribedMachine, link_between};
pub(crate) use machine::{Machine, Measurement};
pub(crate) use measured::Measured;
pub(crate) use states_on_disk::StatesOnDisk;

use demand::Demand;
use exchange_time::ExchangeTime;
use exchanged::Exchanged;
use learned::Learned;
use models::Footprint;
use replay::Replayed;
use runs::BadInput;
use runs::config::{Amount, Config, RanksSection, Together};
use serde::Serialize;
use stage::OfRank;

use crate::parameters::learning;

/// Bytes of an f32.
const WIDE: u64 = 4;
/// Bytes of a bf16.
const NARROW: u64 = 2;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Plan {
    pub(crate) machine: Machine,
    pub(crate) parameters: u64,
    pub(crate) learning: u64,
    pub(crate) steps: u64,
    pub(crate) micro_batch: usize,
    pub(crate) accumulate: usize,
    pub(crate) together: usize,
    pub(crate) sequence: usize,
    pub(crate) tokens_per_step: u64,
    pub(crate) tokens: u64,
    /// Includes recomputation.
    pub(crate) flops_per_step: f64,
    pub(crate) flops: f64,
    /// Parts of the memory; the first spill last.
    pub(crate) held: Vec<Held>,
    /// Among the activations: inputs of blocks that run twice, of all micro-batches that pass together.
    pub(crate) kept_inputs: u64,
    /// Peak bytes on all tiers.
    pub(crate) working_set: u64,
    pub(crate) stays: u64,
    pub(crate) spills: u64,
    /// Upper estimate of the largest operation's bytes, under any budget.
    pub(crate) floor: u64,
    /// The same under the planned budget.
    pub(crate) largest_operation: u64,
    pub(crate) bytes_in_per_step: u64,
    pub(crate) bytes_out_per_step: u64,
    /// By a rank, the mean of all.
    pub(crate) bytes_sent_per_step: u64,
    /// Seconds of the busiest rank's network card, one way, beside arithmetic; `None` without the speed between ranks.
    pub(crate) send_seconds: Option<f64>,
    /// Host bytes outside the budget: residuals, outer optimizer, gradients in flight.
    pub(crate) residual_bytes: u64,
    /// Share of a step that a rank of a pipeline idles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bubble: Option<f64>,
    /// Over ranks whose link is known.
    #[serde(skip)]
    exchange: Option<ExchangeTime>,
    #[serde(skip)]
    ranks: RanksSection,
    /// Seconds per step for a rank's arithmetic without copies.
    pub(crate) compute_seconds: Option<f64>,
    /// Step time over `compute_seconds` if arithmetic hides all copies.
    pub(crate) slowdown_hidden: Option<f64>,
    /// The same if no copy is hidden.
    pub(crate) slowdown_waiting: Option<f64>,
    /// Tokens per step from which arithmetic hides all copies.
    pub(crate) break_even_tokens: Option<u64>,
    /// First blocks updated on the device, with the optimizer on the host.
    pub(crate) device_blocks: usize,
    /// Includes waiting gradients and weights.
    pub(crate) optimizer_host_bytes: u64,
    pub(crate) optimizer_disk_bytes: u64,
    #[serde(skip)]
    pub(crate) states_on_disk: StatesOnDisk,
    pub(crate) optimizer_step_bytes: u64,
    /// Bytes spilled to the disk.
    pub(crate) sinks: u64,
    pub(crate) disk_written_per_step: u64,
    pub(crate) disk_read_per_step: u64,
    /// `None` if the disk speed is unknown.
    pub(crate) disk_seconds: Option<f64>,
    pub(crate) disk_endurance: Option<u64>,
    /// Peak host bytes of optimizer and spilled tensors.
    pub(crate) host_least: u64,
    /// Includes droppable host copies of device tensors.
    pub(crate) host_tier_bytes: u64,
    /// Includes device bytes if the memory is shared.
    pub(crate) host_bytes: u64,
    pub(crate) checkpoint_bytes: u64,
    /// Beside a checkpoint, all ranks together.
    pub(crate) own_bytes: u64,
    #[serde(skip)]
    own_files: u64,
    /// The most at once, including the one being written.
    pub(crate) checkpoints: u64,
    /// Upper limit; `None` without an index or a known text size.
    pub(crate) index_bytes: Option<u64>,
    pub(crate) disk_bytes: u64,
    /// `None` before the shards exist.
    pub(crate) data: Option<Epoch>,
    pub(crate) replayed: Option<Replayed>,
    #[serde(skip)]
    looks_up: bool,
    #[serde(skip)]
    has_adapters: bool,
    refusals: Vec<String>,
    notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Epoch {
    pub(crate) sequences: u64,
    pub(crate) counted_targets: u64,
    /// Counted targets in some sequence.
    pub(crate) seen_targets: u64,
    pub(crate) tokens: u64,
}

/// Upper limit; usually about seven.
const INDEX_BYTES_PER_TOKEN: u64 = 8;

impl Epoch {
    pub(crate) fn new(sequences: u64, targets: tokenizer::Targets, tokens: u64) -> Self {
        Self { sequences, counted_targets: targets.counted, seen_targets: targets.seen, tokens }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Held {
    pub(crate) what: &'static str,
    pub(crate) bytes: u64,
    pub(crate) stays: u64,
    pub(crate) spills: u64,
}

/// FLOPs per token, forward and backward, without frozen weights' gradients, adapters' own FLOPs, and the backward pass
/// below all that learns.
pub(crate) fn flops_per_token(config: &Config, footprint: &Footprint, recompute: bool) -> f64 {
    let time = config.sequence();
    let saved = Learned::new(config, footprint).saved_flops_per_token(footprint, time, recompute);
    footprint.flops_per_token(time, recompute) - saved
}

struct DiskTraffic {
    written: u64,
    read: u64,
    seconds: Option<f64>,
}

impl DiskTraffic {
    /// Blocks on the disk move as often as those in host memory; `states` once each way.
    fn estimate(
        machine: &Machine,
        [sinks, states]: [u64; 2],
        spills: u64,
        [leaves, returns]: [u64; 2],
    ) -> Self {
        let share = sinks as f64 / spills.max(1) as f64;
        let moved = [leaves, returns].map(|bytes| ((bytes as f64 * share) as u64).saturating_add(states));
        Self::from_bytes(machine, moved)
    }

    fn from_bytes(machine: &Machine, [written, read]: [u64; 2]) -> Self {
        let seconds = match machine.disk_bytes_per_second {
            _ if written == 0 && read == 0 => Some(0.0),
            Some([write_speed, read_speed]) => Some(written as f64 / write_speed + read as f64 / read_speed),
            None => None,
        };
        Self { written, read, seconds }
    }
}

struct LowerTiers {
    states_on_disk: StatesOnDisk,
    optimizer_host_bytes: u64,
    optimizer_disk_bytes: u64,
    sinks: u64,
    disk: DiskTraffic,
}

impl LowerTiers {
    /// Divides `optimizer` and `spills` between host and disk. `in_flight` bytes pass the host, `pinned` stay; `moved`
    /// is per step.
    fn divide(
        config: &Config,
        machine: &Machine,
        optimizer: u64,
        (spills, in_flight, pinned): (u64, u64, u64),
        moved: [u64; 2],
    ) -> Self {
        let pinned = pinned.min(spills);
        let (spills, optimizer) = (spills - pinned, optimizer.saturating_add(pinned));
        let (states_on_disk, state) = StatesOnDisk::choose(config, machine, optimizer, spills, in_flight);
        let optimizer_host_bytes = optimizer.saturating_sub(state.in_memory).saturating_add(state.passing());
        let host_room = machine.host_budget.unwrap_or(u64::MAX).saturating_sub(optimizer_host_bytes);
        let disk_room = machine.disk_budget.saturating_sub(state.on_disk);
        let sinks = spills.saturating_sub(host_room).min(disk_room);
        let disk = DiskTraffic::estimate(machine, [sinks, state.on_disk], spills, moved);
        let optimizer_disk_bytes = state.on_disk;
        let optimizer_host_bytes = optimizer_host_bytes - pinned;
        Self { states_on_disk, optimizer_host_bytes, optimizer_disk_bytes, sinks, disk }
    }
}

struct WeightReads {
    read: u64,
    /// Host bytes of weights also on the device.
    kept: u64,
    /// Weights only on the host, which never go to the disk.
    pinned: u64,
    copies: u64,
}

impl WeightReads {
    fn new(config: &Config, machine: &Machine, demand: &Demand, streamed: u64, spilled: &[u64]) -> Self {
        let ranks = machine.ranks();
        // An unchanged weight keeps its host copy.
        let weights = demand.parts.iter().zip(spilled).filter(|(part, _)| part.kind.is_weights());
        let copies: u64 = weights.map(|(part, &spills)| spills.min(part.bytes() - spills)).sum();
        // Host copies need no link. All weights are read before the first update.
        let read = demand.read(config, ranks, streamed.saturating_sub(copies));
        let kept = demand.read(config, ranks, streamed);
        let pinned = demand.read(config, ranks, u64::MAX) - kept;
        Self { read, kept, pinned, copies: copies.saturating_sub(kept - read) }
    }
}

fn host_least(config: &Config, machine: &Machine, demand: &Demand, all: u64) -> u64 {
    // When a block or state moves to the disk is unknown.
    if machine.disk_budget > 0 {
        return all;
    }
    demand.host_peak(config, machine.ranks(), machine.device_budget.unwrap_or(u64::MAX))
}

fn held(parts: &[demand::Part], spilled: &[u64]) -> Vec<Held> {
    let parts = parts.iter().zip(spilled);
    parts
        .map(|(part, &spills)| {
            let bytes = part.bytes();
            Held { what: part.kind.label(), bytes, stays: bytes - spills, spills }
        })
        .collect()
}

impl Plan {
    pub(crate) fn new(config: &Config, footprint: &Footprint, machine: &Machine) -> Self {
        match config.train.together {
            Together::Auto => together::chosen(config, footprint, machine),
            Together::Count(_) => Self::with_count(config, footprint, machine),
        }
    }

    fn with_count(config: &Config, footprint: &Footprint, machine: &Machine) -> Self {
        let OfRank { config: own, footprint: own_footprint, machine: among, crossing, waiting, time, bubble } =
            &OfRank::new(config, footprint, machine);
        let (ranks, budget) = (among.ranks(), machine.device_budget.unwrap_or(u64::MAX));
        let demand = Demand::new(own, own_footprint, ranks, machine.fuses());
        let spilled = demand.spilled(budget);
        let [streamed_in, streamed_out] = demand.streamed(&spilled);
        let Exchanged { sent, carried, exact, link_in, link_out, residuals } =
            demand.exchanged.beside(*crossing, *waiting);
        let [leaves, returns] = demand.moved(&spilled);
        let bytes_in = returns.saturating_add(streamed_in).saturating_add(link_in);
        let WeightReads { read, kept, pinned, copies } =
            WeightReads::new(own, among, &demand, streamed_in, &spilled);
        let bytes_out = leaves.saturating_add(streamed_out).saturating_add(read).saturating_add(link_out);

        let all_on_host = demand.placement.host_bytes(own, ranks).saturating_add(kept);
        let (working_set, checkpoints) = (demand.working_set(), checkpoints::most(config));
        let (checkpoint_bytes, own_bytes) =
            (saved::checkpoint_bytes(config), saved::own_bytes(config, machine.ranks()));
        let own_files = checkpoints::own_files(config);
        let (stays, spills) = (working_set.min(budget), working_set.saturating_sub(budget));
        let LowerTiers { states_on_disk, optimizer_host_bytes, optimizer_disk_bytes, sinks, disk } =
            LowerTiers::divide(own, among, all_on_host, (spills, demand.least, pinned), [leaves, returns]);

        let tokens_per_step = config.tokens_per_step();
        let flops_per_step =
            flops_per_token(config, footprint, config.train.recompute.is_some()) * tokens_per_step as f64;
        let compute_seconds = machine.flops_per_second.map(|speed| flops_per_step * time / speed);
        let times_compute = |bytes: u64| {
            let seconds = if bytes == 0 { 0.0 } else { bytes as f64 / machine.link_bytes_per_second? };
            Some(seconds / compute_seconds?)
        };

        let disk_share = disk.seconds.unwrap_or(0.0) / compute_seconds.unwrap_or(f64::INFINITY);
        let link_share = times_compute(bytes_in.max(bytes_out));
        let hidden = link_share.map(|share| share.max(disk_share));
        let in_turn = times_compute(bytes_in.saturating_add(bytes_out)).map(|share| share + disk_share);
        let on_host = (spills - sinks).saturating_add(optimizer_host_bytes);
        let host_least = host_least(own, among, &demand, on_host);
        let host_tier_bytes = host_least.saturating_add(if sinks > 0 { 0 } else { copies });
        let host_bytes = host_tier_bytes + residuals + if machine.shares_host { stays } else { 0 };

        let mut plan = Self {
            machine: machine.clone(),
            parameters: footprint.parameters,
            learning: learning(config),
            steps: config.train.steps,
            micro_batch: config.train.micro_batch,
            accumulate: config.train.accumulate,
            together: config.train.together.count().unwrap_or(1),
            sequence: config.sequence(),
            tokens_per_step,
            tokens: tokens_per_step * config.train.steps,
            flops_per_step,
            flops: flops_per_step * config.train.steps as f64,
            held: held(&demand.parts, &spilled),
            kept_inputs: demand.kept_inputs,
            working_set,
            stays,
            spills,
            floor: demand.floor,
            largest_operation: demand.largest_operation(budget),
            bytes_in_per_step: bytes_in,
            bytes_out_per_step: bytes_out,
            bytes_sent_per_step: sent,
            send_seconds: machine.send_seconds(carried),
            residual_bytes: residuals,
            bubble: *bubble,
            exchange: ExchangeTime::new(config, machine, [carried, exact], compute_seconds, demand.groups()),
            ranks: config.ranks.clone(),
            compute_seconds,
            slowdown_hidden: hidden.map(|share| share.max(1.0)),
            slowdown_waiting: in_turn.map(|share| 1.0 + share),
            break_even_tokens: link_share.map(|share| (share * tokens_per_step as f64) as u64),
            device_blocks: config.memory.device_blocks,
            optimizer_host_bytes,
            optimizer_disk_bytes,
            states_on_disk,
            optimizer_step_bytes: demand.placement.step_bytes(own, ranks),
            sinks,
            disk_written_per_step: disk.written,
            disk_read_per_step: disk.read,
            disk_seconds: disk.seconds,
            disk_endurance: config.memory.disk_endurance.as_ref().map(Amount::value),
            host_least,
            host_tier_bytes,
            host_bytes,
            checkpoint_bytes,
            own_bytes,
            own_files,
            checkpoints,
            index_bytes: None,
            disk_bytes: checkpoint_bytes
                .saturating_mul(checkpoints)
                .saturating_add(own_bytes.saturating_mul(own_files)),
            data: None,
            replayed: None,
            looks_up: config.model.longest_match,
            has_adapters: config.train.lora.is_some(),
            refusals: Vec::new(),
            notes: Vec::new(),
        };
        plan.refusals = refusal::refusals(&plan, &demand, own, own_footprint);
        plan.notes = refusal::notes(&plan, &config.train);
        plan
    }

    pub(crate) fn over(mut self, data: Option<Epoch>) -> Self {
        self.data = data;
        self.index_bytes = data.filter(|_| self.looks_up).map(|data| INDEX_BYTES_PER_TOKEN * data.tokens);
        let index = self.index_bytes.unwrap_or_default();
        self.disk_bytes = self.disk_bytes.saturating_add(index);
        self.refusals.extend(refusal::index_refusal(&self, index));
        self
    }

    pub(crate) fn refuse(&self) -> anyhow::Result<()> {
        if self.refusals.is_empty() {
            return Ok(());
        }
        Err(BadInput(format!("this run cannot work here:\n  {}", self.refusals.join("\n  "))).into())
    }

    pub(crate) fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// With copies and the ranks' exchange behind arithmetic as far as possible, and with all waited for.
    pub(crate) fn step_seconds(&self) -> Option<(f64, f64)> {
        let step = self.bounds()?;
        let [fast, slow] = self.exchange.as_ref().map_or(step, |exchange| exchange.step(step));
        Some((fast, slow))
    }

    /// Of all steps, as [`step_seconds`](Self::step_seconds).
    pub(super) fn run_seconds(&self) -> Option<(f64, f64)> {
        let step = self.bounds()?;
        let alone = step.map(|seconds| seconds * self.steps as f64);
        let [fast, slow] = self.exchange.as_ref().map_or(alone, |exchange| exchange.run(self.steps, step));
        Some((fast, slow))
    }

    fn bounds(&self) -> Option<[f64; 2]> {
        let seconds = self.compute_seconds?;
        Some([seconds * self.slowdown_hidden?, seconds * self.slowdown_waiting?])
    }
}
