//! Bytes and time of recorded steps with moves ahead.

use crate::steps::{assert_on_record, recorded};
use pager::{Limit, Policy, Recording};
use pager_replay::{Elapsed, Machine, Moved, Replay, bound};
use std::fmt::Write;

const ROUNDS: usize = 6;

/// Bytes per second. Only the ratio to arithmetic matters.
const LINK: f64 = 25e9;

fn played(step: &Recording, budget: u64, arithmetic: f64) -> Replay<'_> {
    let replay = Replay::new(step, Limit::bytes(budget), Policy::Planned);
    replay
        .on(Machine { link: LINK, memory: arithmetic, ..Machine::INSTANT })
        .run(ROUNDS)
        .expect("every operation fits")
}

/// Time of the last two steps: blocks of one may leave in the next.
fn last(replay: &Replay) -> Elapsed {
    let sum = |part: fn(&Elapsed) -> f64| replay.elapsed()[ROUNDS - 2..].iter().map(part).sum();
    Elapsed {
        step: sum(|elapsed| elapsed.step),
        arithmetic: sum(|elapsed| elapsed.arithmetic),
        out: sum(|elapsed| elapsed.out),
        back: sum(|elapsed| elapsed.back),
        host: sum(|elapsed| elapsed.host),
        disk: sum(|elapsed| elapsed.disk),
    }
}

fn moved(replay: &Replay) -> [u64; 2] {
    let sum = |part: fn(&Moved) -> u64| replay.steps()[ROUNDS - 2..].iter().map(part).sum();
    [sum(|moved| moved.bytes_in), sum(|moved| moved.bytes_out)]
}

fn handled(step: &Recording, peak: u64) -> f64 {
    last(&played(step, peak, 1.0)).arithmetic / 2.0
}

#[test]
fn copies_run_beside_arithmetic_and_cost_the_very_bytes_on_record() {
    let mut table =
        String::from("step,residency,in,out,least_in,least_out,waited,waited_without_looking_ahead\n");
    for name in ["toy", "gpt-124m", "gpt-1.5b"] {
        let (step, peak) = recorded(name);
        let handled = handled(&step, peak);
        for share in [75, 50, 25] {
            let budget = peak * share / 100;
            let least = *bound(&step, budget, ROUNDS).last().expect("a step");
            let seconds = 2.0 * least.bytes_in.max(least.bytes_out) as f64 / LINK;
            let ahead = played(&step, budget, handled / seconds);
            let elapsed = last(&ahead);
            let serial =
                Replay::new(&step, Limit::bytes(budget), Policy::Planned).run(ROUNDS).expect("it fits");
            let serial = moved(&serial).iter().sum::<u64>() as f64 / LINK;
            // Shares of arithmetic time.
            let waited = (elapsed.step - elapsed.arithmetic) / elapsed.arithmetic;
            let without = serial / elapsed.arithmetic;
            assert!(waited < 0.6 * without, "{name} at {share} %: waited {waited:.3}, without {without:.3}");
            let [bytes_in, bytes_out] = moved(&ahead);
            let (moved, least_moved) = (bytes_in + bytes_out, 2 * least.total());
            assert!(moved * 10 <= least_moved * 11, "{name} at {share} %: {moved} of at least {least_moved}");
            let bytes = [bytes_in, bytes_out, 2 * least.bytes_in, 2 * least.bytes_out];
            let bytes = bytes.map(|bytes| bytes.to_string()).join(",");
            writeln!(table, "{name},{share}%,{bytes},{waited:.3},{without:.3}").expect("a string");
        }
    }
    assert_on_record("ahead.csv", &table);
}

#[test]
fn a_step_that_fits_moves_nothing_ahead() {
    let (step, peak) = recorded("toy");
    let replay = played(&step, peak, LINK);
    let counters = replay.pager().counters();
    assert_eq!((counters.ahead.left_ahead, counters.ahead.brought_ahead), (0, 0));
    let Elapsed { step, arithmetic, .. } = last(&replay);
    assert!((step - arithmetic).abs() < 1e-9 * arithmetic, "{step} for {arithmetic}");
}

#[test]
fn the_timeline_of_a_step_adds_up_to_its_time_and_stays_within_the_budget() {
    let (step, peak) = recorded("toy");
    let budget = peak / 2;
    let replay = played(&step, budget, 40.0 * LINK);
    let (timeline, elapsed) = (replay.timeline().expect("on a machine"), replay.elapsed()[ROUNDS - 1]);
    let sum = |stretches: &[(f64, f64)]| stretches.iter().map(|(from, until)| until - from).sum::<f64>();
    let close = |one: f64, other: f64| (one - other).abs() < 1e-9 * elapsed.step;
    let waited = elapsed.step - elapsed.arithmetic;
    assert!(waited > 0.0 && close(sum(&timeline.waited), waited), "{waited}, of {:?}", timeline.waited);
    assert!(close(sum(&timeline.out), elapsed.out) && close(sum(&timeline.back), elapsed.back));
    assert!(
        timeline.resident.iter().all(|(at, bytes)| *bytes <= budget && (0.0..=elapsed.step).contains(at))
    );
    assert!(timeline.resident.is_sorted_by(|one, next| one.0 <= next.0));
}

#[test]
fn the_budget_holds_while_moves_are_ahead() {
    let (step, peak) = recorded("toy");
    for share in [60, 40, 20] {
        let budget = peak * share / 100;
        let replay = played(&step, budget, LINK);
        assert!(replay.pager().ledger().reserved_peak() <= budget);
        assert!(
            replay.pager().counters().ahead.brought_ahead > 0
                && replay.pager().counters().ahead.left_ahead > 0
        );
    }
}
