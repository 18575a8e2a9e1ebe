//! Offloading with real kernels, on Vulkan and on CUDA's stand-in.
//!
//! Every run is a process of its own. The plain backend runs first: both use its autotune results.

mod autotune;
#[cfg(feature = "cuda")]
mod cards;
mod conformance;
#[cfg(feature = "cuda")]
mod costs;
mod faults;
#[cfg(feature = "cuda")]
mod hidden;
mod integers;
mod launches;
#[cfg(feature = "cuda")]
mod loaded;
mod machine;
mod memory;
mod new_weights;
#[cfg(feature = "cuda")]
mod overlap;
#[cfg(feature = "cuda")]
mod plain;
#[cfg(feature = "cuda")]
mod pool;
mod reads;
#[cfg(feature = "cuda")]
mod refusals;
mod requests;
#[cfg(feature = "cuda")]
mod staging;
mod streams;
mod tiles;
mod training;

use crate::child::{Facts, Scenario};
use crate::folders;
use backend_offload::{
    Budget, Faults, Offload, OffloadConfig, OffloadRuntime, Oversized, Stats, runtime_peaks, stats,
};
use burn_cubecl::CubeBackend;
pub(crate) use machine::{Machine, Target};

type Plain<T> = <T as Target>::Plain;
type Spilling<T> = Offload<<T as Target>::Plain>;
type Unfused<T> = CubeBackend<OffloadRuntime<<T as Target>::Runtime>, f32, i32, u32>;

macro_rules! children {
    ($($name:literal => $run:ident),+ $(,)?) => {
        pub fn scenarios() -> Vec<$crate::child::Scenario> {
            vec![$($crate::child::Scenario { name: $name, run: |parameters| {
                match parameters.text("machine") {
                    #[cfg(feature = "wgpu")]
                    "vulkan" => $run::<super::machine::Vulkan>(parameters),
                    #[cfg(feature = "cuda")]
                    "stand-in" => $run::<super::machine::Cuda>(parameters),
                    other => panic!("no machine {other:?}"),
                }
            } }),+]
        }
    };
}

/// `gate`, `longest` and `full` list longer suites' tests.
macro_rules! promises {
    (
        stand_in { $($quick:ident: $quick_schedules:ident),* $(,)? }
        $(gate { $($gate:ident: $gate_schedules:ident),* $(,)? })?
        $(longest { $($longest:ident: $longest_schedules:ident),* $(,)? })?
        vulkan { $($vulkan:ident),* $(,)? }
        $(full { $($full:ident),* $(,)? })?
    ) => {
        #[cfg(feature = "cuda")]
        mod stand_in {
            $(#[test] fn $quick() {
                $crate::cube::promises!(@stand_in $quick, super::$quick, $quick_schedules);
            })*
            $(mod gate {
                $(#[test] #[ignore = "gate: trains for minutes"] fn $gate() {
                    $crate::cube::promises!(@stand_in $gate, super::super::$gate, $gate_schedules);
                })*
            })?
            $(mod full {
                $(#[test] #[ignore = "full: trains for many minutes"] fn $longest() {
                    $crate::cube::promises!(@stand_in $longest, super::super::$longest, $longest_schedules);
                })*
            })?
        }
        #[cfg(feature = "wgpu")]
        mod vulkan {
            $(#[test] fn $vulkan() {
                $crate::cube::Machine::vulkan().iter().for_each(super::$vulkan);
            })*
            $(mod full {
                $(#[test] #[ignore = "full: compiles its kernels in each process"] fn $full() {
                    $crate::cube::Machine::vulkan().iter().for_each(super::super::$full);
                })*
            })?
        }
    };
    (@stand_in $name:ident, $promise:path, $schedules:ident) => {
        let schedules = $crate::stand_in::Schedules::$schedules;
        $crate::cube::Machine::stand_in(stringify!($name), schedules).iter().for_each($promise);
    };
}
use {children, promises};

