//! Refusals of runs that do not fit, each with a remedy. Lesser risks are notes.

use backend_offload::Bytes;
use models::{Compute, Footprint};
use runs::config::{
    Config, ExchangeKind, OptimizerKind, PlacementKind, ShardKind, StateKind, StreamKind, TrainSection,
};

use super::Plan;
use super::demand::Demand;
use crate::stages;

pub(super) fn refusals(plan: &Plan, demand: &Demand, config: &Config, footprint: &Footprint) -> Vec<String> {
    let machine = &plan.machine;
    let mut refusals: Vec<_> = stages::refusal(machine.ranks(), plan.ranks.pipeline).into_iter().collect();
    if plan.ranks.exchange == ExchangeKind::Rarely {
        refusals.extend(stages::idle_ranks(plan.accumulate, machine.ranks(), 1).map(stages::refused));
    }
    if let Some(budget) = machine.device_budget.filter(|budget| *budget < demand.least) {
        refusals.push(format!(
            "the device budget of {} is below what one operation needs, at least {}; raise `memory.device_budget` \
             above {}, lower `train.micro_batch` or `train.sequence`, or take a smaller model or vocabulary",
            Bytes(budget),
            Bytes(demand.least),
            Bytes(plan.floor)
        ));
    }
    if let Some(free) = machine.device_free.filter(|free| *free < plan.stays) {
        let limit = machine.device_budget.map_or_else(
            || "there is no limit".to_owned(),
            |budget| format!("the limit is {}", Bytes(budget)),
        );
        refusals.push(format!(
            "{} of device memory would be used, since {limit}, and {} are free on {}; set `memory.device_budget` to \
             \"auto\" or less than is free, so that the rest spills",
            Bytes(plan.stays),
            Bytes(free),
            machine.device
        ));
    }

    if let Some(shortage) = host_shortage(plan) {
        refusals.push(format!("{shortage}; {}", remedies(plan, config, footprint).join(", or ")));
    }
    if plan.optimizer_disk_bytes > machine.disk_budget {
        refusals.push(format!(
            "{} of the optimizer's state have no room in host memory, and `memory.disk_budget` takes {} of the disk; raise one of \
             them, or take a smaller model",
            Bytes(plan.optimizer_disk_bytes),
            Bytes(machine.disk_budget)
        ));
    }
    let one = plan.checkpoint_bytes.saturating_add(plan.own_bytes);
    if let Some(free) = machine.disk_free.filter(|free| *free < one) {
        let own = if plan.own_bytes > 0 { ", with what ranks have of their own," } else { "" };
        refusals.push(format!(
            "a checkpoint{own} takes {} and {} are free on the disk; make room, or choose another with --out",
            Bytes(one),
            Bytes(free)
        ));
    }
    refusals
}

/// Host memory that is needed, and the limits below it.
pub(super) fn host_shortage(plan: &Plan) -> Option<String> {
    let machine = &plan.machine;
    // Host copies of tensors on the device can be dropped.
    let held = plan.host_least;
    let needed = held.saturating_add(plan.residual_bytes);
    let needed = needed.saturating_add(if machine.shares_host { plan.stays } else { 0 });
    let over_budget = machine.host_budget.filter(|limit| *limit < held);
    let over_free = machine.host_free.filter(|free| *free < needed);
    if over_budget.is_none() && over_free.is_none() {
        return None;
    }
    let allowed = over_budget.map(|limit| format!(", `memory.host_budget` allows {}", Bytes(limit)));
    let free = over_free.map(|free| format!(", {} are free", Bytes(free)));
    let (allowed, free) = (allowed.unwrap_or_default(), free.unwrap_or_default());
    Some(format!("{} of host memory are needed{allowed}{free}", Bytes(needed)))
}

/// Why no `larger` group than the `chosen` one passes together, if memory decides.
pub(super) fn group_limit(chosen: &Plan, larger: &Plan, alone: &Plan) -> Option<String> {
    let [own, all] = [alone, larger].map(|plan| plan.disk_written_per_step);
    let writes_more = all > own && [alone, larger].iter().all(|plan| plan.refusals().is_empty());
    let limit = host_shortage(larger).or_else(|| {
        let text = || format!("the disk would take {} per step, more than {}", Bytes(all), Bytes(own));
        writes_more.then(text)
    })?;

    let of_rank = chosen.accumulate.div_ceil(chosen.machine.ranks());
    let pass = match chosen.together {
        1 => "micro-batches pass one by one".to_owned(),
        count => format!("{count} of {of_rank} micro-batches pass together"),
    };
    Some(format!("{pass}: for {}, {limit}", larger.together))
}

pub(super) fn index_refusal(plan: &Plan, bytes: u64) -> Option<String> {
    let needed = plan.checkpoint_bytes.saturating_add(bytes);
    let free =
        plan.machine.disk_free.filter(|free| bytes > 0 && (plan.checkpoint_bytes..needed).contains(free))?;
    Some(format!(
        "the index of the training text takes up to {} and a checkpoint {}, and {} are free on the disk; make room, choose \
         another with --out, or train without `model.longest_match`",
        Bytes(bytes),
        Bytes(plan.checkpoint_bytes),
        Bytes(free)
    ))
}

