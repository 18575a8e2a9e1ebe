//! The plan of a run, made before its first step from the configuration and a few numbers about the machine.
//!
//! A pure function: nothing here asks a device, so a plan for a machine that is not there is a plan all the same.
//! Predictions err on the side of more memory; the table after the run puts them beside what was measured.

mod checkpoints;
mod choice;
mod demand;
mod elsewhere;
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
mod sinking;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use choice::placed;
pub(crate) use elsewhere::Elsewhere;
pub(crate) use machine::{Machine, Measurement};
pub(crate) use measured::Measured;
pub(crate) use sinking::StatesOnDisk;

use demand::{Demand, state_bytes};
use models::Footprint;
use replay::Replayed;
use runs::config::{Amount, Config, RanksSection};
use serde::Serialize;

/// Memory, traffic and time that a run will take, and whether this machine has them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Plan {
    pub(crate) machine: Machine,
    pub(crate) parameters: u64,
    pub(crate) steps: u64,
    pub(crate) micro_batch: usize,
    pub(crate) accumulate: usize,
    pub(crate) sequence: usize,
    pub(crate) tokens_per_step: u64,
    pub(crate) tokens: u64,
    /// FLOPs of one step, recomputation included.
    pub(crate) flops_per_step: f64,
    pub(crate) flops: f64,
    /// Parts of the memory held, the part that stays longest first.
    pub(crate) held: Vec<Held>,
    /// Bytes alive at the worst moment, on whichever tier.
    pub(crate) working_set: u64,
    /// Bytes of it on the device, and the rest.
    pub(crate) stays: u64,
    pub(crate) spills: u64,
    /// Bytes of the most demanding single operation under any budget, estimated from above.
    pub(crate) floor: u64,
    /// The same under this budget.
    pub(crate) largest_operation: u64,
    pub(crate) bytes_in_per_step: u64,
    pub(crate) bytes_out_per_step: u64,
    /// Bytes that one rank sends to the others in a step.
    pub(crate) bytes_sent_per_step: u64,
    /// Host memory for the residuals of a compressed exchange, the state of an outer optimizer or gradients under way, which no budget
    /// counts.
    pub(crate) residual_bytes: u64,
    #[serde(skip)]
    ranks: RanksSection,
    /// A rank's share of a step at the machine's speed in matrix products, if nothing spilled.
    pub(crate) compute_seconds: Option<f64>,
    /// Times that, were all copies hidden behind arithmetic.
    pub(crate) slowdown_hidden: Option<f64>,
    /// Times that, were all copies waited for.
    pub(crate) slowdown_waiting: Option<f64>,
    /// Tokens per step above which this much traffic can hide.
    pub(crate) break_even_tokens: Option<u64>,
    /// First blocks that are stepped on the device though the optimizer is on the host.
    pub(crate) device_blocks: usize,
    /// Bytes in host memory of an optimizer that is there, and of gradients and weights that wait for its step.
    pub(crate) optimizer_host_bytes: u64,
    /// Bytes of its state on the disk, of which none is in host memory but a few chunks; and which states these are.
    pub(crate) optimizer_disk_bytes: u64,
    #[serde(skip)]
    pub(crate) states_on_disk: StatesOnDisk,
    /// Bytes of host memory that its step reads and writes.
    pub(crate) optimizer_step_bytes: u64,
    /// Bytes of spilled tensors that have no room on the host and sink to the disk.
    pub(crate) sinks: u64,
    /// Bytes of a step that are written to the disk, for these tensors and for the optimizer's state, and read from it.
    pub(crate) disk_written_per_step: u64,
    pub(crate) disk_read_per_step: u64,
    /// Seconds of a step that these take, where the disk's speed is known.
    pub(crate) disk_seconds: Option<f64>,
    /// Bytes that the drive is rated to take in its life, if somebody said.
    pub(crate) disk_endurance: Option<u64>,
    /// Bytes that host memory has to hold of these and of spilled tensors at the worst moment: the last gradients come when activations
    /// have gone.
    pub(crate) host_least: u64,
    /// The same with copies of some that are on the device, which can be given up.
    pub(crate) host_tier_bytes: u64,
    /// Bytes of host memory, with the device's where that is the same.
    pub(crate) host_bytes: u64,
    /// Bytes of one checkpoint.
    pub(crate) checkpoint_bytes: u64,
    /// The most that lie there at one time, one being written included.
    pub(crate) checkpoints: u64,
    /// The most that the index of the training text takes beside its shards, where one is made of a text that is known.
    pub(crate) index_bytes: Option<u64>,
    /// Bytes of all of these.
    pub(crate) disk_bytes: u64,
    /// Known where the shards are there already.
    pub(crate) data: Option<Epoch>,
    /// The step as it was replayed. Bytes and times per step are then its own; without it they are estimates.
    pub(crate) replayed: Option<Replayed>,
    #[serde(skip)]
    looks_up: bool,
    refusals: Vec<String>,
    notes: Vec<String>,
}

