//! `train export` and `train import`.

use std::fs;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::program::{assert_code, assert_success, json, last_words};
use crate::tiny::{GPT2, Tiny};

fn loss(tiny: &Tiny, out: &str) -> Value {
    let output = tiny.train(&["eval", "--from", out, "--device", "cpu", "--json"]);
    assert_success(&output);
    json(&output)["loss"].clone()
}

fn divide(published: &Path) {
    let whole = published.join("model.safetensors");
    let bytes = fs::read(&whole).expect("reading");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors").tensors();
    let mut map = serde_json::Map::new();
    for (n, part) in tensors.chunks(tensors.len().div_ceil(2)).enumerate() {
        let shard = format!("model-{n}.safetensors");
        map.extend(part.iter().map(|(name, _)| (name.clone(), Value::from(shard.as_str()))));
        safetensors::serialize_to_file(part.iter().cloned(), None, &published.join(shard)).expect("writing");
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    fs::write(published.join("model.safetensors.index.json"), index).expect("writing");
    fs::remove_file(whole).expect("removing");
}

#[test]
fn an_exported_model_comes_back_with_the_same_loss_and_learns_on() {
    let tiny = Tiny::trained(&GPT2);
    assert_success(&tiny.train(&["export", "--from", "run", "--out", "published", "--device", "cpu"]));
    let described: Value =
        serde_json::from_slice(&fs::read(tiny.join("published/config.json")).expect("reading"))
            .expect("JSON");
    assert_eq!((&described["model_type"], &described["n_embd"]), (&"gpt2".into(), &64.into()));
    // The last control token ends an answer, the first begins a document.
    assert_eq!((&described["bos_token_id"], &described["eos_token_id"]), (&256.into(), &260.into()));
    let generation = fs::read(tiny.join("published/generation_config.json")).expect("reading");
    let generation: Value = serde_json::from_slice(&generation).expect("JSON");
    assert_eq!(generation["eos_token_id"], serde_json::json!([260, 256]));
    assert!(tiny.join("published/tokenizer.json").is_file());

    let import = ["import", "--from", "published", "--out", "imported", "--config", "tiny.json"];
    assert_success(&tiny.train(&import));
    assert_eq!(tiny.whole_checkpoints("imported"), [0]);
    assert_eq!(loss(&tiny, "imported"), loss(&tiny, "run"));
    divide(&tiny.join("published"));
    let sharded = ["import", "--from", "published", "--out", "sharded", "--config", "tiny.json"];
    assert_success(&tiny.train(&sharded));
    assert_eq!(loss(&tiny, "sharded"), loss(&tiny, "run"));

    let learned =
        tiny.train(&["--resume", "imported", "--set", "train.steps=1", "--device", "cpu", "--json"]);
    assert_success(&learned);
    assert_eq!(json(&learned)["steps"], 1);
    assert_ne!(loss(&tiny, "imported"), loss(&tiny, "run"));
    // Nothing was learned from its data: another seed orders others.
    assert_success(&tiny.train(&[
        "import",
        "--from",
        "published",
        "--out",
        "seeded",
        "--config",
        "tiny.json",
    ]));
    let seeded = ["--resume", "seeded", "--set", "train.steps=1", "--set", "train.seed=7", "--device", "cpu"];
    assert_success(&tiny.train(&seeded));

    let again = tiny.train(&import);
    assert_code(&again, 2);
    insta::assert_snapshot!(last_words(&again, tiny.path()));
}

#[test]
fn the_native_layout_exports_and_imports_any_shape() {
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

    let import = ["import", "--config", "tiny.json", "--from"];
    for (from, out) in [("same", "again"), ("half", "rounded"), ("run/checkpoints/step-00000004", "taken")] {
        assert_success(&tiny.train(&[&import[..], &[from, "--out", out]].concat()));
    }
    assert!(!tiny.join("same/config.json").exists(), "the weights alone describe it");
    let short = [&import[..], &["same", "--out", "short", "--set", "model.n_positions=48"]].concat();
    assert_success(&tiny.train(&short));
    assert_eq!(loss(&tiny, "short"), loss(&tiny, "run"), "a shorter context loads");
    for other in ["model.n_positions=128", "model.n_layer=2"] {
        assert_code(&tiny.train(&[&import[..], &["same", "--out", "no", "--set", other]].concat()), 2);
    }
    assert_eq!(loss(&tiny, "again"), loss(&tiny, "run"));
    let imported = |run: &str| bytes(&format!("{run}/checkpoints/step-00000000/model.safetensors"));
    let (again, taken, rounded) = (imported("again"), imported("taken"), imported("rounded"));
    assert!(again == taken, "a checkpoint is a file of our own, too");
    let again = SafeTensors::deserialize(&again).expect("tensors");
    let rounded = SafeTensors::deserialize(&rounded).expect("tensors");
    for (name, tensor) in kept.tensors() {
        assert_eq!(again.tensor(&name).expect("it is there"), tensor, "{name}");
        let narrow = half.tensor(&name).expect("it is there");
        assert_eq!(rounded.tensor(&name).expect("it is there"), narrow, "{name}: half precision stays");
    }
}

#[test]
fn an_imported_model_computes_in_the_type_that_its_configuration_names() {
    let tiny = Tiny::trained(&GPT2);
    assert_success(&tiny.train(&["export", "--from", "run", "--out", "published", "--device", "cpu"]));
    let import = ["import", "--from", "published", "--out", "narrow", "--config", "tiny.json"];
    assert_success(&tiny.train(&[&import[..], &["--set", "model.compute=bf16"]].concat()));
    let described = fs::read(tiny.join("narrow/config.json")).expect("reading");
    let described: Value = serde_json::from_slice(&described).expect("JSON");
    assert_eq!((&described["model"]["compute"], &described["model"]["n_embd"]), (&"bf16".into(), &64.into()));
}

#[test]
fn a_vocabulary_that_ends_with_control_tokens_of_larger_models_is_measured_and_trained_on() {
    let tiny = Tiny::trained(&GPT2);
    assert_success(&tiny.train(&["export", "--from", "run", "--out", "published", "--device", "cpu"]));
    let path = tiny.join("published/tokenizer.json");
    let mut pieces: Value = serde_json::from_slice(&fs::read(&path).expect("reading")).expect("JSON");
    let added = pieces["added_tokens"].as_array_mut().expect("a list");
    // As in Gemma 3: the embedding's rows end before the last.
    for (id, content) in [(261, "<start_of_turn>"), (262, "<end_of_turn>"), (264, "<image_soft_token>")] {
        added.push(serde_json::json!({ "id": id, "content": content, "special": true }));
    }
    fs::write(&path, pieces.to_string()).expect("writing");

    let import = ["import", "--from", "published", "--config", "tiny.json", "--out"];
    assert_success(&tiny.train(&[&import[..], &["imported"]].concat()));
    crate::program::write_text(&tiny.join("in.txt"), 20);
    let on_cpu = ["--device", "cpu", "--from", "imported"];
    for verb in [
        &["eval", "--data", "in.txt"][..],
        &["sample", "--question", "Why?", "--max-new-tokens", "2", "--set", "tokenizer.template=gemma"],
        &["export", "--layout", "gguf", "--out", "gguf"],
    ] {
        assert_success(&tiny.train(&[verb, &on_cpu[..]].concat()));
    }
    assert_eq!(tiny.resume("imported", &["train.steps=1"])["steps"], 1);
    let format = ["gemma", "--set", "tokenizer.template=gemma"];
    assert_success(&tiny.train(&[&import[..], &format[..]].concat()));
}
