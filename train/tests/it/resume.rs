//! A run that was stopped goes on as if it had not been.

use std::{fs, ops::RangeInclusive};

use crate::program::assert_code;
use crate::signals::Running;
use crate::tiny::{TIGHT, Tiny, bits};

const STEPS: RangeInclusive<u64> = 1..=40;

fn settings(optimizer: &'static str) -> [&'static str; 6] {
    [optimizer, TIGHT, "train.steps=40", "checkpoint.every=3", "eval.every=7", "model.resid_pdrop=0.1"]
}

fn assert_each_step_once(tiny: &Tiny, out: &str) {
    let steps: Vec<_> =
        tiny.records(out, "step").iter().map(|record| record["step"].as_u64().expect("a step")).collect();
    assert_eq!(steps, STEPS.collect::<Vec<_>>());
    let evaluated: Vec<_> =
        tiny.records(out, "eval").iter().map(|record| record["step"].as_u64().expect("a step")).collect();
    assert_eq!(evaluated, [7, 14, 21, 28, 35, 40]);
}

#[test]
fn an_interrupted_run_goes_on_bit_for_bit() {
    for optimizer in ["train.optimizer=adamw", "train.optimizer=muon"] {
        let tiny = Tiny::new();
        let settings = settings(optimizer);
        let whole = tiny.run("whole", &settings);
        let mut running = Running::start(tiny.command("run", &settings));
        running.wait_for("step 00005/");
        running.signal("INT");
        let output = running.end();
        assert_code(&output, 3);
        let resumed = tiny.resume("run", &[]);
        assert_eq!(bits(&resumed), bits(&whole), "{optimizer}");
        assert_eq!(resumed["val_loss"], whole["val_loss"]);
        assert_eq!(tiny.losses("run"), tiny.losses("whole"));
        assert_each_step_once(&tiny, "run");
        assert_eq!(tiny.records("run", "start").len(), 2);
    }
}

#[test]
fn a_killed_run_goes_on_bit_for_bit() {
    for optimizer in ["train.optimizer=adamw", "train.optimizer=muon"] {
        let tiny = Tiny::new();
        let settings = settings(optimizer);
        let whole = tiny.run("whole", &settings);
        let mut running = Running::start(tiny.command("run", &settings));
        // Past the checkpoint of step 6, so that steps are repeated.
        running.wait_for("step 00008/");
        running.signal("KILL");
        assert_eq!(running.end().status.code(), None);
        let resumed = tiny.resume("run", &[]);
        assert_eq!(bits(&resumed), bits(&whole), "{optimizer}");
        assert_each_step_once(&tiny, "run");
    }
}

#[test]
fn an_earlier_checkpoint_leads_to_the_same_end() {
    let tiny = Tiny::new();
    let settings = ["train.steps=6", "checkpoint.every=2", "checkpoint.keep_last=5"];
    let whole = tiny.run("run", &settings);
    let output = tiny.train(&["--resume", "run/checkpoints/step-00000002", "--device", "cpu"]);
    crate::program::assert_success(&output);
    let summary =
        serde_json::from_slice(&fs::read(tiny.join("run/summary.json")).expect("reading")).expect("JSON");
    assert_eq!(bits(&summary), bits(&whole));
}

#[test]
fn a_finished_run_can_be_given_more_steps() {
    let tiny = Tiny::new();
    let whole = tiny.run("whole", &["train.steps=6"]);
    tiny.run("run", &["train.steps=4"]);
    assert_eq!(bits(&tiny.resume("run", &["train.steps=6"])), bits(&whole));
    // Nothing is left to do; it says the same once more, and says it anew where it was stopped before it could.
    assert_eq!(bits(&tiny.resume("run", &["train.steps=6"])), bits(&whole));
    fs::remove_file(tiny.join("run/summary.json")).expect("removing");
    let finished = tiny.resume("run", &["train.steps=6"]);
    assert_eq!(bits(&finished), bits(&whole));
    assert_eq!((&finished["outcome"], &finished["val_loss"]), (&"done".into(), &whole["val_loss"]));
    assert!(tiny.join("run/summary.json").is_file());
}
