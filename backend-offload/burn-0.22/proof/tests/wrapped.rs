//! Burn 0.22 programs over a wrapped server on Vulkan. Each runs in a process of its own: a device starts once.

use std::collections::HashMap;
use std::process::Command;

use suite::Need;

const PROGRAMS: [&str; 2] = ["mlp", "transformer"];

type Said = HashMap<String, String>;

fn run(arguments: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_proof"))
        .args(arguments)
        .env_remove("OFFLOAD_DEVICE_BUDGET")
        .output()
        .expect("the program starts");
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {error}");
    println!("{arguments:?}: {said}");
    let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    said.split_whitespace().filter_map(pair).collect()
}

fn number(said: &Said, name: &str) -> u64 {
    said[name].parse().unwrap_or_else(|_| panic!("{name} is no number: {said:?}"))
}

/// Launches, allocations, bytes read and written.
fn counts(list: &str) -> [u64; 4] {
    let numbers = list.trim_matches(['[', ']']).split(',').map(|count| count.parse().expect("a count"));
    numbers.collect::<Vec<u64>>().try_into().expect("four counts")
}

fn lacks_vulkan() -> bool {
    let here = std::path::Path::new("/usr/share/vulkan/icd.d").exists();
    !Need::Vulkan.is_met((!here).then_some("this machine has no Vulkan driver"))
}

#[test]
fn budgets_change_no_bit_of_losses_and_weights_on_burn_22() {
    if lacks_vulkan() {
        return;
    }
    for program in PROGRAMS {
        let plain = run(&[program, "plain"]);
        let free = run(&[program, "spill", "unlimited"]);
        assert_eq!(plain["digest"], free["digest"], "{program}");
        assert_eq!((number(&free, "evictions"), number(&free, "bytes_out")), (0, 0), "all fits");

        let (peak, least) = (number(&free, "peak"), number(&free, "largest_launch"));
        for budget in [peak / 2, peak / 4, least] {
            let budget = budget.max(least);
            let spilled = run(&[program, "spill", &format!("{budget}B")]);
            assert_eq!(plain["digest"], spilled["digest"], "{program} under {budget} bytes");
            assert!(number(&spilled, "evictions") > 0, "{program} under {budget} bytes: {spilled:?}");
            assert!(number(&spilled, "reserved") <= budget, "{spilled:?}");
            assert_eq!(number(&spilled, "failures"), 0);
        }
    }
}

#[test]
fn every_launch_allocation_read_and_write_passes_the_wrapper() {
    if lacks_vulkan() {
        return;
    }
    for program in PROGRAMS {
        let free = run(&[program, "counted", "unlimited"]);
        check_counts(&free);
        let quarter = run(&[program, "counted", &format!("{}B", number(&free, "peak") / 4)]);
        check_counts(&quarter);
        assert!(number(&quarter, "again") > 0 && number(&free, "again") == 0, "{quarter:?}");
    }
}

fn check_counts(said: &Said) {
    let [asked, received, passed, inside] =
        ["asked", "received", "passed", "inside"].map(|server| counts(&said[server]));
    assert_eq!(asked, received, "clients and wrapper: {said:?}");
    assert_eq!(passed, inside, "wrapper and inner server: {said:?}");
    assert_eq!(said["plain_server"], "false");

    let [launches, allocations, read, written] = asked;
    assert_eq!([launches, inside[0]], [number(said, "observed"); 2], "CubeCL's own count: {said:?}");
    let [small, first, again, unused] = ["small", "first", "again", "unused"].map(|name| number(said, name));
    assert_eq!(allocations, small + first + unused, "a buffer took memory or was dropped unused: {said:?}");
    assert_eq!(inside[1], small + first + again, "{said:?}");
    assert_eq!(number(said, "refused"), 0);
    assert_eq!(inside[2], read + number(said, "bytes_out"), "{said:?}");
    assert_eq!(inside[3], written + number(said, "bytes_in"), "{said:?}");
}

#[test]
fn a_launch_that_fits_costs_less_than_a_microsecond_more() {
    if lacks_vulkan() {
        return;
    }
    let said = run(&["cost"]);
    assert!(number(&said, "median_ns") < 1000, "{said:?}");
}
