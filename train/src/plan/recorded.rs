//! Plans against unlimited recorded runs, on the CPU and a stand-in for CUDA; `recorded.json` has their commands and
//! bytes.

use models::Footprint;
use runs::config::Config;
use serde::Deserialize;

use super::{Machine, Plan};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Records {
    #[expect(dead_code, reason = "for readers")]
    command: Vec<String>,
    all: Vec<String>,
    runs: Vec<Record>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    set: Vec<String>,
    cpu: Used,
    cuda: Used,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Used {
    peak_device_bytes: u64,
    largest_launch: u64,
}

#[test]
fn plans_are_within_15_percent_of_recorded_runs_on_the_cpu_and_on_cuda() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/plan/recorded.json");
    let records: Records =
        serde_json::from_str(&std::fs::read_to_string(file).expect("it is there")).expect("records");
    let mut wrong = Vec::new();

    for Record { set, cpu, cuda } in records.runs {
        let config = Config::load("toy", &[&records.all[..], &set].concat()).expect("a valid configuration");
        let footprint = Footprint::of(&config.model).expect("it was checked");
        for (device, shares_host, used) in [("CPU", true, cpu), ("CUDA", false, cuda)] {
            let machine = Machine { shares_host, ..Machine::default() };
            let plan = Plan::new(&config, &footprint, &machine);
            for (what, planned, taken) in [
                ("device", plan.stays, used.peak_device_bytes),
                ("largest operation", plan.largest_operation, used.largest_launch),
            ] {
                let ratio = taken as f64 / planned as f64;
                let line = format!("{device} {what} {planned} {taken} {ratio:.3} {set:?}");
                if !(0.85..=1.15).contains(&ratio) {
                    wrong.push(line);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "planned, taken and ratio:\n{}", wrong.join("\n"));
}
