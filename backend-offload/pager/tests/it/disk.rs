//! Recorded steps with a part of their bytes on the device, a part on the host, and the rest on a disk below.
//!
//! `PAGER_WRITE_GOLDEN=1` writes the table anew.

use crate::steps::{ROUNDS, assert_on_record, recorded};
use pager::{Limit, Policy, Replay, disk_bound};
use std::fmt::Write;

/// Percent of the peak on the device and on the host, and bytes to and from the disk over the least that could move, in percent.
/// What leaves the device is on the host first, where it pushes others out; small models have blocks of a tenth of a budget.
const STEPS: [(&str, [u64; 2], u64); 6] = [
    ("toy", [25, 25], 101),
    ("toy", [25, 50], 116),
    ("gpt-124m", [25, 25], 113),
    ("gpt-124m", [25, 50], 105),
    ("gpt-1.5b", [25, 25], 101),
    ("gpt-7b", [8, 25], 101),
];

#[test]
fn what_sinks_and_is_raised_are_the_very_bytes_on_record() {
    let mut table = String::from("step,device,host,raised,written,least_raised,least_written\n");
    for (name, [on_device, on_host], percent) in STEPS {
        let (step, peak) = recorded(name);
        let [device, host] = [on_device, on_host].map(|share| peak * share / 100);
        let replay = Replay::new(&step, Limit::bytes(device), Policy::Planned).above_a_disk(host);
        let replay = replay.run(ROUNDS).expect("every operation fits");
        let disk = replay.disk_steps()[ROUNDS - 1];
        let least = disk_bound(&step, device + host, ROUNDS)[ROUNDS - 1];
        let told = format!("{name} at {on_device} and {on_host} %: {disk:?}, at least {least:?}");
        assert!(least.total() > 0 && disk.total() * 100 <= least.total() * percent, "{told}");
        let bytes = [disk.bytes_in, disk.bytes_out, least.bytes_in, least.bytes_out];
        let bytes = bytes.map(|bytes| bytes.to_string()).join(",");
        writeln!(table, "{name},{on_device}%,{on_host}%,{bytes}").expect("a string");
    }
    assert_on_record("disk.csv", &table);
}
