//! Late sums, which belong to the step before: evaluations and saves wait for them, and bits do not depend on the
//! number of ranks.

use crate::program::{assert_code, assert_success, json, stderr};
use crate::ranks::{SHARED, has_mpi};
use crate::tiny::{TIGHT, Tiny, bits};

const LATE: &str = "ranks.exchange=late";

#[test]
fn late_sums_awaited_after_each_step_equal_exact_ones() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let cases = [["train.optimizer=adamw", TIGHT], ["train.optimizer=muon", "train.recompute=1"]];
    for (n, more) in suite::first(1, &cases).iter().enumerate() {
        let settings = [&SHARED[..], more].concat();
        let exact = bits(&tiny.run(&format!("exact-{n}"), &settings));
        let seen = [&settings[..], &[LATE, "checkpoint.every=1"]].concat();
        assert_eq!(tiny.run_on("2", &format!("seen-{n}"), &seen), exact, "{more:?}");
        assert_eq!(tiny.losses(&format!("seen-{n}")), tiny.losses(&format!("exact-{n}")), "{more:?}");
        let unseen = [&settings[..], &[LATE]].concat();
        let two = tiny.run_on("2", &format!("two-{n}"), &unseen);
        assert_ne!(two, exact, "{more:?}: nothing came late");
        assert_eq!(tiny.run_on("4", &format!("four-{n}"), &unseen), two, "{more:?}");
    }
    // One process waits for no other.
    let alone = bits(&tiny.run("alone", &[&SHARED[..], &[LATE]].concat()));
    assert_eq!(alone, bits(&tiny.run("exact", &SHARED)));
}

#[test]
fn the_first_step_changes_no_weight_and_the_last_sums_are_applied() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let settings = [&SHARED[..], &[LATE, "train.overfit_one_batch=true", "train.steps=5"]].concat();
    let output = tiny.attempt_on("2", "run", &settings);
    assert_success(&output);
    let losses = tiny.losses("run");
    assert_eq!(losses[0].to_bits(), losses[1].to_bits(), "step 2 begins with the first weights");
    assert!(losses[2] < losses[1] && losses[4] < losses[3], "{losses:?}");
    // Five steps make five updates: four late ones, and the last one before the run ends.
    let gradients = 4 * json(&output)["parameters"].as_u64().expect("a number");
    let sent =
        tiny.records("run", "step").into_iter().map(|step| step["ranks_sent"].as_u64().expect("a number"));
    let sent: u64 = sent.sum();
    assert!((5 * gradients..5 * (gradients + 256)).contains(&sent), "{sent} bytes of {gradients} each");
    let planned = tiny.planned_on_two(&settings);
    assert_eq!(planned["bytes_sent_per_step"], gradients);
    // A rank's two micro-batches add up to one sum, and its total is another.
    assert_eq!(planned["residual_bytes"], 2 * gradients);
}

#[test]
fn a_late_run_resumes_to_the_bits_of_an_uninterrupted_one() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let settings = [&SHARED[..], &[LATE, "checkpoint.every=3"]].concat();
    let whole = tiny.run_on("2", "whole", &[&settings[..], &["train.steps=9"]].concat());
    tiny.run_on("2", "run", &[&settings[..], &["train.steps=6"]].concat());
    let (resumed, _) = tiny.resume_with_log("4", "run", &["train.steps=9"]);
    assert_eq!(bits(&resumed), whole);
}

#[test]
fn a_diverging_step_is_skipped_when_its_sums_arrive() {
    if has_mpi() {
        Tiny::new().assert_divergence_stops_two(&[LATE, "train.weight_decay=0"]);
    }
}

/// The sums of step 6 have NaN; step 7 finds it, or in a run of 6 steps its end does.
#[test]
fn nan_sums_that_arrive_at_the_end_change_no_weight() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let wild = [&SHARED[..], &[LATE, "train.lr=1e30", "train.weight_decay=0", "train.bad_steps=9"]].concat();
    assert_success(&tiny.attempt_on("2", "seven", &[&wild[..], &["train.steps=7"]].concat()));
    let withheld = tiny.records("seven", "withheld");
    assert_eq!(withheld.iter().map(|step| &step["step"]).collect::<Vec<_>>(), [7]);
    // No checkpoint is made of weights with NaN.
    assert_success(&tiny.attempt_on("2", "six", &[&wild[..], &["train.steps=6"]].concat()));
    assert_eq!(tiny.whole_checkpoints("six"), [6]);
}

/// Weight decay makes weights infinite before the first NaN arrives, so rank 0 cannot save at the end.
#[test]
fn a_rank_that_fails_while_sums_are_in_flight_ends_all() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let failing = [LATE, "train.lr=1e30", "train.bad_steps=2", "train.steps=9"];
    let output = tiny.attempt_on("2", "run", &[&SHARED[..], &failing].concat());
    assert_code(&output, 1);
    assert!(stderr(&output).contains("no checkpoint was saved"), "{}", stderr(&output));
}

#[test]
fn settings_that_wait_for_other_ranks_are_refused_with_late_sums() {
    let tiny = Tiny::new();
    let output = tiny.attempt("run", &[LATE, "memory.shard=true", "memory.optimizer=host"]);
    assert_code(&output, 2);
    let said = stderr(&output);
    for named in ["`memory.shard` = true waits", "`memory.optimizer` = \"host\" waits"] {
        assert!(said.contains(named), "{said}");
    }
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: compares learning over 60 steps"]
    fn late_sums_learn_nearly_as_well_as_exact_ones() {
        if has_mpi() {
            Tiny::new().assert_learns_on_two_nearly_as_well_as_exact(&[LATE], 0.25);
        }
    }
}
