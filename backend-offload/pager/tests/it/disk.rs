//! Recorded steps with a quarter of their bytes on the device, a quarter on the host, and the rest below.
//!
//! `PAGER_WRITE_GOLDEN=1` writes the table anew.

use crate::steps::{assert_on_record, recorded};
use pager::{Limit, Policy, Replay, bound};
use std::fmt::Write;

const ROUNDS: usize = 4;

#[test]
fn what_sinks_and_is_raised_are_the_very_bytes_on_record() {
    let mut table = String::from("step,raised,written,least_raised,least_written\n");
    for name in ["toy", "gpt-124m"] {
        let (step, peak) = recorded(name);
        let (device, host) = (peak / 4, peak / 4);
        let replay = Replay::new(&step, Limit::bytes(device), Policy::Planned).above_a_disk(host);
        let replay = replay.run(ROUNDS).expect("every operation fits");
        let disk = replay.disk_steps().last().expect("a step");
        // What is neither on the device nor on the host at a moment is on the disk, whoever decides.
        let least = *bound(&step, device + host, ROUNDS).last().expect("a step");
        assert!(disk.total() * 100 <= least.total() * 113, "{name}: {disk:?}, at least {least:?}");
        let bytes = [disk.bytes_in, disk.bytes_out, least.bytes_in, least.bytes_out];
        let bytes = bytes.map(|bytes| bytes.to_string()).join(",");
        writeln!(table, "{name},{bytes}").expect("a string");
    }
    assert_on_record("disk.csv", &table);
}
