//! Micro-batches that pass each segment together, if not configured.
//!
//! The choice minimizes link bytes among groups that fit and write no more to the disk than single micro-batches. It
//! changes no result.

use models::Footprint;
use runs::config::{Config, Together};

use super::{Machine, Plan, refusal};

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
    let moved = |plan: &&Plan| plan.bytes_in_per_step.saturating_add(plan.bytes_out_per_step);
    let fits = |plan: &Plan| plan.refusals.is_empty();
    // Sums on the host may outweigh a group's inputs: a group may fit where one does not.
    let written = if fits(&alone) { alone.disk_written_per_step } else { u64::MAX };
    let groups: Vec<Plan> = counts.map(plan).collect();
    let suits = |plan: &&Plan| fits(plan) && plan.disk_written_per_step <= written;
    // On a tie, the smallest.
    let best = Some(&alone)
        .filter(|plan| fits(plan))
        .into_iter()
        .chain(groups.iter().filter(suits))
        .min_by_key(moved);
    let Some(mut best) = best.cloned() else {
        if refusal::host_shortage(&alone).is_none() {
            return alone;
        }
        // The refusal that is nearest to fitting.
        return groups
            .into_iter()
            .fold(alone, |least, plan| if plan.host_least < least.host_least { plan } else { least });
    };
    if let Some(larger) = groups.iter().find(|plan| plan.together == 2 * best.together) {
        let saves = moved(&larger) < moved(&&best);
        best.notes.extend(refusal::group_limit(&best, larger, &alone).filter(|_| saves));
    }
    best
}
