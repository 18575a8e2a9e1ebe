//! Recorded training steps under budgets: bytes against the offline bound, exact to the byte.
//!
//! `PAGER_WRITE_GOLDEN=1` writes the table of bytes anew.

use pager::{Limit, Moved, Policy, Recording, Replay, bound};
use std::fmt::Write;
use std::path::PathBuf;

const STEPS: [&str; 4] = ["toy", "gpt-124m", "gpt-1.5b", "gpt-7b"];

/// Once to be learned, and then as it stays.
pub(crate) const ROUNDS: usize = 4;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("traces").join(name)
}

pub(crate) fn recorded(name: &str) -> (Recording, u64) {
    let bytes = std::fs::read(file(&format!("{name}.trace"))).expect("a committed recording");
    let step = Recording::from_bytes(&bytes).expect("a recording");
    let free = Replay::new(&step, Limit::NONE, Policy::Planned).run(2).expect("no budget is too small");
    let peak = free.pager().ledger().resident_peak();
    (step, peak)
}

pub(crate) fn moved(step: &Recording, budget: u64, policy: Policy) -> Vec<Moved> {
    let played = Replay::new(step, Limit::bytes(budget), policy).run(ROUNDS);
    played.expect("every operation fits").steps().to_vec()
}

/// Compares a table with the committed one, which `PAGER_WRITE_GOLDEN=1` writes anew before.
pub(crate) fn assert_on_record(name: &str, table: &str) {
    if std::env::var_os("PAGER_WRITE_GOLDEN").is_some() {
        std::fs::write(file(name), table).expect("the table can be written");
    }
    assert_eq!(table, std::fs::read_to_string(file(name)).expect("a committed table"));
}

#[test]
fn bytes_of_recorded_steps_are_on_record_below_recency_and_within_a_tenth_of_the_bound() {
    let mut table = String::from(
        "step,residency,second_in,second_out,steady_in,steady_out,least_in,least_out,recency_in,recency_out\n",
    );
    for name in STEPS {
        let (step, peak) = recorded(name);
        for share in [75, 50, 25] {
            let budget = peak * share / 100;
            let least = bound(&step, budget, ROUNDS)[ROUNDS - 1];
            let rounds = moved(&step, budget, Policy::Planned);
            let [_, second, third, steady] = rounds[..] else { panic!("{ROUNDS} rounds") };
            for moved in [second, third, steady] {
                let (moved, least) = (moved.total(), least.total());
                assert!(moved * 10 <= least * 11, "{name} at {share} %: {moved} of at least {least}");
            }
            let recency = moved(&step, budget, Policy::Recency)[ROUNDS - 1];
            assert!(
                steady.total() < recency.total(),
                "{name} at {share} %: {steady:?}, by recency {recency:?}"
            );
            let numbers = [second, steady, least, recency]
                .map(|moved| format!("{},{}", moved.bytes_in, moved.bytes_out));
            writeln!(table, "{name},{share}%,{}", numbers.join(",")).expect("a string");
        }
    }
    assert_on_record("moved.csv", &table);
}

#[test]
fn recorded_steps_that_fit_move_nothing_after_the_first() {
    for name in STEPS {
        let (step, peak) = recorded(name);
        let rounds = moved(&step, peak, Policy::Planned);
        assert!(rounds[1..].iter().all(|moved| moved.total() == 0), "{name}: {rounds:?}");
    }
}

#[test]
fn more_memory_never_moves_more() {
    for name in STEPS {
        let (step, peak) = recorded(name);
        let mut before = u64::MAX;
        for share in (25..=100).step_by(5) {
            let steady = moved(&step, peak * share / 100, Policy::Planned)[ROUNDS - 1].total();
            assert!(steady <= before, "{name} at {share} %: {steady}, with less memory {before}");
            before = steady;
        }
    }
}
