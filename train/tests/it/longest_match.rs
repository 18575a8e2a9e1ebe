//! Models that look their text up in an index.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::program::{assert_code, assert_success, json, last_words, stderr, stdout};
use crate::tiny::{TIGHT, Tiny, bits};

const LOOKS_UP: &str = "model.longest_match=true";

fn with_copies(tiny: &Tiny) {
    let document = |n: usize| format!("the {n}. river rises, the {}. river falls", n * 7 % 31);
    let order = (0..90).chain([3, 100, 101, 8, 102, 103, 21, 104, 105, 5]);
    let text = order.fold(String::new(), |mut text, n| {
        writeln!(text, "{{\"text\": \"{}\"}}", document(n)).expect("a string takes everything");
        text
    });
    fs::write(tiny.join("in.jsonl"), text).expect("writing");
}

const COPIES: [&str; 8] = [
    LOOKS_UP,
    "data.source=text",
    "data.path=in.jsonl",
    "data.split=position",
    "data.align=anywhere",
    "data.val_fraction=0.1",
    "eval.sequences=null",
    "eval.questions=[]",
];

fn measured(tiny: &Tiny, set: &[&str]) -> Value {
    let mut arguments = vec!["eval", "--from", "run", "--device", "cpu", "--json"];
    arguments.extend(set.iter().flat_map(|setting| ["--set", setting]));
    let output = tiny.train(&arguments);
    assert_success(&output);
    json(&output)
}

#[test]
fn a_run_with_an_index_has_the_same_bits_under_a_budget_and_resumed() {
    let tiny = Tiny::new();
    let settings =
        |more: &[&'static str]| [&[LOOKS_UP, "train.steps=6", "checkpoint.every=2"], more].concat();
    let whole = tiny.run("run", &settings(&["checkpoint.keep_last=5"]));
    assert_eq!(bits(&tiny.run("tight", &settings(&[TIGHT]))), bits(&whole));
    let hidden = tiny.run("hidden", &settings(&["model.match_pdrop=0.9"]));
    assert_ne!(bits(&hidden), bits(&whole), "what is hidden matters");
    fs::remove_dir_all(tiny.join("run/data/index")).expect("it lies beside the shards");
    let output = tiny.train(&["--resume", "run/checkpoints/step-00000002", "--device", "cpu", "--json"]);
    assert_success(&output);
    assert_eq!(bits(&json(&output)), bits(&whole));
    let without = tiny.run("without", &["train.steps=6"]);
    assert_ne!(bits(&without)[0], bits(&whole)[0], "what is found matters");
}

#[test]
fn validation_is_reported_with_and_without_copies_of_training_text() {
    let tiny = Tiny::new();
    with_copies(&tiny);
    let summary = tiny.run("run", &COPIES);
    let evaluated = measured(&tiny, &[]);
    assert_eq!(evaluated["loss"], summary["val_loss"]);

    let fresh = &evaluated["without_copies"];
    let number = |value: &Value| value.as_f64().expect("a number");
    let (copied, targets) = (number(&fresh["copied_targets"]), number(&fresh["targets"]));

    // The split may cut the first of four documents.
    assert!((100.0..=4.0 * 43.0).contains(&copied) && targets > copied, "{evaluated}");
    assert_ne!(fresh["loss"], evaluated["loss"]);
    assert!((number(&fresh["perplexity"]).ln() - number(&fresh["loss"])).abs() < 1e-9, "{evaluated}");

    let output = tiny.train(&["eval", "--from", "run", "--device", "cpu"]);
    assert!(stdout(&output).contains("% in copies of indexed documents: loss"), "{}", stdout(&output));
    let evaluated = tiny.records("run", "eval").pop().expect("one at the end");
    assert_eq!(evaluated["without_copies"], *fresh);
    let plain = Tiny::trained(&[]);
    assert_eq!(measured(&plain, &[]).get("without_copies"), None, "without an index nothing is reported");
}

#[test]
fn a_run_indexes_its_shards_and_refuses_files_of_other_programs() {
    let tiny = Tiny::new();
    with_copies(&tiny);
    assert_success(&tiny.train(&["prepare", "--input", "in.jsonl", "--tokenizer", "bytes", "--out", "set"]));

    let shards = [LOOKS_UP, "data.source=shards", "data.align=anywhere", "eval.questions=[]"];
    let run = |out: &str, path: &'static str| {
        tiny.attempt(out, &[&shards[..], &[path, "tokenizer.chat=false", "tokenizer.kind=bytes"]].concat())
    };
    assert_success(&run("run", "data.path=set"));
    assert!(tiny.join("run/data/index/index.json").exists() && !tiny.join("set/index").exists());

    fs::create_dir(tiny.join("foreign")).expect("making");
    let ids: Vec<u8> = (0..4000_u16).flat_map(|at| (at % 250).to_le_bytes()).collect();
    for name in ["train", "val"] {
        fs::write(tiny.join(&format!("foreign/{name}.bin")), &ids).expect("writing");
    }

    let foreign = run("other", "data.path=foreign");
    assert_code(&foreign, 2);
    let said = last_words(&foreign, tiny.path());
    assert!(said.contains("`model.longest_match` indexes shards that `train prepare` made"), "{said}");
}

