//! The device as Burn and its user see it: name, seed, configuration, counters.

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
fn unsigned_data_comes_back_as_it_went() {
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

#[test]
fn a_share_of_memory_nobody_can_measure_is_refused() {
    let error = OffloadConfig::new()
        .device_budget("50%".parse().expect("a budget"))
        .install::<Flex>(&FlexDevice)
        .expect_err("either the device has started, or it cannot tell what is free");
    let text = error.to_string();
    assert!(text.contains("does not tell") || text.contains("already started"), "{text}");
}
