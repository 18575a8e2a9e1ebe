//! The example, run as a user runs it.

#[path = "../examples/spill.rs"]
mod spill;

use offload_burn_22::{WgpuDevice, stats};
use suite::Need;

#[test]
fn a_program_that_only_calls_install_trains_within_its_budget() {
    let here = std::path::Path::new("/usr/share/vulkan/icd.d").exists();
    if !Need::Vulkan.is_met((!here).then_some("this machine has no Vulkan driver")) {
        return;
    }
    spill::main().expect("it trains");
    let stats = stats(&WgpuDevice::default());
    assert!(stats.evictions > 0 && stats.device.peak <= 24 << 20, "{stats:?}");
}