pub fn scenarios() -> Vec<Scenario> {
    [
        #[cfg(feature = "cuda")]
        cards::scenarios(),
        #[cfg(feature = "cuda")]
        loaded::scenarios(),
        #[cfg(feature = "cuda")]
        plain::scenarios(),
        #[cfg(feature = "cuda")]
        pool::scenarios(),
        #[cfg(feature = "cuda")]
        refusals::scenarios(),
        autotune::scenarios(),
        machine::scenarios(),
        conformance::scenarios(),
        faults::scenarios(),
        integers::scenarios(),
        launches::scenarios(),
        memory::scenarios(),
        new_weights::scenarios(),
        reads::scenarios(),
        requests::scenarios(),
        streams::scenarios(),
        tiles::scenarios(),
        training::scenarios(),
    ]
    .concat()
}

/// Returns whether copies run out of order, which the stand-in has to find.
fn install_for_copies<T: Target>(parameters: &Facts, device: &T::Device) -> bool {
    let out_of_order = parameters.find("out of order").is_some();
    let faults = Faults { copies_out_of_order: out_of_order, ..Faults::default() };
    let budget = parameters.text("budget").parse().expect("a budget");
    let mut config = OffloadConfig::new().device_budget(budget).faults(faults);
    if let Some(host) = parameters.find("host") {
        let host: Budget = host.parse().expect("a budget");
        config = config.host_budget(host).pinned_budget(host);
    }
    config.install::<Plain<T>>(device).expect("installs");
    out_of_order
}

fn install<T: Target>(parameters: &Facts, device: &T::Device) {
    let mut config = OffloadConfig::new();
    let value = |name| parameters.find(name);

    if let Some(budget) = value("budget") {
        config = config.device_budget(budget.parse().expect("a budget"));
    }
    if let Some(budget) = value("host") {
        config = config.host_budget(budget.parse().expect("a budget"));
    }
    if let Some(budget) = value("disk") {
        config = config.disk(folders::target(), budget.parse().expect("a budget"));
    }
    if let Some(policy) = parameters.policy() {
        config = config.policy(policy);
    }
    if let Some(overlap) = value("overlap") {
        config = config.overlap(overlap.parse().expect("true or false"));
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
    if value("plain fusion").is_some() {
        config = config.plain_fusion();
    }
    if value("paranoid").is_some() {
        config = config.paranoid(true);
    }
    if value("watch").is_some() {
        config = config.watch_runtime();
    }

    config.install::<Plain<T>>(device).expect("a configuration that can be installed");
}

fn counted<T: Target>(device: &T::Device, report: Facts) -> Facts {
    let all = stats::<Plain<T>>(device);
    let Stats { device: tier, host, .. } = all;
    let peaks = runtime_peaks::<Plain<T>>(device);

    report
        .with("device in use", tier.in_use)
        .with("device peak", tier.peak)
        .with("device peak reserved", tier.peak_reserved)
        .with("host in use", host.in_use)
        .with("host peak", host.peak)
        .with("host peak reserved", host.peak_reserved)
        .with("spilled", all.spilled)
        .with("written ahead", all.written_ahead)
        .with("loaded", all.loaded)
        .with("loaded ahead", all.loaded_ahead)
        .with("evictions", all.evictions)
        .with("clean drops", all.clean_drops)
        .with("restores", all.restores)
        .with("left ahead", all.left_ahead)
        .with("brought ahead", all.brought_ahead)
        .with("predicted", all.predicted)
        .with("bytes out", all.bytes_out)
        .with("bytes in", all.bytes_in)
        .with("launches", all.launches)
        .with("allocations", all.allocations)
        .with("largest launch", all.largest_launch)
        .with("over budget", all.over_budget)
        .with("trims", all.trims)
        .with("page locks", all.page_locks)
        .with("failures", all.failures)
        .with("autotune discards", all.autotune_discards)
        .with("autotune unmeasured", all.autotune_unmeasured)
        .with("runtime in use", peaks.in_use)
        .with("runtime reserved", peaks.reserved)
}
