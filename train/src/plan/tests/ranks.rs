//! Bytes, times and refusals of several ranks.

use super::*;

#[test]
fn a_step_takes_as_long_as_the_exchange_that_it_waits_for() {
    let of = |set: &[&str], network: Option<f64>| {
        let four = Machine { other_ranks: 3, network_bytes_per_second: network, ..card(8 * GIB) };
        plan("gpt-1.5b", &[&["train.accumulate=8", "train.together=1"], set].concat(), &four)
    };
    let times = |set: &[&str], network| of(set, network).step_seconds().expect("every speed is known");
    let near = |one: f64, other: f64| (one - other).abs() < 1e-6 * one;
    let network = Some(1.25e9);
    let (fast, slow) = times(&[], None);
    let exact = of(&[], network);
    let (sends, compute) =
        (exact.send_seconds.expect("known"), exact.compute_seconds.expect("every speed is known"));
    // Gradients leave during the second of two micro-batches.
    let ours = times(&[], network);
    assert!(near(ours.0, fast + sends - compute / 2.0) && near(ours.1, slow + sends), "{ours:?}");
    // New weights, half of what is sent, follow the update.
    let divided = of(&["memory.shard=states"], network);
    let (sharded, sends_all) = (divided.step_seconds().expect("known"), divided.send_seconds.expect("known"));
    assert!(sharded.0 >= compute + sends_all / 2.0, "{sharded:?}");

    let rounds = |round, network| times(&["ranks.exchange=rarely", round], network);
    let (alone, beside) = (rounds("ranks.round=1", None), rounds("ranks.round=1", network));
    assert!(near(beside.0, alone.0.max(sends)) && near(beside.1, alone.1.max(sends)), "{beside:?}");
    let (alone, beside) = (rounds("ranks.round=60 s", None), rounds("ranks.round=60 s", Some(25e6)));
    assert!(near(beside.0, alone.0 * sends * 50.0 / 60.0), "{beside:?} for {alone:?}");
}

#[test]
fn a_run_takes_its_exact_steps_and_its_last_exchange() {
    let of = |set: &[&str]| {
        let two = Machine { other_ranks: 1, network_bytes_per_second: Some(2.5e6), ..card(8 * GIB) };
        plan("gpt-124m", &[&["train.steps=200", "train.accumulate=2"], set].concat(), &two)
    };
    let exact = of(&[]).send_seconds.expect("known");
    let one_bit = of(&["ranks.exchange=one_bit", "ranks.warm_up=100"]);
    let (least, _) = one_bit.run_seconds().expect("known");
    let (step, _) = one_bit.step_seconds().expect("known");
    assert!(least > 100.0 * (exact - step) && step < exact / 10.0, "{least} s, {step} s a step, {exact} s");

    let rarely = of(&["ranks.exchange=rarely", "ranks.round=500 steps"]);
    let (least, _) = rarely.run_seconds().expect("known");
    let (step, _) = rarely.step_seconds().expect("known");
    assert!(least > 200.0 * step + 0.9 * exact, "{least} s, {step} s a step, {exact} s");
    assert!(
        rarely.to_string().contains("MiB sent by each after every round (\"500 steps\"), 4 min"),
        "{rarely}"
    );
}

#[test]
fn a_rank_sends_each_sum_that_its_micro_batches_leave() {
    let of = |ranks: usize, micro_batches: usize| {
        let ranks = Machine { other_ranks: ranks - 1, network_bytes_per_second: Some(1.0), ..card(8 * GIB) };
        let plan = plan("gpt-1.5b", &[&format!("train.accumulate={micro_batches}")], &ranks);
        (plan.bytes_sent_per_step, plan.send_seconds.expect("known"))
    };
    // Of three micro-batches each rank has two sums, of two one.
    assert_eq!(vec![of(2, 6), of(2, 4)], [(6 * XL, 6.0 * XL as f64), (4 * XL, 4.0 * XL as f64)]);
    // Of 64, three ranks leave 3, 5 and 3 sums.
    let third = (4 * XL).div_ceil(3);
    assert_eq!(vec![of(3, 64)], [((2 * third * 11).div_ceil(3) + 2 * third, 12.0 * third as f64)]);
}

#[test]
fn the_sums_of_whole_groups_are_those_of_one_process_and_one_leaves() {
    let of = |ranks: usize, micro_batches: usize, set: &[&str]| {
        let ranks = Machine { other_ranks: ranks - 1, ..card(8 * GIB) };
        let accumulate = format!("train.accumulate={micro_batches}");
        plan("gpt-1.5b", &[&[accumulate.as_str()], set].concat(), &ranks)
    };
    let partial = |plan: Plan| plan.held.iter().any(|part| part.what.contains("partial sums"));
    let together = ["train.together=16"];
    assert_eq!([of(1, 16, &together), of(2, 32, &together)].map(partial), [false, false]);
    assert_eq!(of(2, 64, &[]).residual_bytes, 8 * 50_304 * 1600);
}

#[test]
fn ranks_without_a_micro_batch_are_noted_and_in_local_steps_refused() {
    let of = |set: &[&str]| {
        let six = Machine { other_ranks: 5, ..card(8 * GIB) };
        plan("gpt-124m", &[&["train.accumulate=4"], set].concat(), &six)
    };
    let text = "6 ranks share 4 micro-batches of a step";
    assert!(of(&[]).notes.iter().any(|note| note.contains(text)), "{:?}", of(&[]).notes);
    assert!(of(&["ranks.exchange=rarely"]).refusals()[0].contains(text));
}

#[test]
fn ranks_whose_host_is_too_small_are_told_to_divide_the_weights() {
    let four = Machine { other_ranks: 3, host_free: Some(32 * GIB), ..card(8 * GIB) };
    let said = plan("gpt-7b", &[], &four).refusals().join(" ");
    assert!(said.contains("set `memory.shard` = \"weights\""), "{said}");
    assert_eq!(plan("gpt-7b", &["memory.shard=weights"], &four).refusals(), [""; 0]);
}

#[test]
fn the_rank_with_most_moments_of_muon_is_planned() {
    let two = Machine { other_ranks: 1, ..card(8 * GIB) };
    let set =
        ["train.optimizer=muon", "memory.optimizer=device", "memory.shard=states", "train.accumulate=2"];
    let divided = held(&plan("gpt-124m", &set, &two), "optimizer state").bytes;
    // Tables have two moments, matrices of blocks one: 313 MiB would be half of all.
    assert_eq!(divided >> 20, 384);
}
