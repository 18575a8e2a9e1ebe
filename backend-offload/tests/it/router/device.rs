//! The device's name, seed, configuration, counters.

use super::{Child, Offloaded};
use crate::child::{Facts, Scenario};
use backend_offload::{OffloadConfig, stats};
use burn::prelude::*;
use burn::tensor::{DType, Distribution};
use burn_flex::{Flex, FlexDevice};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "router: seed", run: seed },
        Scenario { name: "router: environment", run: environment },
        Scenario { name: "router: disk of the environment", run: disk_of_the_environment },
    ]
}

#[test]
fn the_name_of_a_device_shows_the_backend_underneath() {
    assert_eq!(Offloaded::name(&FlexDevice), "router<offload<flex>>");
}

#[test]
fn element_types_are_those_of_the_backend_underneath() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::I64, DType::U8] {
        assert_eq!(Offloaded::dtype_usage(&FlexDevice, dtype), Flex::dtype_usage(&FlexDevice, dtype));
    }
}

#[test]
fn unsigned_data_reads_back_unchanged() {
    let tensor = Tensor::<Offloaded, 1, Int>::from_data([1u8, 2, 250], (&FlexDevice, DType::U8));
    assert_eq!(tensor.dtype(), DType::U8);
    assert!(tensor.into_data().iter::<i32>().eq([1, 2, 250]));
}

#[test]
fn seeds_reach_the_backend() {
    let report = Child::new("router: seed").run();
    assert_eq!(report.text("ours"), report.text("plain"));
}

fn seed(_facts: &Facts) -> Facts {
    fn draw<B: Backend<Device = FlexDevice>>() -> String {
        B::seed(&FlexDevice, 7);
        let drawn = Tensor::<B, 1>::random([9], Distribution::Default, &FlexDevice);
        B::sync(&FlexDevice).expect("a processor has nothing to wait for");
        format!("{:?}", drawn.into_data())
    }
    Facts::default().with("plain", draw::<Flex>()).with("ours", draw::<Offloaded>())
}

#[test]
fn budgets_come_from_the_environment_and_cannot_change_after_the_start() {
    let child = Child::new("router: environment").environment("OFFLOAD_DEVICE_BUDGET", "3MiB");
    let report = child.environment("OFFLOAD_HOST_BUDGET", "5MiB").run();
    assert_eq!((report.number("device"), report.number("host")), (3 << 20, 5 << 20));
    assert!(report.text("install").contains("the CPU (simulated device"), "{}", report.text("install"));
    assert!(report.text("install").contains("already started"), "{}", report.text("install"));
}

fn environment(facts: &Facts) -> Facts {
    let stats = stats::<Flex>(&FlexDevice);
    let late = OffloadConfig::new().install::<Flex>(&FlexDevice).expect_err("stats started it");
    facts
        .clone()
        .with("device", stats.device.budget.expect("a budget"))
        .with("host", stats.host.budget.expect("a budget"))
        .with("install", late)
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_comes_from_the_environment_with_its_budget_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let child = || Child::new("router: disk of the environment");
    let there = || child().environment("OFFLOAD_DISK_DIR", folder.path().display());
    let both = || there().environment("OFFLOAD_DISK_BUDGET", "8MiB");
    assert_eq!(both().run().number("disk"), 8 << 20);
    let own = both().with("folder", folder.path().display()).run();
    assert_eq!(own.number("disk"), 4 << 20, "the program's own configuration counts");
    let endless = there().run();
    assert!(
        endless.text("refused").contains("no disk budget says how much of it may be taken"),
        "{endless:?}"
    );
    let nowhere = child().environment("OFFLOAD_DISK_BUDGET", "8MiB").run();
    assert!(nowhere.text("refused").contains("name a folder there by OFFLOAD_DISK_DIR"), "{nowhere:?}");
    assert_eq!(child().run().number("disk"), 0, "no variable names one");
}

fn disk_of_the_environment(facts: &Facts) -> Facts {
    let mut config = OffloadConfig::new();
    if let Some(folder) = facts.find("folder") {
        config = config.disk(folder, "4MiB".parse().expect("a budget"));
    }
    match config.install::<Flex>(&FlexDevice) {
        Ok(()) => {
            let disk = stats::<Flex>(&FlexDevice).disk;
            Facts::default().with("disk", disk.budget.unwrap_or_default())
        }
        Err(error) => Facts::default().with("refused", error),
    }
}

#[test]
fn a_share_of_unknown_memory_is_refused() {
    let error = OffloadConfig::new()
        .device_budget("50%".parse().expect("a budget"))
        .install::<Flex>(&FlexDevice)
        .expect_err("either the device has started, or it cannot tell what is free");
    let text = error.to_string();
    assert!(text.contains("does not tell") || text.contains("already started"), "{text}");
}
