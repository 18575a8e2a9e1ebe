//! `train sample`.

use std::fs;

use serde_json::Value;

use crate::program::{assert_success, stdout};
use crate::tiny::Tiny;

fn say(tiny: &Tiny, arguments: &[&str]) -> String {
    let begin = ["sample", "--from", "run", "--device", "cpu", "--max-new-tokens", "6"];
    let output = tiny.train(&[&begin[..], arguments].concat());
    assert_success(&output);
    stdout(&output)
}

fn records(tiny: &Tiny, arguments: &[&str]) -> Vec<Value> {
    let said = say(tiny, &[arguments, &["--json"]].concat());
    said.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

#[test]
fn greedy_sampling_is_deterministic() {
    let tiny = Tiny::trained(&[]);
    let greedy = ["--prompt", "What is", "--temperature", "0"];
    let once = say(&tiny, &greedy);
    assert!(once.starts_with("What is"), "{once}");
    assert_eq!(say(&tiny, &[&greedy[..], &["--seed", "9"]].concat()), once);
    assert_eq!(say(&tiny, &[&greedy[..], &["--set", "memory.device_budget=700KiB"]].concat()), once);
}

#[test]
fn random_choices_follow_from_the_seed() {
    let tiny = Tiny::trained(&[]);
    let drawn = |seed: &str| say(&tiny, &["--prompt", "What is", "--temperature", "2", "--seed", seed]);
    assert_eq!(drawn("3"), drawn("3"));
    assert_ne!(drawn("3"), drawn("4"));
}

#[test]
fn each_prompt_and_question_is_answered_as_often_as_asked() {
    let tiny = Tiny::trained(&[]);
    fs::write(tiny.join("prompt.txt"), "The river").expect("writing");
    let asked = [
        "--prompt",
        "What is",
        "--prompt",
        "FILE:prompt.txt",
        "--question",
        "What is 3 plus 4?",
        "--count",
        "2",
    ];
    let said = records(&tiny, &[&asked[..], &["--temperature", "2"]].concat());
    let prompts: Vec<_> = said.iter().map(|record| record["prompt"].as_str().expect("a prompt")).collect();

    assert_eq!(
        prompts,
        ["What is", "What is", "The river", "The river", "What is 3 plus 4?", "What is 3 plus 4?"]
    );

    for record in &said {
        let tokens = record["tokens"].as_u64().expect("a number");
        assert!(tokens <= 6 && record["finish"].is_string(), "{record}");
    }
    assert_ne!(said[0]["text"], said[1]["text"], "the second is drawn anew");
}

#[test]
fn more_texts_than_one_batch_are_all_printed() {
    let tiny = Tiny::trained(&[]);
    let greedy = ["--prompt", "What is", "--temperature", "0"];
    let said = records(&tiny, &[&greedy[..], &["--count", "33"]].concat());
    assert_eq!(said.len(), 33);
    let alone = say(&tiny, &greedy);
    for record in &said {
        let text = record["text"].as_str().expect("a text");
        assert_eq!(format!("What is{text}\n\n"), alone, "each is what it would be alone");
    }
    let several = say(&tiny, &[&greedy[..], &["--count", "2"]].concat());
    assert_eq!(several, alone.repeat(2));
}

#[test]
fn without_a_prompt_a_document_is_begun() {
    let tiny = Tiny::trained(&[]);
    let said = records(&tiny, &["--temperature", "0"]);
    assert_eq!(said.len(), 1);
    assert_eq!(said[0]["prompt"], "");
}
