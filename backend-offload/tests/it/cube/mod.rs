//! Offloading on real Vulkan kernels.
//!
//! Every run is a process of its own, one at a time: a device is configured once per process, and kernels on a
//! software driver use all cores anyway. The plain backend always runs first, so that both share one set of
//! autotune results: a different kernel may round differently.

mod autotune;
mod conformance;
mod faults;
mod memory;
mod training;

use crate::child::{Child, Facts, Report, Scenario};
use backend_offload::{Offload, OffloadConfig, Oversized, Stats, runtime_peaks, stats};
use burn_cubecl::CubeBackend;
use burn_fusion::Fusion;
use cubecl_wgpu::{WgpuDevice, WgpuRuntime};
use std::sync::{Mutex, PoisonError};

pub type Plain = Fusion<CubeBackend<WgpuRuntime, f32, i32, u32>>;
pub type Spilling = Offload<Plain>;

pub fn scenarios() -> Vec<Scenario> {
    let own = vec![Scenario { name: "vulkan/present", run: present }];
    [own, conformance::scenarios(), faults::scenarios(), memory::scenarios(), training::scenarios()].concat()
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the child alone.
fn run(child: Child) -> Report {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    child.run()
}

/// Whether there is a Vulkan device. Without one, tests that need it say so and pass, unless
/// `OFFLOAD_REQUIRE_VULKAN=1` makes its absence a failure.
fn vulkan(test: &str) -> bool {
    static PRESENT: Mutex<Option<bool>> = Mutex::new(None);
    let mut present = PRESENT.lock().unwrap_or_else(PoisonError::into_inner);
    let present = *present.get_or_insert_with(|| run(Child::new("vulkan/present")).value("present"));
    if !present {
        let required = std::env::var("OFFLOAD_REQUIRE_VULKAN").is_ok_and(|value| value == "1");
        assert!(!required, "{test} needs a Vulkan device and OFFLOAD_REQUIRE_VULKAN=1, but there is none");
        crate::not_run(
            test,
            "this machine has no Vulkan device (mesa-vulkan-drivers brings one for the CPU)",
        );
    }
    present
}

fn present(_: &Facts) -> Facts {
    let found = std::panic::catch_unwind(|| {
        let client = <WgpuRuntime as cubecl_core::Runtime>::client(&WgpuDevice::default());
        format!("{:?}", client.info())
    });
    Facts::default().with("present", found.is_ok_and(|backend| backend == "Vulkan"))
}

/// Installs what the parameters ask for: `budget`, `alone`, `smallest`, `bindings`, `paranoid`, `watch`.
fn install(parameters: &Facts, device: &WgpuDevice) {
    let mut config = OffloadConfig::new();
    let value = |name| parameters.find(name);
    if let Some(budget) = value("budget") {
        config = config.device_budget(budget.parse().expect("a budget"));
    }
    if let Some(budget) = value("host") {
        config = config.host_budget(budget.parse().expect("a budget"));
    }
    if value("alone").is_some() {
        config = config.oversized(Oversized::RunAlone);
    }
    if let Some(bytes) = value("smallest") {
        config = config.smallest_block(bytes.parse().expect("bytes"));
    }
    if let Some(bindings) = value("bindings") {
        config = config.max_bindings(bindings.parse().expect("a number"));
    }
    if value("paranoid").is_some() {
        config = config.paranoid(true);
    }
    if value("watch").is_some() {
        config = config.watch_runtime();
    }
    config.install::<Plain>(device).expect("a configuration that can be installed");
}

/// The counters tests compare.
fn counted(device: &WgpuDevice, report: Facts) -> Facts {
    let Stats { device: tier, host, .. } = stats::<Plain>(device);
    let all = stats::<Plain>(device);
    let peaks = runtime_peaks::<Plain>(device);
    report
        .with("device in use", tier.in_use)
        .with("device peak", tier.peak)
        .with("device peak reserved", tier.peak_reserved)
        .with("host in use", host.in_use)
        .with("host peak", host.peak)
        .with("evictions", all.evictions)
        .with("clean drops", all.clean_drops)
        .with("restores", all.restores)
        .with("bytes out", all.bytes_out)
        .with("bytes in", all.bytes_in)
        .with("launches", all.launches)
        .with("allocations", all.allocations)
        .with("largest launch", all.largest_launch)
        .with("over budget", all.over_budget)
        .with("failures", all.failures)
        .with("autotune discards", all.autotune_discards)
        .with("autotune corrections", all.autotune_corrections)
        .with("runtime in use", peaks.in_use)
        .with("runtime reserved", peaks.reserved)
}
