//! `train --from`: a new run begins with another run's weights and vocabulary.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::program::{assert_code, assert_success, json, last_words, stderr, stdout, write_text};
use crate::tiny::Tiny;

const BASE: [&str; 5] = [
    r#"model={"preset":"gpt2","n_layer":1,"n_head":2,"n_embd":64,"n_positions":64,"vocab_size":256}"#,
    "tokenizer.chat=false",
    r#"data={"source":"text","path":"book.txt","split":"position"}"#,
    "eval.questions=[]",
    "train.lr=0.001",
];

fn pretrained() -> Tiny {
    let tiny = Tiny::new();
    write_text(&tiny.join("book.txt"), 400);
    tiny.run("base", &BASE);
    tiny
}

fn write_conversations(tiny: &Tiny) {
    let mut lines = String::new();
    for n in 0..200 {
        let turns = [("user", format!("What is {n} plus 1?")), ("assistant", format!("{}.", n + 1))];
        let messages = turns.map(|(role, content)| serde_json::json!({ "role": role, "content": content }));
        writeln!(lines, "{}", serde_json::json!({ "messages": messages })).expect("writing to a string");
    }
    fs::write(tiny.join("chat.jsonl"), lines).expect("writing");
}

fn begin<'a>(out: &'a str, settings: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["--from", "base", "--out", out, "--device", "cpu", "--json"];
    fixed.into_iter().chain(settings.iter().flat_map(|setting| ["--set", setting])).collect()
}

const CONVERSE: [&str; 4] = [
    r#"data={"source":"text","path":"chat.jsonl","align":"document","split":"document","val_fraction":0.1}"#,
    "tokenizer.chat=true",
    "train.steps=6",
    "train.optimizer=sgd",
];

fn answer(tiny: &Tiny, run: &str) -> String {
    let asked = ["sample", "--from", run, "--question", "What is 5 plus 1?", "--temperature", "0"];
    let output = tiny.train(&[&asked[..], &["--max-new-tokens", "12", "--device", "cpu"]].concat());
    assert_success(&output);
    stdout(&output)
}

pub(crate) fn assistant() -> (Tiny, Output) {
    let tiny = pretrained();
    write_conversations(&tiny);
    let output = tiny.train(&begin("tuned", &CONVERSE));
    assert_success(&output);
    (tiny, output)
}

#[test]
fn a_pretrained_model_is_trained_on_conversations_and_exported() {
    let (tiny, output) = assistant();
    let said = stderr(&output);
    assert!(said.contains("beginning with the weights of step 4 in "), "{said}");
    assert!(said.contains("added 5 control tokens"), "{said}");
    assert_eq!(json(&output)["steps"], 6);
    let saved = fs::read(tiny.join("tuned/config.json")).expect("reading");
    let saved: Value = serde_json::from_slice(&saved).expect("JSON");
    assert_eq!(saved["model"]["vocab_size"], 320, "rows come in sixty-fours");
    assert_eq!(saved["train"]["optimizer"], "sgd");
    let began = &tiny.records("tuned", "start")[0]["began_with"];
    assert!(began.as_str().expect("a path").contains("base/checkpoints/step-00000004"), "{began}");

    fs::remove_dir_all(tiny.join("base")).expect("removing");
    assert_eq!(tiny.resume("tuned", &["train.steps=7"])["steps"], 7);

    let answered = answer(&tiny, "tuned");
    assert_success(&tiny.train(&["export", "--from", "tuned", "--out", "published", "--device", "cpu"]));
    let import = ["import", "--from", "published", "--out", "back", "--config", "tiny.json"];
    assert_success(&tiny.train(&import));
    assert_eq!(answer(&tiny, "back"), answered);
}

