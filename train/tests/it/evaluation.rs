//! `train eval`.

use crate::program::{assert_success, json, stdout};
use crate::tiny::{Tiny, bits};

#[test]
fn eval_of_a_checkpoint_gives_the_runs_own_loss() {
    let tiny = Tiny::new();
    let summary = tiny.run("run", &[]);
    let output = tiny.train(&["eval", "--from", "run", "--device", "cpu", "--json"]);
    assert_success(&output);
    let measured = json(&output);
    assert_eq!(measured["loss"], summary["val_loss"]);
    assert_eq!(measured["bits_per_byte"], summary["bits_per_byte"]);
    assert_eq!((&measured["step"], &measured["sequences"]), (&4.into(), &4.into()));
    let perplexity = measured["perplexity"].as_f64().expect("a number");
    assert!((perplexity.ln() - measured["loss"].as_f64().expect("a number")).abs() < 1e-9);
}

#[test]
fn eval_takes_a_budget_and_a_checkpoint() {
    let tiny = Tiny::trained(&["train.steps=6", "checkpoint.every=2", "checkpoint.keep_last=9"]);
    let loss = |arguments: &[&str]| {
        let output =
            tiny.train(&[&["eval", "--from", "run", "--device", "cpu", "--json"], arguments].concat());
        assert_success(&output);
        (json(&output)["step"].as_u64().expect("a step"), json(&output)["loss"].as_f64().expect("a loss"))
    };
    let latest = loss(&[]);
    assert_eq!(latest.0, 6);
    assert_eq!(loss(&["--set", "memory.device_budget=700KiB"]), latest);
    let early = loss(&["--step", "2"]);
    assert!(early.0 == 2 && early.1 > latest.1, "{early:?}");
    assert_eq!(loss(&["--best"]), latest);
}

#[test]
fn eval_of_other_data_leaves_the_run_untouched() {
    let tiny = Tiny::trained(&[]);
    crate::program::write_text(&tiny.join("in.txt"), 400);
    let before =
        bits(&serde_json::from_slice(&std::fs::read(tiny.join("run/summary.json")).unwrap()).unwrap());
    let settings = ["data.source=text", "data.path=in.txt", "data.split=position", "data.align=anywhere"];
    let mut arguments = vec!["eval", "--from", "run", "--device", "cpu"];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let output = tiny.train(&arguments);
    assert_success(&output);
    assert!(stdout(&output).contains("bits per byte"), "{}", stdout(&output));
    assert_eq!(bits(&tiny.resume("run", &[])), before);
}

#[test]
fn any_text_is_measured_the_same_in_any_batches() {
    let tiny = Tiny::trained(&[]);
    crate::program::write_text(&tiny.join("in.txt"), 10);
    let measured = |path: &str, more: &[&str]| {
        let arguments = ["eval", "--from", "run", "--device", "cpu", "--json", "--data", path];
        let output = tiny.train(&[&arguments[..], more].concat());
        assert_success(&output);
        json(&output)["loss"].as_f64().expect("a number")
    };
    let loss = measured("in.txt", &[]);
    let other = measured("in.txt", &["--set", "train.micro_batch=5"]);
    assert!((loss - other).abs() < 1e-6, "{loss} {other}");
    let prepare = [
        "prepare",
        "--input",
        "in.txt",
        "--tokenizer",
        "run/tokenizer",
        "--out",
        "set",
        "--val-fraction",
        "0",
    ];
    assert_success(&tiny.train(&prepare));
    assert!((measured("set", &[]) - loss).abs() < 1e-6, "a prepared set is its text");
}

#[test]
fn choices_are_counted_by_likelihood() {
    let tiny = Tiny::trained(&[]);
    let line = |choices: [&str; 2], answer: usize| {
        serde_json::json!({ "context": "What", "choices": choices, "answer": answer }).to_string() + "\n"
    };
    let lines = line([" is", " is that over there"], 0).repeat(2) + &line([" is", " is that over there"], 1);
    std::fs::write(tiny.join("task.jsonl"), lines).expect("writing");
    let arguments = ["eval", "--from", "run", "--device", "cpu", "--choices", "task.jsonl"];
    let counted = |more: &[&str]| {
        let output = tiny.train(&[&arguments[..], &["--json"], more].concat());
        assert_success(&output);
        json(&output)
    };
    let score = counted(&[]);
    assert_eq!((&score["questions"], &score["right"]), (&3.into(), &2.into()));
    assert_eq!(counted(&["--set", "train.micro_batch=7"]), score);
    let said = tiny.train(&arguments);
    assert!(stdout(&said).contains("3 questions: 66.7 % right by likelihood"), "{}", stdout(&said));
}
