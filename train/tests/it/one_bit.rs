//! One bit per element between ranks: a thirtieth of the bytes, equal weights, residuals that survive a stop.

use std::fs;
use std::time::Instant;

use safetensors::SafeTensors;

use crate::program::{assert_code, assert_success, json, stderr};
use crate::ranks::{SHARED, has_mpi, on, set};
use crate::tiny::{Tiny, bits};

const ONE_BIT: [&str; 2] = ["ranks.exchange=one_bit", "ranks.warm_up=2"];

/// Packed size: a bit each, and a scale per 2048.
fn packed(numbers: u64) -> u64 {
    numbers.div_ceil(8) + 4 * numbers.div_ceil(2048)
}

/// Exact steps show the bytes besides gradients.
#[test]
fn one_bit_after_exact_steps_sends_at_most_a_thirtieth_of_the_gradients() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [&SHARED[..], &ONE_BIT].concat();
    let output = tiny.attempt_on("2", "run", &settings);
    assert_success(&output);

    let gradients = 4 * json(&output)["parameters"].as_u64().expect("a number");
    let planned = tiny.planned_on_two(&settings);
    let planned = planned["bytes_sent_per_step"].as_u64().expect("a number");
    let file = fs::read(tiny.join("run/checkpoints/step-00000004/model.safetensors")).expect("reading");
    let tensors = SafeTensors::deserialize(&file).expect("a whole file");
    let numbers = tensors.iter().map(|(_, tensor)| tensor.shape().iter().product::<usize>() as u64);

    // Each rank sends one half to be summed, and the other half's sum.
    let compressed: u64 = numbers.map(|all| packed(all / 2) + packed(all.div_ceil(2))).sum();
    assert!(30 * compressed <= gradients, "{compressed} of {gradients}");
    assert!(compressed.abs_diff(planned) * 100 <= planned, "{compressed} bytes, {planned} planned");

    for journal in ["run", "run/ranks/1"] {
        let sent = tiny.records(journal, "step").into_iter().map(|step| step["ranks_sent"].as_u64());
        let sent = sent.collect::<Option<Vec<_>>>().expect("every step tells");
        let beside = sent[0] - gradients;
        assert_eq!(
            sent,
            [gradients, gradients, compressed, compressed].map(|bytes| bytes + beside),
            "{journal}"
        );
    }
}

#[test]
fn a_run_without_the_keys_and_an_exact_start_have_the_bits_of_one_process() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let one = bits(&tiny.run("one", &SHARED));
    assert_eq!(tiny.run_on("2", "exact", &[&SHARED[..], &["ranks.exchange=exact"]].concat()), one);
    assert_eq!(bits(&tiny.run("alone", &[&SHARED[..], &ONE_BIT].concat())), one);
    let compressed = tiny.run_on("2", "run", &[&SHARED[..], &ONE_BIT].concat());
    assert_ne!(compressed, one, "nothing was compressed");
    let (exact, other) = (tiny.losses("one"), tiny.losses("run"));
    assert_eq!(exact[..3], other[..3]);
    assert_ne!(exact[3].to_bits(), other[3].to_bits());
}

#[test]
fn a_run_resumes_with_its_residuals_to_the_bits_of_an_uninterrupted_one() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let cases: [&[&str]; 2] = [&[], &["memory.optimizer=host", "train.accumulate=6"]];
    for (n, more) in suite::first(1, &cases).iter().enumerate() {
        let settings = [&SHARED[..], &ONE_BIT, *more].concat();
        let whole = tiny.run_on("2", &format!("whole-{n}"), &[&settings[..], &["train.steps=7"]].concat());
        let run = format!("run-{n}");
        tiny.run_on(
            "2",
            &run,
            &[&settings[..], &["train.steps=4", "checkpoint.every=1", "checkpoint.keep_last=9"]].concat(),
        );
        let (resumed, said) = tiny.resume_with_log("2", &run, &["train.steps=7"]);
        assert!(!said.contains("without the residuals"), "{said}");
        assert_eq!(bits(&resumed), whole, "{more:?}");
        let lost = format!("{run}/checkpoints/step-00000004");
        fs::remove_file(tiny.join(&format!("{run}/ranks/0/residuals-00000004")))
            .expect("rank 0 saved its own");
        let (otherwise, said) = tiny.resume_with_log("2", &lost, &["train.steps=7"]);
        assert!(said.contains("without the residuals"), "{said}");
        assert_ne!(bits(&otherwise), whole, "{more:?}");
    }
}

