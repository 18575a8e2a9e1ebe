//! Recorded steps on a device and a host above a disk.

use crate::steps::{ROUNDS, assert_on_record, recorded};
use pager::{Limit, Policy};
use pager_replay::{Machine, Pace, Replay, disk_bound};
use std::fmt::Write;

/// Percent of the peak on device and host, and of the bound over the disk's link. A small model's block is a tenth of a
/// budget.
const STEPS: [(&str, [u64; 2], u64); 7] = [
    ("toy", [25, 25], 101),
    ("toy", [25, 50], 116),
    ("gpt-124m", [25, 25], 113),
    ("gpt-124m", [25, 50], 105),
    ("gpt-1.5b", [25, 25], 101),
    ("gpt-7b", [8, 25], 101),
    ("gpt-7b-16k", [8, 25], 103),
];

#[test]
fn bytes_spilled_to_and_loaded_from_disk_equal_the_record() {
    let mut table = String::from("step,device,host,loaded,written,least_loaded,least_written\n");
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

#[test]
fn a_step_above_a_disk_takes_as_long_as_the_disk_and_what_is_not_beside_it() {
    const GIB: u64 = 1 << 30;
    let (step, _) = recorded("gpt-7b-16k");
    let machine = Machine { link: 25e9, memory: 1000e9, flops: 80e12, disk: 3e9, ..Machine::INSTANT };
    let replay =
        Replay::new(&step, Limit::bytes(8 * GIB), Policy::Planned).on(machine).above_a_disk(24 * GIB);
    let replay = replay.run(ROUNDS).expect("every operation fits");
    let elapsed = replay.elapsed()[ROUNDS - 1];
    let least = Pace::of(&step, machine).least_above_a_disk(8 * GIB, 24 * GIB);
    assert!(elapsed.step >= least && elapsed.disk > elapsed.arithmetic);
    let moved = replay.disk_steps()[ROUNDS - 1].total();
    let fewest = disk_bound(&step, 32 * GIB, ROUNDS)[ROUNDS - 1].total();
    println!("{elapsed:?} of at least {least}; {moved} bytes of at least {fewest}");
    assert!(elapsed.step < elapsed.disk + 0.75 * elapsed.arithmetic);
    assert!(moved * 100 <= fewest * 105, "{moved} bytes of at least {fewest}");
    assert!(elapsed.step < 1.38 * least, "{elapsed:?} of at least {least}");
}
