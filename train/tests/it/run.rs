//! `train`, and the files it leaves.

use std::ffi::OsString;
use std::fs;

use serde_json::Value;

use crate::program::{assert_success, json, stderr, stdout, write_text};
use crate::tiny::{Tiny, bits};

#[test]
fn a_run_leaves_all_promised_files() {
    let tiny = Tiny::new();
    let output = tiny.attempt("run", &["eval.every=2", "eval.sample_every=2", "checkpoint.every=2"]);
    assert_success(&output);
    for file in ["config.json", "metrics.jsonl", "summary.json", "report.html", "tokenizer/tokenizer.json"] {
        assert!(tiny.join("run").join(file).is_file(), "{file} is missing");
    }
    for step in [2, 4] {
        let sample =
            fs::read_to_string(tiny.join(&format!("run/samples/step-{step:08}.txt"))).expect("samples");
        assert!(sample.starts_with("What is 3 plus 4?\n"), "{sample}");
    }
    assert_eq!(
        fs::read_to_string(tiny.join("run/checkpoints/latest")).expect("it is there").trim(),
        "step-00000004"
    );
    assert_eq!(tiny.whole_checkpoints("run"), [4, 2]);

    let kinds = |kind| {
        tiny.records("run", kind).iter().map(|record| record["step"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(kinds("start"), [0]);
    assert_eq!(kinds("step"), [1, 2, 3, 4]);
    assert_eq!(kinds("eval"), [2, 4]);
    assert_eq!(kinds("sample"), [2, 4]);
    assert_eq!(kinds("checkpoint"), [2, 4]);
    for step in tiny.records("run", "step") {
        let time = |key: &str| step[key].as_f64().unwrap_or_else(|| panic!("no {key} in {step}"));
        assert!(
            (0.0..=time("ms")).contains(&time("data_ms")),
            "waiting for data is part of the step: {step}"
        );
        assert!((0.0..=1.0).contains(&time("mfu")), "{step}");
    }
    let metrics = fs::read_to_string(tiny.join("run/metrics.jsonl")).expect("reading");
    assert!(metrics.lines().all(|line| line.starts_with("{\"kind\":\"")), "{metrics}");
}

#[test]
fn training_continues_while_a_checkpoint_is_synced() {
    let tiny = Tiny::new();
    let output = tiny.attempt("run", &["checkpoint.every=2", "checkpoint.keep_last=9"]);
    assert_success(&output);

    let (summary, said) = (json(&output), stderr(&output));
    let metrics = fs::read_to_string(tiny.join("run/metrics.jsonl")).expect("reading");
    let records: Vec<Value> =
        metrics.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    let at = |kind: &str, step: u64| {
        let found = records.iter().position(|record| record["kind"] == kind && record["step"] == step);
        found.unwrap_or_else(|| panic!("no {kind} of step {step} in\n{metrics}"))
    };

    assert!(at("checkpoint", 2) > at("step", 3), "{metrics}");
    assert!(at("checkpoint", 4) > at("step", 4), "{metrics}");
    let [first, last] = [2, 4].map(|step| {
        assert!(said.contains(&format!("step {step}: saved ")), "{said}");
        ["waited_ms", "ms"].map(|key| records[at("checkpoint", step)][key].as_f64().expect("milliseconds"))
    });

    assert!(first[0] > 0.0 && first[0] < first[1], "the rest is done beside the next step: {metrics}");
    let waited = summary["saves_waited_seconds"].as_f64().expect("seconds");
    assert!((waited * 1e3 - first[0] - last[0]).abs() < 1e-3, "{waited} s in all: {metrics}");
    assert_eq!(summary["saves"], 2);

    let report = fs::read_to_string(tiny.join("run/report.html")).expect("reading");
    assert!(report.contains("Waited for checkpoints"), "the report tells of it");
    assert_eq!(tiny.whole_checkpoints("run"), [4, 2]);
}

#[test]
fn json_puts_the_summary_on_standard_output_and_the_rest_elsewhere() {
    let tiny = Tiny::new();
    let output = tiny.attempt("run", &[]);
    assert_success(&output);
    let summary = json(&output);
    assert_eq!(summary["outcome"], "done");
    assert_eq!(summary["steps"], 4);
    assert_eq!(summary["tokens"], 4 * 2 * 32);
    let kept: Value =
        serde_json::from_slice(&fs::read(tiny.join("run/summary.json")).expect("reading")).expect("JSON");
    assert_eq!(kept, summary);
    assert!(stderr(&output).contains("step 00004/00004"));
}

#[test]
fn the_quiz_is_asked_at_the_end_if_configured() {
    let tiny = Tiny::new();
    assert_eq!(tiny.run("none", &["train.steps=1"])["quiz"], Value::Null);
    let summary = tiny.run("some", &["train.steps=1", "eval.quiz=3"]);
    let quiz = &summary["quiz"];
    assert_eq!((&quiz["held_out"]["asked"], &quiz["unseen_phrasings"]["asked"]), (&3.into(), &3.into()));
    assert_eq!(tiny.records("some", "quiz")[0]["held_out"], quiz["held_out"]);
}

#[test]
fn equal_runs_leave_equal_checkpoints() {
    let tiny = Tiny::new();
    let files = |out: &str| {
        tiny.run(out, &[]);
        let folder = tiny.join(out).join("checkpoints/step-00000004");
        let entries =
            fs::read_dir(folder).expect("a checkpoint").map(|entry| entry.expect("readable").path());
        let files = entries.filter(|path| path.is_file());
        let mut files: Vec<_> = files
            .map(|path| (path.file_name().map(OsString::from), fs::read(&path).expect("reading")))
            .collect();
        files.sort();
        files
    };
    let first = files("first");
    assert!(first.len() >= 5, "weights, moments, state, configuration, manifest");
    assert!(files("second") == first);
}

#[test]
fn the_users_text_needs_only_its_path() {
    let tiny = Tiny::new();
    write_text(&tiny.join("book.txt"), 200);
    let output = tiny.attempt("own", &[r#"data={"source":"text","path":"book.txt"}"#, "eval.quiz=3"]);
    assert_success(&output);
    assert!(stderr(&output).contains("`eval.quiz` asks about the embedded corpus"), "{}", stderr(&output));
    let summary = json(&output);
    assert_eq!(summary["quiz"], Value::Null);
    assert!(summary["val_loss"].as_f64().is_some_and(f64::is_finite), "{summary}");
}

#[test]
fn without_json_standard_output_stays_empty() {
    let tiny = Tiny::new();
    let output = tiny.train(&["--config", "tiny.json", "--device", "cpu"]);
    assert_success(&output);
    assert_eq!(stdout(&output), "");
    assert!(tiny.join("runs/tiny/summary.json").is_file());
}

#[test]
fn the_saved_configuration_alone_reproduces_the_run_bit_for_bit() {
    let tiny = Tiny::new();
    let first = tiny.run("first", &["train.optimizer=muon", "model.resid_pdrop=0.1", "train.steps=5"]);
    let arguments = ["--config", "first/config.json", "--out", "second", "--device", "cpu", "--json"];
    let second = tiny.train(&arguments);
    assert_success(&second);
    assert_eq!(bits(&json(&second)), bits(&first));
    let other = tiny
        .run("other", &["train.optimizer=muon", "model.resid_pdrop=0.1", "train.steps=5", "train.seed=7"]);
    assert_ne!(bits(&other), bits(&first));
}

#[test]
fn a_dry_run_shows_the_plan_and_writes_nothing() {
    let tiny = Tiny::new();
    let output = tiny.train(&["--config", "tiny.json", "--device", "cpu", "--out", "run", "--dry-run"]);
    assert_success(&output);
    assert!(stderr(&output).contains("at the worst moment"));
    assert!(!tiny.join("run").exists());
}

#[test]
fn a_second_run_without_a_name_leaves_the_first_untouched() {
    let tiny = Tiny::new();
    let arguments = ["--config", "tiny.json", "--device", "cpu", "--set", "train.steps=1"];
    assert_success(&tiny.train(&arguments));
    let first = fs::read(tiny.join("runs/tiny/summary.json")).expect("reading");
    assert_success(&tiny.train(&arguments));
    assert!(tiny.join("runs/tiny-2/summary.json").is_file());
    assert_eq!(fs::read(tiny.join("runs/tiny/summary.json")).expect("reading"), first);
}

/// Two of the threads' pieces: matmuls are divided, too.
#[test]
fn the_number_of_threads_changes_no_bit_of_the_first_weights_or_of_training() {
    let tiny = Tiny::new();
    let ended = ["1", "2", "3"].map(|threads| {
        let run = format!("on-{threads}");
        let output = tiny.command(&run, &[]).env("RAYON_NUM_THREADS", threads).output().expect("it starts");
        assert_success(&output);
        (tiny.losses(&run), bits(&json(&output)))
    });
    assert_eq!(ended[0], ended[1]);
    assert_eq!(ended[0], ended[2]);
}
