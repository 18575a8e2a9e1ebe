//! The optimizer's place under `auto`: the one with the fewest bytes over the link.
//!
//! The place changes results' last digits, so a run saves its first choice.

use models::Footprint;
use runs::config::{Config, PlacementKind, StateKind};

use super::{Machine, Plan};

pub(crate) fn placed(config: &Config, footprint: &Footprint, machine: &Machine) -> Config {
    if config.memory.optimizer != PlacementKind::Auto {
        return config.clone();
    }
    let mut on_device = config.clone();
    on_device.memory.optimizer = PlacementKind::Device;
    on_device.memory.optimizer_state = StateKind::F32;

    let on_host = |blocks: usize| {
        let mut on_host = config.clone();
        (on_host.memory.optimizer, on_host.memory.device_blocks) = (PlacementKind::Host, blocks);
        on_host
    };
    let most = if config.ranks.pipeline > 1 { 0 } else { config.model.n_layer };
    let on_hosts = (0..=most).filter(|_| !config.needs_device_optimizer()).map(on_host);

    let possible = std::iter::once(on_device.clone()).chain(on_hosts).filter_map(|config| {
        let plan = Plan::new(&config, footprint, machine);
        let bytes = plan.bytes_in_per_step.saturating_add(plan.bytes_out_per_step);
        plan.refusals().is_empty().then_some((bytes, config))
    });
    // If nothing fits, the device's errors count.
    possible.min_by_key(|(bytes, _)| *bytes).map_or(on_device, |(_, config)| config)
}