fn trusting() -> (Tiny, [&'static str; 6]) {
    let tiny = Tiny::new();
    with_copies(&tiny);
    let long = ["train.steps=60", "train.lr=0.01", "model.match_pdrop=0.0"];
    tiny.run("run", &[&COPIES[..], &long].concat());
    (tiny, ["--device", "cpu", "--prompt", "the 17. river rises, the ", "--temperature", "0"])
}

#[test]
fn a_model_without_its_index_answers_with_a_warning() {
    let (tiny, asked) = trusting();
    let sample = || tiny.train(&[&["sample", "--from", "run"], &asked[..]].concat());
    let with = sample();
    assert_success(&with);
    assert!(!stderr(&with).contains("goes without"), "{}", stderr(&with));
    let measured_with = measured(&tiny, &[]);
    assert_eq!(measured_with["looked_up"], true);
    fs::rename(tiny.join("run/data/index"), tiny.join("elsewhere")).expect("moving");
    let without = sample();
    assert_success(&without);
    let said = stderr(&without);
    assert!(said.contains("goes without, as if nothing were found") && said.contains("index.json"), "{said}");
    assert_ne!(stdout(&with), stdout(&without), "what is found counts");
    let measured_without = measured(&tiny, &[]);
    assert_eq!(measured_without["looked_up"], false);
    assert_ne!(measured_without["loss"], measured_with["loss"], "what is found counts");
}

#[test]
fn a_moved_index_is_found_at_its_configured_path() {
    let (tiny, asked) = trusting();
    let expected = stdout(&tiny.train(&[&["sample", "--from", "run"], &asked[..]].concat()));
    let loss = measured(&tiny, &[])["loss"].clone();
    fs::rename(tiny.join("run/data/index"), tiny.join("elsewhere")).expect("moving");
    let listed = r#"data.indexes=[{"index": "elsewhere", "set": "run/data/shards"}]"#;
    assert_eq!(measured(&tiny, &[listed])["loss"], loss);
    let checkpoint = fs::read_dir(tiny.join("run/checkpoints")).expect("listing").flatten();
    let mut checkpoint = checkpoint.filter(|entry| entry.path().is_dir());
    fs::rename(checkpoint.next().expect("one at the end").path(), tiny.join("alone")).expect("moving");
    let sample = |more: &[&str]| tiny.train(&[&["sample", "--from", "alone"], &asked[..], more].concat());
    let found = sample(&["--set", listed]);
    assert_success(&found);
    assert_eq!(stdout(&found), expected);
    assert!(stderr(&sample(&[])).contains("there is no index of the text"), "{}", stderr(&sample(&[])));
}

#[test]
fn the_training_text_is_not_indexed_twice_and_the_validation_text_is_refused() {
    let tiny = Tiny::new();
    with_copies(&tiny);
    assert_success(&tiny.train(&["prepare", "--input", "in.jsonl", "--tokenizer", "bytes", "--out", "set"]));

    for split in ["train", "val"] {
        let index = ["index", "build", "--set", "set", "--split", split, "--out", split];
        assert_success(&tiny.train(&index));
    }

    let shards =
        [LOOKS_UP, "data.source=shards", "data.path=set", "data.align=anywhere", "eval.questions=[]"];
    let run = |out: &str, index: &str| {
        let listed = format!(r#"data.indexes=[{{"index": "{index}", "set": "set"}}]"#);
        tiny.attempt(out, &[&shards[..], &["tokenizer.chat=false", &listed]].concat())
    };

    let once = run("once", "train");
    assert_success(&once);
    assert!(!tiny.join("once/data/index").exists());
    assert!(stderr(&once).contains("the looked-up token is the next one for"), "{}", stderr(&once));

    let own = tiny.run("own", &[&shards[..], &["tokenizer.chat=false"]].concat());
    assert_eq!(bits(&json(&once)), bits(&own));
    let refused = run("refused", "val");
    assert_code(&refused, 2);
    let said = last_words(&refused, tiny.path());
    assert!(said.contains("the very text that the run is measured with"), "{said}");
}

#[test]
fn listed_texts_are_looked_up_too_and_must_not_change() {
    let tiny = Tiny::trained(&["train.steps=1"]);
    let conversations = fs::read_to_string(tiny.join("run/data/dialogues.jsonl")).expect("reading");
    let lines: Vec<_> = conversations.split_inclusive('\n').collect();
    for (name, lines) in ["one", "two"].into_iter().zip(lines.chunks(lines.len() / 2)) {
        let [input, set, index] = ["jsonl", "set", "index"].map(|kind| format!("{name}-{kind}"));
        let input = input.replace('-', ".");
        fs::write(tiny.join(&input), lines.concat()).expect("writing");
        let prepare = ["prepare", "--input", &input, "--tokenizer", "run/tokenizer", "--out", &set];
        assert_success(&tiny.train(&prepare));
        assert_success(&tiny.train(&["index", "build", "--set", &set, "--out", &index]));
    }

    let listed = |name: &str| format!(r#"data.indexes=[{{"index": "{name}-index", "set": "{name}-set"}}]"#);
    let useless = tiny.attempt("useless", &[&listed("one")]);
    assert_code(&useless, 2);
    assert!(stderr(&useless).contains("`data.indexes` does nothing with `model.longest_match` = false"));

    let settings = [LOOKS_UP, "train.steps=3", "checkpoint.every=1"];
    let alone = tiny.run("alone", &settings);
    let with = tiny.run("with", &[&settings[..], &[&listed("one")]].concat());
    assert_ne!(bits(&with)[0], bits(&alone)[0], "the listed text is searched");

    let resume = |more: &str| {
        tiny.train(&["--resume", "with", "--device", "cpu", "--set", "train.steps=4", "--set", more])
    };
    let other = resume(&listed("two"));
    assert_code(&other, 2);

    let said = last_words(&other, tiny.path());
    assert!(said.contains("are not those that the model was trained with"), "{said}");
    fs::rename(tiny.join("one-index"), tiny.join("moved-index")).expect("moving");
    let gone = tiny.train(&["--resume", "with", "--device", "cpu", "--set", "train.steps=4"]);
    assert!(!gone.status.success());
    assert!(last_words(&gone, tiny.path()).contains("one-index"), "{}", stderr(&gone));
    let moved = resume(r#"data.indexes=[{"index": "moved-index", "set": "one-set"}]"#);
    assert_success(&moved);
}