/// The training data that one epoch sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Epoch {
    pub(crate) sequences: u64,
    /// Targets that count, in the data.
    pub(crate) counted_targets: u64,
    /// Counted targets that lie in some sequence.
    pub(crate) seen_targets: u64,
    /// Tokens of the text.
    pub(crate) tokens: u64,
}

/// An index takes about seven, and never more.
const INDEX_BYTES_PER_TOKEN: u64 = 8;

impl Epoch {
    pub(crate) fn of(sequences: u64, targets: tokenizer::Targets, tokens: u64) -> Self {
        Self { sequences, counted_targets: targets.counted, seen_targets: targets.seen, tokens }
    }
}

/// Tensors that live and move alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Held {
    pub(crate) what: &'static str,
    pub(crate) bytes: u64,
    /// Bytes that never leave the device.
    pub(crate) stays: u64,
    /// Bytes that leave and return in every step.
    pub(crate) spills: u64,
}

/// Bytes that a step writes to the disk below host memory and reads from it.
struct DiskTraffic {
    written: u64,
    read: u64,
    /// Known where the disk's speed is, or where nothing moves.
    seconds: Option<f64>,
}

impl DiskTraffic {
    /// Assumes that what sinks is as mixed as what spills, and that each crossing of the link takes one of the disk. A step reads
    /// and writes each byte of the `states` that are there once.
    fn of(machine: &Machine, [sinks, states]: [u64; 2], spills: u64, [leaves, returns]: [u64; 2]) -> Self {
        let share = sinks as f64 / spills.max(1) as f64;
        let moved = [leaves, returns].map(|bytes| ((bytes as f64 * share) as u64).saturating_add(states));
        Self::of_bytes(machine, moved)
    }

    fn of_bytes(machine: &Machine, [written, read]: [u64; 2]) -> Self {
        let seconds = match machine.disk_bytes_per_second {
            _ if written == 0 && read == 0 => Some(0.0),
            Some([write_speed, read_speed]) => Some(written as f64 / write_speed + read as f64 / read_speed),
            None => None,
        };
        Self { written, read, seconds }
    }
}

/// Bytes in the tiers below the device.
struct Below {
    states_on_disk: StatesOnDisk,
    optimizer_host_bytes: u64,
    optimizer_disk_bytes: u64,
    sinks: u64,
    disk: DiskTraffic,
}

impl Below {
    /// Divides an optimizer, which takes so much host memory if all of it is there, and bytes that spill among the tiers. So much
    /// of the latter is on its way to the disk where it sinks, and so much does not sink; `moved` are bytes that leave and return in a step.
    fn of(
        config: &Config,
        machine: &Machine,
        optimizer: u64,
        (spills, way, fixed): (u64, u64, u64),
        moved: [u64; 2],
    ) -> Self {
        let fixed = fixed.min(spills);
        let (spills, optimizer) = (spills - fixed, optimizer.saturating_add(fixed));
        let (states_on_disk, state) = StatesOnDisk::chosen(config, machine, optimizer, spills, way);
        let optimizer_host_bytes = optimizer.saturating_sub(state.in_memory).saturating_add(state.passing());
        let host_room = machine.host_budget.unwrap_or(u64::MAX).saturating_sub(optimizer_host_bytes);
        let disk_room = machine.disk_budget.saturating_sub(state.on_disk);
        let sinks = spills.saturating_sub(host_room).min(disk_room);
        let disk = DiskTraffic::of(machine, [sinks, state.on_disk], spills, moved);
        let optimizer_disk_bytes = state.on_disk;
        let optimizer_host_bytes = optimizer_host_bytes - fixed;
        Self { states_on_disk, optimizer_host_bytes, optimizer_disk_bytes, sinks, disk }
    }
}

