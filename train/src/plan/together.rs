//! The number of micro-batches that pass each segment together, where the configuration leaves it to the plan.
//!
//! A larger group reads weights less often and keeps more inputs of segments. The plan takes the group that moves the
//! fewest bytes over the link, among those that fit and write no more to the disk than single micro-batches. Where
//! nothing spills, that is a single one. No number depends on the choice.

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
    // Of equal ones, the first and smallest.
    std::iter::once(alone).chain(groups).min_by_key(moved).expect("one is there")
}
