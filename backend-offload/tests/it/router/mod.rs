//! The CPU adapter: Flex as a simulated device, through Burn's router.

mod budgets;
mod conformance;
mod device;
mod failures;
mod faults;
mod frozen;
mod memory;
mod on_a_device;
mod requests;
mod streams;

use crate::child::{Child, Facts, Scenario};
use backend_offload::Offload;
use burn::backend::Autodiff;
use burn_flex::Flex;
use on_a_device::{operate, train};

type Offloaded = Offload<Flex>;
type Training = Autodiff<Offloaded>;

const TRAIN: &str = "router: train";
const OPERATE: &str = "router: operate";

pub fn scenarios() -> Vec<Scenario> {
    let mut scenarios =
        vec![Scenario { name: TRAIN, run: train::<Flex> }, Scenario { name: OPERATE, run: operate::<Flex> }];
    scenarios.extend(device::scenarios());
    scenarios.extend(failures::scenarios());
    scenarios.extend(faults::scenarios());
    scenarios.extend(frozen::scenarios());
    scenarios.extend(memory::scenarios());
    scenarios.extend(requests::scenarios());
    scenarios
}

fn training(program: &str, steps: usize) -> Child {
    Child::new(TRAIN).with("program", program).with("steps", steps)
}

fn one_byte(threads: usize) -> Child {
    Child::new(OPERATE)
        .with("threads", threads)
        .with("budget", 1)
        .with("alone", true)
        .with("smallest block", 1)
}

fn outcomes(report: &Facts) -> impl Iterator<Item = (&str, &str)> {
    report
        .iter()
        .filter_map(|(name, outcome)| Some((name.strip_prefix("thread ")?.split_once(": ")?.1, outcome)))
}