/// Bytes of weights that steps on the host read.
struct Reads {
    /// Over the link.
    read: u64,
    /// Into host memory, of those that are on the device.
    kept: u64,
    /// Weights that are away from the device. They do not sink.
    fixed: u64,
    /// Copies on the host of what is on the device, beside these.
    copies: u64,
}

impl Reads {
    fn of(config: &Config, machine: &Machine, demand: &Demand, streamed: u64, spilled: &[u64]) -> Self {
        let ranks = machine.ranks();
        // A weight that came back unchanged keeps its host copy.
        let weights = demand.parts.iter().zip(spilled).filter(|(part, _)| part.what.starts_with("weights"));
        let copies: u64 = weights.map(|(part, &spills)| spills.min(part.bytes() - spills)).sum();
        // One that has a copy on the host is read from it, which does not take the link. All are there before the first step is taken.
        let read = demand.read(config, ranks, streamed.saturating_sub(copies));
        let kept = demand.read(config, ranks, streamed);
        let fixed = demand.read(config, ranks, u64::MAX) - kept;
        Self { read, kept, fixed, copies: copies.saturating_sub(kept - read) }
    }
}

/// Bytes that host memory has to hold at the worst moment, of `all` that it has to hold at some.
fn host_least(config: &Config, machine: &Machine, demand: &Demand, all: u64) -> u64 {
    // At which moment something sinks, or a state is on the disk, nobody knows.
    if machine.disk_budget > 0 {
        return all;
    }
    demand.held_on_host(config, machine.ranks(), machine.device_budget.unwrap_or(u64::MAX))
}

