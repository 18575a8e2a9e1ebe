//! Recorded steps whose bf16 or 8-bit weights always come from the host.

use crate::steps::{ROUNDS, assert_on_record, moved, recorded};
use pager::Policy;
use pager_replay::{Moved, bound};
use std::fmt::Write;

const SHARES: [u64; 3] = [100, 75, 50];

fn planned(name: &str, share: u64) -> [Moved; 3] {
    let (step, peak) = recorded(name);
    let budget = peak * share / 100;
    let rounds = moved(&step, budget, Policy::Planned);
    [rounds[1], rounds[ROUNDS - 1], bound(&step, budget, ROUNDS)[ROUNDS - 1]]
}

#[test]
fn streamed_weights_move_at_most_a_tenth_more_than_they_must_and_the_very_bytes_on_record() {
    let mut table =
        String::from("step,residency,second_in,second_out,steady_in,steady_out,least_in,least_out\n");
    for name in ["streamed", "streamed-int8"] {
        for share in SHARES {
            let numbers = planned(name, share);
            let [second, steady, least] = numbers.map(Moved::total);
            assert!(second.max(steady) * 10 <= least * 11, "{name} at {share} %: {numbers:?}");
            let numbers = numbers.map(|moved| format!("{},{}", moved.bytes_in, moved.bytes_out));
            writeln!(table, "{name},{share}%,{}", numbers.join(",")).expect("a string");
        }
    }
    assert_on_record("streamed.csv", &table);
}

#[test]
fn weights_in_eight_bits_move_at_most_two_thirds_of_what_they_do_in_sixteen() {
    for share in SHARES {
        let [[_, sixteen, _], [_, eight, _]] = ["streamed", "streamed-int8"].map(|name| planned(name, share));
        assert!(eight.total() * 3 <= sixteen.total() * 2, "at {share} %: {eight:?} after {sixteen:?}");
    }
}
