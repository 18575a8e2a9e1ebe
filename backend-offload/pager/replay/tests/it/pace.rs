//! Recorded steps of 16,384 tokens at 25 GB/s each way and 80 TFLOP/s.

use crate::steps::{ROUNDS, assert_first_on_record, moved, recorded};
use pager::{Limit, Policy, Recording};
use pager_replay::{Elapsed, Machine, Pace, Replay, bound};
use std::fmt::Write;

/// The recorded CPU program fuses nothing, so it waits longer for memory.
const GPU: Machine = Machine { link: 25e9, memory: 1000e9, flops: 80e12, ..Machine::INSTANT };

/// Without waits for memory: the least arithmetic to hide copies.
const PRODUCTS_ALONE: Machine = Machine { memory: f64::INFINITY, ..GPU };

fn played(step: &Recording, budget: u64, machine: Machine) -> Vec<Elapsed> {
    let replay = Replay::new(step, Limit::bytes(budget), Policy::Planned).on(machine);
    replay.run(ROUNDS).expect("every operation fits").elapsed().to_vec()
}

/// Time over the longest part: operations or copies in either direction.
fn of_the_longest(elapsed: &Elapsed) -> f64 {
    elapsed.step / elapsed.arithmetic.max(elapsed.out).max(elapsed.back)
}

const ON_DEVICE: [&str; 3] = ["gpt-124m-16k", "gpt-1.5b-16k", "gpt-7b-16k"];

/// Percent of a step's memory, and its longest time over the longest part.
const LIMITS: [(u64, f64); 3] = [(75, 1.1), (50, 1.1), (25, 1.2)];

#[test]
fn steps_of_16k_tokens_take_little_longer_than_the_longest_of_their_parts() {
    let mut table = String::from(
        "step,residency,in,out,least_in,least_out,second,steady,of_the_least,products_alone,products_alone_of_the_least\n",
    );
    for &name in suite::first(1, &ON_DEVICE) {
        let (step, peak) = recorded(name);
        let [pace, bare] = [GPU, PRODUCTS_ALONE].map(|machine| Pace::of(&step, machine));
        for (share, limit) in LIMITS {
            let budget = peak * share / 100;
            let least = bound(&step, budget, ROUNDS)[ROUNDS - 1];
            let rounds = moved(&step, budget, Policy::Planned);
            for round in &rounds[1..] {
                let (moved, least) = (round.total(), least.total());
                assert!(moved * 10 <= least * 11, "{name} at {share} %: {moved} of at least {least}");
            }
            let steady = rounds[ROUNDS - 1];
            let integers = [steady, least].map(|moved| format!("{},{}", moved.bytes_in, moved.bytes_out));

            let rounds = played(&step, budget, GPU);
            let ratios: Vec<f64> = rounds.iter().map(of_the_longest).collect();
            assert!(ratios[1..].iter().all(|ratio| *ratio <= limit), "{name} at {share} %: {ratios:?}");
            let alone = played(&step, budget, PRODUCTS_ALONE)[ROUNDS - 1];
            let of_least = rounds[ROUNDS - 1].step / pace.least(budget);
            let alone_of_least = alone.step / bare.least(budget);
            assert!(of_least.min(alone_of_least) > 0.999, "{name} at {share} %: faster than possible");
            assert!(of_least < 1.05, "{name} at {share} %: {of_least} of the least time");
            let numbers = [ratios[1], ratios[ROUNDS - 1], of_least, of_the_longest(&alone), alone_of_least];
            let numbers = numbers.map(|ratio| format!("{ratio:.3}")).join(",");
            writeln!(table, "{name},{share}%,{},{numbers}", integers.join(",")).expect("a string");
        }
    }
    assert_first_on_record("pace.csv", &table);
}

struct OnHost {
    step: &'static str,
    budget: u64,
    /// Lowest and highest measured bytes per second of the host's step (`benchmarks/runs/2026-11-25-cpu-host-step`).
    host: [f64; 2],
    /// Bytes read and written per byte of new weights, two of which are a parameter.
    per_weight: f64,
}

const ON_HOST: [OnHost; 2] = [
    // State in `bf16`.
    OnHost { step: "gpt-7b-host", budget: 8 << 30, host: [43.3e9, 53.4e9], per_weight: 10.0 },
    // State in `compact`.
    OnHost { step: "llama-18b-host", budget: 24 << 30, host: [31.2e9, 35.0e9], per_weight: 7.0 },
];

#[test]
fn models_with_the_optimizer_on_the_host_take_little_longer_than_their_longest_part_on_one_card() {
    let mut table =
        String::from("step,memory,host_step,steady,step_seconds,arithmetic,in,out,host,of_the_least\n");
    for &OnHost { step: name, budget, host, per_weight } in suite::first(1, &ON_HOST) {
        let (step, peak) = recorded(name);
        assert!(budget < peak / 2, "{name}: {peak}");
        // Time over the longest part, with a card's memory and without waits for memory.
        for (machine, limit) in [(GPU, 1.05), (PRODUCTS_ALONE, 1.08)] {
            for rate in host {
                let machine = Machine { host: rate / per_weight, ..machine };
                let elapsed = played(&step, budget, machine)[ROUNDS - 1];
                let Elapsed { step: seconds, arithmetic, back, out, host, .. } = elapsed;
                let of_least = seconds / Pace::of(&step, machine).least(budget);
                let ratio = of_the_longest(&elapsed);
                assert!(
                    ratio <= limit,
                    "{name}: {ratio} at {rate:e} bytes per second on the host, {machine:?}"
                );
                let numbers = [ratio, seconds, arithmetic, back, out, host, of_least];
                let numbers = numbers.map(|number| format!("{number:.3}")).join(",");
                writeln!(table, "{name},{:e},{rate:e},{numbers}", machine.memory).expect("a string");
            }
        }
    }
    assert_first_on_record("host.csv", &table);
}
