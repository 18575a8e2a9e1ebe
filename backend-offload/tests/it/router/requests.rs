//! Requests to a running device, on the simulated one.

use crate::child::{Child, Facts, Scenario};
use crate::requests;
use burn_flex::{Flex, FlexDevice};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "router: budgets", run: budgets },
        Scenario { name: "router: hints", run: |facts| requests::hints::<Flex>(facts, &FlexDevice) },
        Scenario { name: "router: readiness", run: |_| requests::readiness::<Flex>(&FlexDevice) },
    ]
}

fn budgets(_: &Facts) -> Facts {
    requests::budgets::<Flex>(&FlexDevice);
    Facts::default()
}

#[test]
fn a_budget_changes_while_the_program_runs() {
    Child::new("router: budgets").run();
}

#[test]
fn hints_decide_which_tensor_is_evicted_first() {
    requests::hints_decide_which_tensor_is_evicted(|hint, asked| {
        Child::new("router: hints").with("hint", hint).with("asked", asked).run().number("restores")
    });
}

#[test]
fn a_device_that_cannot_start_gives_an_error_before_it_panics() {
    let report = Child::new("router: readiness").environment("OFFLOAD_DEVICE_BUDGET", "50%").run();
    assert!(report.text("error").contains("does not tell"), "{}", report.text("error"));
}
