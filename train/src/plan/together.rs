//! The number of micro-batches that pass each segment together, if not configured.
//!
//! The plan minimizes bytes over the link among groups that fit and write no more to the disk than single
//! micro-batches. The choice changes no result.

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
    if config.train.recompute.is_none() || !alone.refusals.is_empty() {
        return alone;
    }

    let own = config.train.accumulate.div_ceil(machine.ranks());
    let counts = (1..=own.ilog2()).map(|level| 1 << level);
    let moved = |plan: &Plan| plan.bytes_in_per_step.saturating_add(plan.bytes_out_per_step);
    let written = alone.disk_written_per_step;
    let groups =
        counts.map(plan).filter(|plan| plan.refusals.is_empty() && plan.disk_written_per_step <= written);
    // On a tie, the smallest.
    std::iter::once(alone).chain(groups).min_by_key(moved).expect("one is there")
}
