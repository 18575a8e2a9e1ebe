//! `train inspect`, and damage to a run.

use std::{fs, path::PathBuf, process::Output};

use crate::program::{assert_code, assert_success, last_words, stdout};
use crate::tiny::Tiny;

fn two_checkpoints() -> Tiny {
    Tiny::trained(&["checkpoint.every=2"])
}

fn file(tiny: &Tiny, name: &str) -> PathBuf {
    tiny.join("run/checkpoints/step-00000004").join(name)
}

fn inspect(tiny: &Tiny) -> Output {
    tiny.train(&["inspect", "run"])
}

#[test]
fn an_undamaged_run_is_reported_as_whole() {
    let tiny = two_checkpoints();
    let output = inspect(&tiny);
    assert_success(&output);
    let said = stdout(&output);
    assert!(said.starts_with("run: 264192 parameters, 4 steps planned\n"), "{said}");
    assert_eq!(said.matches(", whole\n").count(), 2, "{said}");
    assert_success(&tiny.train(&["inspect", "run/checkpoints/step-00000002"]));
}

#[test]
fn a_truncated_file_is_named_and_the_earlier_checkpoint_offered() {
    let tiny = two_checkpoints();
    let weights = fs::OpenOptions::new().write(true).open(file(&tiny, "model.safetensors")).expect("opening");
    weights.set_len(1000).expect("cutting");
    let output = inspect(&tiny);
    assert_code(&output, 1);
    assert!(
        stdout(&output).contains("model.safetensors has 1000 bytes, the manifest says "),
        "{}",
        stdout(&output)
    );
    assert!(last_words(&output, tiny.path()).contains("1 of 2 checkpoints are damaged"));

    let resumed = tiny.train(&["--resume", "run", "--set", "train.steps=6", "--device", "cpu"]);
    assert_code(&resumed, 1);
    let said = last_words(&resumed, tiny.path());
    assert!(said.contains("run/checkpoints/step-00000002 is whole"), "{said}");

    let way_out = ["--resume", "run/checkpoints/step-00000002", "--device", "cpu"];
    assert_success(&tiny.train(&way_out));
    assert_success(&inspect(&tiny));
}

#[test]
fn a_flipped_bit_is_named() {
    let tiny = two_checkpoints();
    for name in ["optimizer.safetensors", "state.json", "tokenizer/tokenizer.json", "config.json"] {
        let sound = fs::read(file(&tiny, name)).expect("reading");
        let mut flipped = sound.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        fs::write(file(&tiny, name), flipped).expect("writing");
        let output = inspect(&tiny);
        assert_code(&output, 1);
        let named = format!("{name} has the SHA-256 ");
        assert!(stdout(&output).contains(&named), "{named:?} is not in {}", stdout(&output));
        let sampled = tiny.train(&["sample", "--from", "run", "--device", "cpu"]);
        assert_code(&sampled, 1);
        assert!(last_words(&sampled, tiny.path()).contains(&named), "a damaged checkpoint was used");
        fs::write(file(&tiny, name), sound).expect("writing");
    }
    assert_success(&inspect(&tiny));
}