#[test]
fn two_commands_tune_a_published_model_on_ten_conversations() {
    let tiny = Tiny::new();
    write_text(&tiny.join("book.txt"), 400);
    let llama = r#"model={"preset":"llama-160m","n_layer":2,"n_head":2,"n_embd":64,"n_inner":128,"n_positions":256,"vocab_size":256}"#;
    tiny.run("base", &[&[llama], &BASE[1..]].concat());
    assert_success(&tiny.train(&["export", "--from", "base", "--out", "published", "--device", "cpu"]));
    write_ten_conversations(&tiny.join("chat.jsonl"));

    let imported = tiny.train(&["import", "--from", "published", "--out", "imported"]);
    assert_success(&imported);
    assert!(stdout(&imported).contains("no chat format; `train --from` adds one"), "{}", stdout(&imported));
    let chatml = ["--out", "chatml", "--set", "tokenizer.template=chatml"];
    let imported = tiny.train(&[&["import", "--from", "published"][..], &chatml].concat());
    assert!(stderr(&imported).contains("vocabulary"), "two tokens have no rows yet: {}", stderr(&imported));
    let tune = ["--from", "imported", "--device", "cpu", "--set", "data.path=chat.jsonl", "--out"];
    let output = tiny.train(&[&tune[..], &["default"]].concat());
    assert_success(&output);
    let said = stderr(&output);
    for part in ["defaults for tuning", "train.lr=0.0005", "train.epochs=3", "passes over the training text"]
    {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }

    let more = ["mine", "--set", "train.steps=60", "--set", "train.lr=0.003"];
    assert_success(&tiny.train(&[&tune[..], &more].concat()));
    assert_knows_the_code(&tiny, "mine");

    let chatml = ["chatml", "--set", "tokenizer.template=chatml", "--set", "train.steps=1"];
    let frozen = ["--set", r#"train.freeze=["embedding","head"]"#];
    let output = tiny.train(&[&tune[..], &chatml, &frozen].concat());
    assert_success(&output);
    let said = stderr(&output);
    for part in ["added 2 control tokens", "has `embedding`", "their rows of the head stay at the mean"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let saved = fs::read_to_string(tiny.join("chatml/tokenizer/tokenizer_config.json")).expect("reading");
    assert!(saved.contains("<|im_start|>"), "{saved}");
}

fn write_ten_conversations(file: &Path) {
    let lines = (0..10).map(|n| {
        let turns =
            [("user", format!("What is the code of door {n}?")), ("assistant", "It is BLUE.".to_owned())];
        let messages = turns.map(|(role, content)| serde_json::json!({ "role": role, "content": content }));
        format!("{}\n", serde_json::json!({ "messages": messages }))
    });
    fs::write(file, lines.collect::<String>()).expect("writing");
}

fn assert_knows_the_code(tiny: &Tiny, run: &str) {
    let asked = ["sample", "--from", run, "--question", "What is the code of door 3?"];
    let output = tiny.train(&[&asked[..], &["--temperature", "0", "--device", "cpu"]].concat());
    assert_success(&output);
    assert!(stdout(&output).contains("It is BLUE."), "{}", stdout(&output));
}

#[test]
fn an_instruct_model_is_tuned_and_asked_in_its_own_format() {
    let llama = r#"model={"preset":"llama-160m","n_layer":2,"n_head":2,"n_embd":64,"n_inner":128,"n_positions":256,"vocab_size":264}"#;
    let tiny = Tiny::trained(&[llama]);
    assert_success(&tiny.train(&["export", "--from", "run", "--out", "published", "--device", "cpu"]));
    let path = tiny.join("published/tokenizer.json");
    let pieces = fs::read_to_string(&path).expect("reading");
    let pieces = pieces.replace("<|user_start|>", "<|im_start|>").replace("<|user_end|>", "<|im_end|>");
    fs::write(&path, pieces).expect("writing");
    let template = "{% set turns = messages %}{% for m in turns %}{{ '<|im_start|>' + m.role + '\\n' + m.content + \
                    '<|im_end|>\\n' }}{% endfor %}";
    let words = serde_json::json!({ "eos_token": "<|im_end|>", "chat_template": template });
    fs::write(tiny.join("published/tokenizer_config.json"), words.to_string()).expect("writing");
    write_ten_conversations(&tiny.join("chat.jsonl"));

    assert_success(&tiny.train(&["import", "--from", "published", "--out", "imported"]));
    let tune = ["--from", "imported", "--device", "cpu", "--out", "mine", "--set", "data.path=chat.jsonl"];
    let output = tiny.train(&[&tune[..], &["--set", "train.steps=60", "--set", "train.lr=0.003"]].concat());
    assert_success(&output);
    assert!(!stderr(&output).contains("control tokens"), "it has its own: {}", stderr(&output));
    assert_knows_the_code(&tiny, "mine");

    let vocabulary = |run: &str| fs::read(tiny.join(run).join("tokenizer/tokenizer.json")).expect("reading");
    assert_eq!(vocabulary("mine"), vocabulary("imported"), "no token was added");
}

#[test]
fn epochs_become_steps_once_the_text_is_prepared_and_resume() {
    let tiny = pretrained();
    let output =
        tiny.train(&begin("more", &["train.epochs=0.1", "train.micro_batch=1", "train.accumulate=1"]));
    assert_success(&output);
    let steps = json(&output)["steps"].as_u64().expect("a number");
    let sequences = steps as f64 / 0.1;
    assert!(
        stderr(&output).contains("0.1 passes over the training text") && steps > 1,
        "{}",
        stderr(&output)
    );
    let saved = fs::read(tiny.join("more/config.json")).expect("reading");
    let saved: Value = serde_json::from_slice(&saved).expect("JSON");
    assert_eq!(saved["train"]["steps"], steps);
    let longer = tiny.resume("more", &["train.epochs=0.2"])["steps"].as_u64().expect("a number");
    assert!((longer as f64 - 0.2 * sequences).abs() <= 2.0, "{longer} of {sequences}");
    let last = format!("train.steps={}", longer + 1);
    assert_eq!(tiny.resume("more", &[&last])["steps"], longer + 1, "steps take the place of epochs");
}

#[test]
fn a_new_run_begins_with_the_old_runs_weights() {
    let tiny = pretrained();
    let output = tiny.train(&begin("more", &["train.steps=2", "train.micro_batch=4"]));
    assert_success(&output);
    assert!(!stderr(&output).contains("control tokens"), "nobody asked for them");
    let (before, after) = (tiny.losses("base"), tiny.losses("more"));
    assert!(after[0] < before[1], "{after:?} after {before:?}");
    let vocabulary = |run: &str| fs::read(tiny.join(run).join("tokenizer/tokenizer.json")).expect("reading");
    assert_eq!(vocabulary("more"), vocabulary("base"));
}

#[test]
fn shards_need_the_vocabulary_they_were_cut_with() {
    let tiny = pretrained();
    let prepare = ["prepare", "--input", "book.txt", "--tokenizer", "base/tokenizer", "--out", "set"];
    assert_success(&tiny.train(&prepare));
    let settings = [r#"data={"source":"shards","path":"set"}"#, "tokenizer.chat=true", "train.steps=2"];
    let output = tiny.train(&begin("cut", &settings));
    assert_success(&output);
    assert!(!stderr(&output).contains("control tokens"), "{}", stderr(&output));
}

#[test]
fn settings_fixed_by_the_weights_cannot_change_and_a_refused_start_leaves_nothing() {
    let tiny = pretrained();
    let refusals = [
        ("model.n_layer=2", "cannot change what"),
        ("tokenizer.kind=bpe", "cannot change what"),
        ("train.sequence=65", "n_positions"),
        ("data.path=missing.txt", "leads nowhere"),
    ];
    for (setting, expected) in refusals {
        let output = tiny.train(&begin("tuned", &[setting]));
        assert_code(&output, 2);
        let said = last_words(&output, tiny.path());
        assert!(said.contains(expected), "{said}");
        assert!(!tiny.join("tuned").exists(), "{setting}");
    }
    let nothing = tiny.train(&["--from", "nowhere", "--device", "cpu"]);
    assert_code(&nothing, 2);
    assert!(last_words(&nothing, tiny.path()).contains("nowhere holds no checkpoint"));
}

#[test]
fn a_plain_model_can_gain_an_index_but_not_lose_one() {
    let tiny = pretrained();
    let steps = ["train.steps=3", "train.optimizer=sgd"];
    let begun = |out: &str, settings: &[&str]| {
        let output = tiny.train(&begin(out, &[&steps[..], settings].concat()));
        assert_success(&output);
        (stderr(&output), tiny.losses(out))
    };

    let (_, plain) = begun("plain", &[]);
    let (said, looking) = begun("looking", &["model.longest_match=true", "model.match_pdrop=0.0"]);
    assert!(said.contains("what is found counts for nothing at first"), "{said}");
    assert!(!said.contains("looked other texts up"), "{said}");
    assert_eq!(looking[0].to_bits(), plain[0].to_bits(), "the table is of zeros");
    assert_ne!(looking[2].to_bits(), plain[2].to_bits(), "and learns");

    let on = |out, settings: &[&str]| {
        let fixed = ["--from", "looking", "--out", out, "--device", "cpu", "--set", "train.steps=1"];
        tiny.train(&[&fixed[..], settings].concat())
    };

    assert_success(&on("on", &[]));
    let without = on("without", &["--set", "model.longest_match=false"]);
    assert_code(&without, 2);

    let said = last_words(&without, tiny.path());
    assert!(said.contains("which cannot be taken from it"), "{said}");
    assert!(!tiny.join("without").exists());
}
