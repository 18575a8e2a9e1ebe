//! `train export` and `train import`.

use std::fs;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::program::{assert_code, assert_success, json, last_words};
use crate::tiny::{GPT2, Tiny};

fn loss(tiny: &Tiny, out: &str) -> Value {
    let output = tiny.train(&["eval", "--from", out, "--device", "cpu", "--json"]);
    assert_success(&output);
    json(&output)["loss"].clone()
}

#[test]
fn an_exported_model_comes_back_with_the_same_loss_and_learns_on() {
    let tiny = Tiny::trained(&GPT2);
    assert_success(&tiny.train(&["export", "--from", "run", "--out", "published", "--device", "cpu"]));
    let described: Value =
        serde_json::from_slice(&fs::read(tiny.join("published/config.json")).expect("reading"))
            .expect("JSON");
    assert_eq!((&described["model_type"], &described["n_embd"]), (&"gpt2".into(), &64.into()));
    // The 256 bytes, then the control tokens: the last ends an answer, the first begins a document.
    assert_eq!((&described["bos_token_id"], &described["eos_token_id"]), (&256.into(), &260.into()));
    let generation = fs::read(tiny.join("published/generation_config.json")).expect("reading");
    let generation: Value = serde_json::from_slice(&generation).expect("JSON");
    assert_eq!(generation["eos_token_id"], serde_json::json!([260, 256]));
    assert!(tiny.join("published/tokenizer.json").is_file());

    let import = ["import", "--from", "published", "--out", "imported", "--config", "tiny.json"];
    assert_success(&tiny.train(&import));
    assert_eq!(tiny.whole_checkpoints("imported"), [0]);
    assert_eq!(loss(&tiny, "imported"), loss(&tiny, "run"));

    let learned =
        tiny.train(&["--resume", "imported", "--set", "train.steps=1", "--device", "cpu", "--json"]);
    assert_success(&learned);
    assert_eq!(json(&learned)["steps"], 1);
    assert_ne!(loss(&tiny, "imported"), loss(&tiny, "run"));

    let again = tiny.train(&import);
    assert_code(&again, 2);
    insta::assert_snapshot!(last_words(&again, tiny.path()));
}

#[test]
fn any_shape_can_be_exported_as_it_is() {
    let tiny = Tiny::trained(&[]);
    let export = ["export", "--from", "run", "--device", "cpu", "--layout", "native", "--out"];
    assert_success(&tiny.train(&[&export[..], &["same"]].concat()));
    let bytes = |path: &str| fs::read(tiny.join(path)).expect("reading");
    let kept = bytes("run/checkpoints/step-00000004/model.safetensors");
    let kept = SafeTensors::deserialize(&kept).expect("tensors");
    let same = bytes("same/model.safetensors");
    let same = SafeTensors::deserialize(&same).expect("tensors");
    assert_eq!(same.len(), kept.len());
    for (name, tensor) in kept.tensors() {
        assert_eq!(same.tensor(&name).expect("it is there"), tensor, "{name}");
    }
    assert_success(&tiny.train(&[&export[..], &["half", "--dtype", "bf16"]].concat()));
    let half = bytes("half/model.safetensors");
    let half = SafeTensors::deserialize(&half).expect("tensors");
    assert!(half.tensors().iter().all(|(_, tensor)| tensor.dtype() == Dtype::BF16));
}