pub(super) fn notes(plan: &Plan, train: &TrainSection) -> Vec<String> {
    let machine = &plan.machine;
    let mut notes = Vec::new();
    if plan.ranks.exchange != ExchangeKind::Rarely {
        let stages = plan.bubble.map_or(1, |_| plan.ranks.pipeline);
        notes.extend(stages::idle_ranks(plan.accumulate, machine.ranks(), stages));
    }
    let warmup = train.schedule.warmup;
    if warmup.is_cut(train.steps) {
        notes.push(format!(
            "`train.schedule.warmup` = {warmup} is no less than the {} steps of this run, so a tenth of them warms up: {}",
            train.steps,
            warmup.in_run(train.steps)
        ));
    }
    if let Some(epochs) = train.epochs {
        notes.push(format!(
            "`train.epochs` = {epochs}: the number of steps follows from the text when it is prepared; {} are assumed here",
            train.steps
        ));
    }
    if machine.device_budget.is_some_and(|budget| budget < plan.floor && budget < plan.working_set) {
        notes.push(format!(
            "the budget is below the floor, about {}: an operation may be refused, depending on how the device fuses",
            Bytes(plan.floor)
        ));
    }

    let on_disk = plan.sinks.saturating_add(plan.optimizer_disk_bytes);
    if on_disk > 0 && plan.disk_seconds.is_none() {
        notes.push(format!(
            "{} have no room on the host and sink to the disk, whose time is not among the times above",
            Bytes(on_disk)
        ));
    }

    if plan.spills > 0 && plan.slowdown_hidden.is_none() {
        notes.push("the link or the arithmetic was not measured, so no slowdown is predicted".to_owned());
    }
    if plan.slowdown_hidden.is_some_and(|times| times > 1.05)
        && let Some(tokens) = plan.break_even_tokens.filter(|tokens| *tokens > plan.tokens_per_step)
    {
        notes.push(format!(
            "copies could hide behind arithmetic from {} tokens per step on; raise `train.micro_batch`",
            crate::figures::grouped(tokens)
        ));
    }
    if machine.disk_free.is_some_and(|free| (plan.checkpoint_bytes..plan.disk_bytes).contains(&free)) {
        notes.push(
            "the disk may fill up with checkpoints; lower `checkpoint.keep_last` or raise `checkpoint.keep_every`"
                .to_owned(),
        );
    }
    notes
}

fn least_factor(number: usize) -> usize {
    (2..number).find(|factor| number.is_multiple_of(*factor)).unwrap_or(number)
}

fn remedies(plan: &Plan, config: &Config, footprint: &Footprint) -> Vec<String> {
    let mut changes = Vec::new();
    if config.train.micro_batch > 1 {
        let mut smaller = config.clone();
        let parts = least_factor(smaller.train.micro_batch);
        smaller.train.micro_batch /= parts;
        smaller.train.accumulate *= parts;
        let (batch, rounds) = (smaller.train.micro_batch, smaller.train.accumulate);
        changes.push((format!("`train.micro_batch` = {batch} with `train.accumulate` = {rounds}"), smaller));
    }
    if config.train.recompute != Some(1) {
        let mut again = config.clone();
        again.train.recompute = Some(1);
        changes.push(("`train.recompute` = 1".to_owned(), again));
    }
    if config.model.compute == Compute::F32 {
        let mut narrow = config.clone();
        narrow.model.compute = Compute::Bf16;
        changes.push(("`model.compute` = \"bf16\"".to_owned(), narrow));
    }

    let memory = &config.memory;
    let (narrowest, name) = match config.train.optimizer {
        OptimizerKind::Sgd => (StateKind::Bf16, "bf16"),
        OptimizerKind::AdamW | OptimizerKind::Muon => (StateKind::Compact, "compact"),
    };
    if memory.optimizer == PlacementKind::Host
        && memory.optimizer_state != narrowest
        && memory.stream == StreamKind::Computed
    {
        let mut narrower = config.clone();
        narrower.memory.optimizer_state = narrowest;
        changes.push((format!("`memory.optimizer_state` = \"{name}\""), narrower));
    }

    // In a pipeline, `ranks` has another meaning.
    let sums_exactly = matches!(config.ranks.exchange, ExchangeKind::Exact | ExchangeKind::Bf16);
    if plan.machine.ranks() > 1 && plan.bubble.is_none() && sums_exactly && !memory.shard.has_owners() {
        for (kind, name) in [(ShardKind::States, "states"), (ShardKind::Weights, "weights")] {
            let mut divided = config.clone();
            divided.memory.shard = kind;
            let allowed = kind == ShardKind::States
                || (config.train.recompute.is_some() && config.train.freeze.is_empty());
            if allowed && config.train.lora.is_none() {
                changes.push((format!("`memory.shard` = \"{name}\""), divided));
            }
        }
    }

    let mut remedies = Vec::new();
    let all = plan.working_set.saturating_add(plan.optimizer_host_bytes);
    for (change, config) in changes {
        let footprint = Footprint::of(&config.model).unwrap_or(*footprint);
        let ranks = plan.machine.ranks() / plan.bubble.map_or(1, |_| config.ranks.pipeline);
        let demand = Demand::new(&config, &footprint, ranks, plan.machine.fuses());
        let left = demand.working_set().saturating_add(demand.placement.host_bytes(&config, ranks));
        if left < all {
            let (left, all) = (Bytes(left), Bytes(all));
            remedies.push(format!("set {change} (the working set shrinks from {all} to {left})"));
        }
    }

    if plan.spills > 0 && !plan.machine.shares_host {
        remedies.push("raise `memory.device_budget`".to_owned());
    }
    remedies.push("take a smaller model".to_owned());
    remedies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_divided_into_whole_sequences() {
        assert_eq!([2, 3, 4, 9, 35, 7].map(least_factor), [2, 3, 2, 3, 5, 7]);
    }
}
