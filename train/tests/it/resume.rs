//! A stopped run continues bit for bit.

use std::{fs, ops::RangeInclusive};

use crate::program::{assert_code, assert_success, last_words, stderr};
use crate::signals::Running;
use crate::tiny::{TIGHT, Tiny, bits};

const STEPS: RangeInclusive<u64> = 1..=40;

fn settings(optimizer: &str) -> [&str; 6] {
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
fn an_interrupted_run_resumes_bit_for_bit() {
    for optimizer in suite::first(1, &["train.optimizer=adamw", "train.optimizer=muon"]) {
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
fn a_killed_run_resumes_bit_for_bit() {
    for optimizer in suite::first(1, &["train.optimizer=muon", "train.optimizer=adamw"]) {
        let tiny = Tiny::new();
        let settings = settings(optimizer);
        let whole = tiny.run("whole", &settings);
        let mut running = Running::start(tiny.command("run", &settings));
        // Past step 6's checkpoint, to repeat steps.
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
    assert_success(&output);
    let summary =
        serde_json::from_slice(&fs::read(tiny.join("run/summary.json")).expect("reading")).expect("JSON");
    assert_eq!(bits(&summary), bits(&whole));
}

#[test]
fn a_run_that_went_back_and_saved_nothing_goes_on_as_if_it_had_not() {
    let tiny = Tiny::new();
    let settings = ["checkpoint.every=2", "checkpoint.keep_last=9", "eval.every=4"];
    let whole = tiny.run("whole", &[&settings[..], &["train.steps=7"]].concat());
    tiny.run("run", &[&settings[..], &["train.steps=6"]].concat());
    let [best, aside] = ["checkpoints/best", "metrics.jsonl.before"].map(|name| tiny.join("run").join(name));
    assert!(best.exists());

    let nothing = ["train.steps=3", "checkpoint.every=0", "checkpoint.last=false"];
    let earlier = ["--resume", "run/checkpoints/step-00000002", "--device", "cpu"].into_iter();
    let earlier = earlier.chain(nothing.into_iter().flat_map(|setting| ["--set", setting]));
    assert_success(&tiny.train(&earlier.collect::<Vec<_>>()));
    assert_eq!(tiny.losses("run").len(), 3);
    assert!(!best.exists(), "other weights may be saved as that step");
    assert!(aside.exists());

    let resumed = tiny.resume("run", &["train.steps=7", "checkpoint.last=true"]);
    assert_eq!(bits(&resumed), bits(&whole));
    assert_eq!(tiny.losses("run"), tiny.losses("whole"));
    assert!(best.exists() && !aside.exists());
}

#[test]
fn a_finished_run_can_be_given_more_steps() {
    let tiny = Tiny::new();
    let whole = tiny.run("whole", &["train.steps=6"]);
    tiny.run("run", &["train.steps=4"]);
    assert_eq!(bits(&tiny.resume("run", &["train.steps=6"])), bits(&whole));
    // A finished run prints its summary again, or writes a missing one.
    assert_eq!(bits(&tiny.resume("run", &["train.steps=6"])), bits(&whole));
    fs::remove_file(tiny.join("run/summary.json")).expect("removing");
    let finished = tiny.resume("run", &["train.steps=6"]);
    assert_eq!(bits(&finished), bits(&whole));
    assert_eq!((&finished["outcome"], &finished["val_loss"]), (&"done".into(), &whole["val_loss"]));
    assert!(tiny.join("run/summary.json").is_file());
}

#[test]
fn a_sample_that_fails_at_the_end_costs_no_step() {
    let tiny = Tiny::new();
    // Keys and values of 16 long texts are above the budget.
    let prompts = serde_json::json!(vec!["a"; 16]);
    let settings = [
        TIGHT,
        "model.n_positions=512",
        "eval.questions=[]",
        "eval.max_new_tokens=400",
        "eval.sample_every=4",
        &format!("eval.prompts={prompts}"),
    ];
    let output = tiny.attempt("run", &settings);
    assert_code(&output, 1);
    assert_eq!(tiny.whole_checkpoints("run"), [4], "{}", stderr(&output));
}

#[test]
fn a_run_that_began_with_weights_never_resumes_from_random_ones() {
    let tiny = Tiny::new();
    tiny.run("first", &["train.steps=2"]);
    let last = "first/checkpoints/step-00000002";
    for (begin, run) in [(["--from", "first"], "tuned"), (["--resume", last], "branch")] {
        let options = ["--out", run, "--device", "cpu", "--set", "train.steps=3"];
        assert_success(&tiny.train(&[&begin[..], &options].concat()));
        // As a run that was killed before it saved.
        fs::remove_dir_all(tiny.join(run).join("checkpoints")).expect("removed");
        let output = tiny.train(&["--resume", run, "--device", "cpu"]);
        assert_code(&output, 2);
        let said = last_words(&output, tiny.path());
        assert!(said.contains("no checkpoint of its own yet") && said.contains("another --out"), "{said}");
    }
}

#[test]
fn a_run_resumes_with_another_batch_division_and_prints_each_change() {
    let tiny = Tiny::new();
    tiny.run("run", &["train.steps=2", "train.micro_batch=2", "train.accumulate=2"]);
    let output = tiny.train(&[
        "--resume",
        "run",
        "--device",
        "cpu",
        "--set",
        "train.micro_batch=4",
        "--set",
        "train.accumulate=1",
        "--set",
        "train.steps=3",
        "--set",
        "memory.device_budget=3MiB",
    ]);
    assert_success(&output);

    let said = stderr(&output);
    for change in [
        "changed `memory.device_budget` from \"unlimited\" to \"3MiB\"",
        "changed `train.accumulate` from 2 to 1",
        "changed `train.micro_batch` from 2 to 4",
        "changed `train.steps` from 2 to 3",
    ] {
        assert!(said.contains(change), "{change} is not in {said}");
    }

    let other = Tiny::new();
    other.run("run", &["train.steps=3", "train.micro_batch=4", "train.accumulate=1"]);
    let (divided, whole) = (tiny.losses("run"), other.losses("run"));
    assert_eq!((divided.len(), whole.len()), (3, 3));

    for (step, (divided, whole)) in divided.iter().zip(&whole).enumerate() {
        assert!((divided - whole).abs() < 1e-3, "step {step}: the same sequences give {divided} and {whole}");
    }
}

#[test]
fn a_named_configuration_is_compared_with_the_saved_one() {
    let tiny = Tiny::new();
    tiny.run("run", &["train.steps=2"]);
    let resume = ["--resume", "auto", "--out", "run", "--config", "tiny.json", "--device", "cpu"];
    let output = tiny.train(&resume);
    assert_success(&output);
    assert!(stderr(&output).contains("changed `train.steps` from 2 to 4"), "{}", stderr(&output));
    assert_eq!(tiny.losses("run").len(), 4);

    let description = fs::read_to_string(tiny.join("tiny.json")).expect("reading");
    fs::write(tiny.join("tiny.json"), description.replace("\"n_embd\": 128", "\"n_embd\": 64"))
        .expect("writing");
    let refused = tiny.train(&resume);
    assert_code(&refused, 2);
    let said = last_words(&refused, tiny.path());
    assert!(
        said.contains("`model.n_embd` from 128 to 64") && said.contains("leave `--config tiny.json` out"),
        "{said}"
    );
    assert!(tiny.whole_checkpoints("run").contains(&4), "nothing was lost");
}