impl Plan {
    pub(crate) fn new(config: &Config, footprint: &Footprint, machine: &Machine) -> Self {
        let ranks = machine.ranks();
        let demand = Demand::of(config, footprint, ranks, machine.fuses());
        let budget = machine.device_budget.unwrap_or(u64::MAX);
        let spilled = demand.spilled(budget);
        let moved = |times: &dyn Fn(&demand::Part) -> u64| {
            let each = demand.parts.iter().zip(&spilled);
            each.fold(0_u64, |sum, (part, bytes)| sum.saturating_add(bytes.saturating_mul(times(part))))
        };
        let [streamed_in, streamed_out] = demand.streamed(&spilled);
        let exchanged = demand.exchanged;
        let [leaves, returns] = [moved(&|part| part.leaves), moved(&|part| part.returns)];
        let bytes_in = returns.saturating_add(streamed_in).saturating_add(exchanged.link_in);
        let Reads { read, kept, fixed, copies } = Reads::of(config, machine, &demand, streamed_in, &spilled);
        let bytes_out = leaves.saturating_add(streamed_out).saturating_add(read);
        let bytes_out = bytes_out.saturating_add(exchanged.link_out);
        let all_on_host = demand.placement.host_bytes(config, ranks).saturating_add(kept);
        let (working_set, checkpoints) = (demand.working_set(), checkpoints::most(config));
        let (stays, spills) = (working_set.min(budget), working_set.saturating_sub(budget));
        let Below { states_on_disk, optimizer_host_bytes, optimizer_disk_bytes, sinks, disk } =
            Below::of(config, machine, all_on_host, (spills, demand.least, fixed), [leaves, returns]);
        let held: Vec<_> = demand
            .parts
            .iter()
            .zip(&spilled)
            .map(|(part, &spills)| {
                let bytes = part.bytes();
                Held { what: part.what, bytes, stays: bytes - spills, spills }
            })
            .collect();

        let train = &config.train;
        let tokens_per_step = config.tokens_per_step();
        let flops_per_token = footprint.flops_per_token(config.sequence(), train.recompute.is_some());
        let flops_per_step = flops_per_token * tokens_per_step as f64;
        let own_share = train.accumulate.div_ceil(ranks) as f64 / train.accumulate as f64;
        let compute_seconds = machine.flops_per_second.map(|speed| flops_per_step * own_share / speed);
        let times_compute = |bytes: u64| {
            let seconds = if bytes == 0 { 0.0 } else { bytes as f64 / machine.link_bytes_per_second? };
            Some(seconds / compute_seconds?)
        };

        // A time that is not known is told by a note.
        let disk_share = disk.seconds.unwrap_or(0.0) / compute_seconds.unwrap_or(f64::INFINITY);
        let link_share = times_compute(bytes_in.max(bytes_out));
        let hidden = link_share.map(|share| share.max(disk_share));
        let waiting = times_compute(bytes_in.saturating_add(bytes_out)).map(|share| share + disk_share);
        let on_host = (spills - sinks).saturating_add(optimizer_host_bytes);
        let host_least = host_least(config, machine, &demand, on_host);
        let host_tier_bytes = host_least.saturating_add(if sinks > 0 { 0 } else { copies });
        let host_bytes = host_tier_bytes + exchanged.residuals + if machine.shares_host { stays } else { 0 };
        let checkpoint_bytes = footprint.weight_bytes() + state_bytes(train.optimizer, footprint);

        let mut plan = Self {
            machine: machine.clone(),
            parameters: footprint.parameters,
            steps: train.steps,
            micro_batch: train.micro_batch,
            accumulate: train.accumulate,
            sequence: config.sequence(),
            tokens_per_step,
            tokens: tokens_per_step * train.steps,
            flops_per_step,
            flops: flops_per_step * train.steps as f64,
            held,
            working_set,
            stays,
            spills,
            floor: demand.floor,
            largest_operation: demand.largest_operation(budget),
            bytes_in_per_step: bytes_in,
            bytes_out_per_step: bytes_out,
            bytes_sent_per_step: exchanged.sent,
            residual_bytes: exchanged.residuals,
            ranks: config.ranks.clone(),
            compute_seconds,
            slowdown_hidden: hidden.map(|share| share.max(1.0)),
            slowdown_waiting: waiting.map(|share| 1.0 + share),
            break_even_tokens: link_share.map(|share| (share * tokens_per_step as f64) as u64),
            device_blocks: config.memory.device_blocks,
            optimizer_host_bytes,
            optimizer_disk_bytes,
            states_on_disk,
            optimizer_step_bytes: demand.placement.step_bytes(config, ranks),
            sinks,
            disk_written_per_step: disk.written,
            disk_read_per_step: disk.read,
            disk_seconds: disk.seconds,
            disk_endurance: config.memory.disk_endurance.as_ref().map(Amount::value),
            host_least,
            host_tier_bytes,
            host_bytes,
            checkpoint_bytes,
            checkpoints,
            index_bytes: None,
            disk_bytes: checkpoint_bytes.saturating_mul(checkpoints),
            data: None,
            replayed: None,
            looks_up: config.model.longest_match,
            refusals: Vec::new(),
            notes: Vec::new(),
        };
        plan.refusals = refusal::refusals(&plan, &demand, config, footprint);
        plan.notes = refusal::notes(&plan);
        plan
    }

    /// The plan with the size of the data, of which a model that looks things up has an index.
    pub(crate) fn over(mut self, data: Option<Epoch>) -> Self {
        self.data = data;
        self.index_bytes = data.filter(|_| self.looks_up).map(|data| INDEX_BYTES_PER_TOKEN * data.tokens);
        let index = self.index_bytes.unwrap_or_default();
        self.disk_bytes = self.disk_bytes.saturating_add(index);
        self.refusals.extend(refusal::of_an_index(&self, index));
        self
    }

    /// Reasons why the run cannot work on this machine, each with what to change. Empty where nothing speaks against it.
    pub(crate) fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// Seconds of one step: copies hidden, and copies waited for.
    pub(crate) fn step_seconds(&self) -> Option<(f64, f64)> {
        let seconds = self.compute_seconds?;
        Some((seconds * self.slowdown_hidden?, seconds * self.slowdown_waiting?))
    }
}
