//! Micro-batches that pass each segment together, if not configured.
//!
//! The choice minimizes link bytes among groups that fit and write no more to the disk than single micro-batches. It
//! changes no result.

use models::Footprint;
use runs::config::{Config, Together};

use super::{Machine, Plan};

pub(super) fn chosen(config: &Config, footprint: &Footprint, machine: &Machine) -> Plan {
    let plan = |count: usize| {
        let mut config = config.clone();
        config.train.together = Together::Count(count);
        Plan::with_count(&config, footprint, machine)
    };
    let alone = plan(1);
    if config.train.recompute.is_none() || config.ranks.pipeline > 1 && machine.ranks() > 1 {
        return alone;
    }

    let own = config.train.accumulate.div_ceil(machine.ranks());
    let counts = (1..=own.ilog2()).map(|level| 1 << level);
    let moved = |plan: &Plan| plan.bytes_in_per_step.saturating_add(plan.bytes_out_per_step);
    let fits = |plan: &Plan| plan.refusals.is_empty();
    // Sums on the host may outweigh a group's inputs: a group may fit where one does not.
    let written = if fits(&alone) { alone.disk_written_per_step } else { u64::MAX };
    let groups = counts.map(plan).filter(|plan| fits(plan) && plan.disk_written_per_step <= written);
    // On a tie, the smallest.
    let best = Some(alone.clone()).filter(fits).into_iter().chain(groups).min_by_key(moved);
    best.unwrap_or(alone)
}