#[test]
fn residuals_that_do_not_fit_the_ranks_are_dropped_with_a_note() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let settings = [&SHARED[..], &ONE_BIT].concat();
    tiny.run_on("4", "run", &settings);
    let (_, said) = tiny.resume_with_log("2", "run", &["train.steps=6"]);
    assert!(
        said.contains("without the residuals of this checkpoint: rank 0: they are those of 4 ranks"),
        "{said}"
    );
    fs::remove_file(tiny.join("run/ranks/1/residuals-00000006")).expect("rank 1 saved its own");
    let (_, said) = tiny.resume_with_log("2", "run", &["train.steps=8"]);
    assert!(said.contains("without the residuals of this checkpoint: rank 1: reading "), "{said}");
    let (_, said) = tiny.resume_with_log("1", "run", &["train.steps=9"]);
    assert!(!said.contains("residuals"), "{said}");
}

#[test]
fn a_diverging_step_is_skipped_by_all_ranks_and_leaves_no_nan_in_residuals() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    tiny.assert_divergence_stops_two(&[ONE_BIT[0], "ranks.warm_up=0"]);
    let step = *tiny.whole_checkpoints("run").iter().max().expect("the last whole weights were saved");
    for rank in 0..2 {
        let saved =
            fs::read(tiny.join(&format!("run/ranks/{rank}/residuals-{step:08}"))).expect("saved, too");
        // A line describes the content; a digest follows.
        let begin = saved.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        let numbers = saved[begin..saved.len() - 32].chunks_exact(4);
        let owed: Vec<f32> =
            numbers.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect();
        assert!(owed.iter().any(|number| *number != 0.0), "rank {rank} owes nothing");
        assert!(owed.iter().all(|number| number.is_finite()), "rank {rank}");
    }
}

#[test]
fn one_bit_with_sharded_moments_is_refused_by_name() {
    let tiny = Tiny::new();
    let output = tiny.attempt("run", &[&ONE_BIT[..], &["memory.shard=true"]].concat());
    assert_code(&output, 2);
    assert!(stderr(&output).contains("`memory.shard` sends whole weights"), "{}", stderr(&output));
}

mod gate {
    use super::*;

    /// Rank 0 samples after the last step, and the other has saved its own meanwhile.
    #[test]
    #[ignore = "gate: samples for seconds"]
    fn a_rank_waits_for_the_last_checkpoint_while_rank_0_samples() {
        if !has_mpi() {
            return;
        }
        let tiny = Tiny::new();
        let prompts = format!("eval.prompts={}", serde_json::json!(vec!["a"; 8000]));
        let settings =
            [&SHARED[..], &ONE_BIT, &["eval.max_new_tokens=24", "eval.sample_every=4", &prompts]].concat();
        let begin =
            ["--config", "tiny.json", "--device", "cpu", "--json", "--out", "run", "--rank-timeout", "1"];
        let begun = Instant::now();
        assert_success(&tiny.train_on_ranks(&[&begin[..], &on("2"), &set(&settings)].concat()));
        let steps = tiny.records("run", "step");
        let seconds = begun.elapsed().as_secs_f64() - steps[3]["seconds"].as_f64().expect("a number");
        println!("{seconds} s besides the steps");
        assert!(seconds > 3.0, "samples took no longer than the time-out: {seconds} s");
    }

    #[test]
    #[ignore = "gate: compares learning over 60 steps"]
    fn one_bit_learns_nearly_as_well_as_exact() {
        if has_mpi() {
            Tiny::new().assert_learns_on_two_nearly_as_well_as_exact(&[ONE_BIT[0], "ranks.warm_up=10"], 0.25);
        }
    }
}
