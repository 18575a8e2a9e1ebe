//! Ranks that exchange weights every few steps: few bytes, equal weights for evaluations and saves, exact resumes.

use std::fs;

use crate::program::{assert_code, assert_success, json, stderr};
use crate::ranks::{SHARED, has_mpi};
use crate::tiny::{TIGHT, Tiny, bits};

const RARELY: [&str; 2] = ["ranks.exchange=rarely", "ranks.local_steps=3"];

const FEW: u64 = 256;

#[test]
fn weights_are_sent_after_every_third_step_and_gradients_never() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [&SHARED[..], &RARELY, &["train.steps=7"]].concat();
    let output = tiny.attempt_on("2", "run", &settings);
    assert_success(&output);

    let weights = 4 * json(&output)["parameters"].as_u64().expect("a number");
    let planned = tiny.planned_on_two(&settings);
    assert_eq!(planned["bytes_sent_per_step"], weights.div_ceil(3));
    assert_eq!(planned["residual_bytes"], 2 * weights);

    for journal in ["run", "run/ranks/1"] {
        for step in tiny.records(journal, "step") {
            let [at, sent] = ["step", "ranks_sent"].map(|key| step[key].as_u64().expect("a number"));
            let least = if [3, 6, 7].contains(&at) { weights } else { 0 };
            assert!((least..least + FEW).contains(&sent), "{journal}, step {at}: {sent} of {weights}");
        }
    }
}

#[test]
fn a_run_evaluates_and_saves_only_common_weights() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let often = ["train.steps=8", "eval.every=2", "checkpoint.every=1", "checkpoint.keep_last=9"];
    tiny.run_on("2", "run", &[&SHARED[..], &RARELY, &often].concat());
    assert_eq!(tiny.whole_checkpoints("run"), [8, 6, 3]);
    let evaluated = tiny.records("run", "eval").into_iter().map(|eval| eval["step"].as_u64());
    assert_eq!(evaluated.collect::<Option<Vec<_>>>().expect("steps"), [3, 6, 8]);
}

#[test]
fn a_budget_changes_no_bit_of_local_and_outer_steps() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    for (n, optimizer) in suite::first(1, &["adamw", "muon"]).iter().enumerate() {
        let optimizer = format!("train.optimizer={optimizer}");
        let settings = [&SHARED[..], &RARELY, &[&optimizer]].concat();
        let roomy = tiny.run_on("2", &format!("roomy-{n}"), &settings);
        let tight = tiny.run_on("2", &format!("tight-{n}"), &[&settings[..], &[TIGHT]].concat());
        assert_eq!(tight, roomy, "{optimizer}");
        assert_ne!(
            roomy,
            bits(&tiny.run(&format!("alone-{n}"), &settings)),
            "{optimizer}: nobody stepped apart"
        );
    }
}

#[test]
fn a_run_resumes_with_each_ranks_moments_to_the_bits_of_an_uninterrupted_one() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [&SHARED[..], &RARELY].concat();
    let whole = tiny.run_on("2", "whole", &[&settings[..], &["train.steps=10"]].concat());
    let often = ["train.steps=6", "checkpoint.every=1", "checkpoint.keep_last=9"];
    tiny.run_on("2", "run", &[&settings[..], &often].concat());
    let (resumed, said) = tiny.resume_with_log("2", "run", &["train.steps=10"]);
    assert!(!said.contains("without momentum"), "{said}");
    assert_eq!(bits(&resumed), whole);

    let lost = "run/checkpoints/step-00000006";
    for (missing, rank) in [("1/moments-00000006", "rank 1"), ("0/outer-momentum-00000006", "rank 0")] {
        let path = tiny.join("run/ranks").join(missing);
        let saved = fs::read(&path).expect("saved beside the checkpoint");
        fs::remove_file(&path).expect("removed");
        let (otherwise, said) = tiny.resume_with_log("2", lost, &["train.steps=10"]);
        let note =
            format!("outer steps begin without momentum, and every rank with the moments of rank 0: {rank}");
        assert!(said.contains(&note), "{said}");
        assert_ne!(bits(&otherwise), whole, "{missing}");
        fs::write(&path, saved).expect("put back");
    }
    let (again, _) = tiny.resume_with_log("2", lost, &["train.steps=10"]);
    assert_eq!(bits(&again), whole);

    let (_, said) = tiny.resume_with_log("1", lost, &["train.steps=7"]);
    assert!(!said.contains("momentum"), "{said}");
}

#[test]
fn a_run_that_diverges_in_local_steps_ends_with_common_weights() {
    if has_mpi() {
        Tiny::new().assert_divergence_stops_two(&[RARELY[0], "ranks.local_steps=4"]);
    }
}

#[test]
fn settings_that_exclude_local_steps_are_refused_by_name() {
    let tiny = Tiny::new();
    let settings = [RARELY[0], "memory.shard=true", "memory.optimizer=host", "ranks.local_steps=0"];
    let output = tiny.attempt("run", &settings);
    assert_code(&output, 2);
    let said = stderr(&output);
    for named in ["`memory.shard` divides", "`memory.optimizer` = \"host\"", "`ranks.local_steps` = 0"] {
        assert!(said.contains(named), "{said}");
    }
}

#[test]
fn local_steps_are_refused_where_a_rank_has_no_micro_batch() {
    if !has_mpi() {
        return;
    }
    let output = Tiny::new().attempt_on("2", "run", &[&RARELY[..], &["train.accumulate=1"]].concat());
    assert_code(&output, 2);
    assert!(stderr(&output).contains("every rank needs one"), "{}", stderr(&output));
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: compares learning over 60 steps"]
    fn local_steps_learn_nearly_as_well_as_exact_sums() {
        if has_mpi() {
            Tiny::new()
                .assert_learns_on_two_nearly_as_well_as_exact(&[RARELY[0], "ranks.local_steps=5"], 0.4);
        }
    }
}
