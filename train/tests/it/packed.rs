//! `memory.base`: frozen weights in bf16, eight bits or four.

use serde_json::Value;

use crate::lora::{LORA, based, begin};
use crate::program::{assert_code, assert_success, json, last_words};
use crate::tiny::{Tiny, bits};

const NF4: &str = "memory.base=nf4";
const FORMS: [&str; 3] = [NF4, "memory.base=int8", "memory.base=bf16"];

#[test]
fn a_packed_base_has_the_same_bits_under_every_budget_and_in_groups_of_every_size() {
    let tiny = based();
    let accumulated = ["train.recompute=1", "train.accumulate=4", "train.micro_batch=1"];
    let cases: [&[&str]; 5] = [
        &[&[NF4][..], &accumulated].concat(),
        &["memory.base=int8", "model.compute=bf16", "train.recompute=2", "train.lora.dropout=0.2"],
        &[NF4, "model.compute=bf16", "train.recompute=1"],
        &["memory.base=bf16", "train.recompute=1"],
        &[NF4, "train.recompute=null"],
    ];
    for (n, settings) in suite::first(1, &cases).iter().enumerate() {
        let run = |name: &str, more: &[&str]| tiny.tune(&format!("{n}-{name}"), &[settings, more].concat());
        let roomy = run("roomy", &["train.together=1"]);
        assert_eq!(roomy["evictions"], 0);
        let budget =
            if settings.contains(&NF4) { "memory.device_budget=2MiB" } else { "memory.device_budget=3MiB" };
        let tight = run("tight", &[budget]);
        assert!(tight["evictions"].as_u64() > Some(0), "{settings:?} spills nothing");
        assert_eq!(bits(&tight), bits(&roomy), "{settings:?}");
        if settings.ends_with(&accumulated) {
            for count in ["2", "4"] {
                let group = format!("train.together={count}");
                assert_eq!(bits(&run(&group, &[&group])), bits(&roomy));
            }
        }
    }
}

#[test]
fn a_run_on_a_packed_base_resumes_to_the_same_bits() {
    let tiny = based();
    for form in suite::first(1, &FORMS) {
        let whole = tiny.tune(&format!("whole-{form}"), &[form, "train.steps=7"]);
        tiny.tune(form, &[form, "train.steps=3"]);
        let refused = tiny.train(&["--resume", form, "--device", "cpu", "--set", "memory.base=computed"]);
        assert_code(&refused, 2);
        assert_eq!(bits(&tiny.resume(form, &["train.steps=7"])), bits(&whole), "{form}");
    }
}

#[test]
fn all_verbs_see_the_weights_beside_which_adapters_have_learned() {
    let tiny = based();
    let by_heart = ["train.steps=12", "train.overfit_one_batch=true", "train.lr=0.003"];
    let summary = tiny.tune("tuned", &[&by_heart[..], &[NF4]].concat());
    let exact = tiny.tune("exact", &by_heart);
    assert_ne!(bits(&summary), bits(&exact), "four bits round");
    let evaluated = tiny.train(&["eval", "--from", "tuned", "--device", "cpu", "--json"]);
    assert_success(&evaluated);
    let [merged, separate] = [&json(&evaluated)["loss"], &summary["val_loss"]].map(Value::as_f64);
    let apart = merged.expect("a loss") - separate.expect("a loss");
    assert!(apart.abs() < 1e-4, "{apart}");
    assert_success(&tiny.train(&["export", "--from", "tuned", "--out", "merged", "--device", "cpu"]));
    assert_success(&tiny.train(&["import", "--from", "merged", "--out", "back", "--config", "tiny.json"]));
    assert_eq!(tiny.answer("back", &[]), tiny.answer("tuned", &[]));
}

#[test]
fn packed_bytes_cross_the_link_exactly_twice_a_step_and_never_back() {
    let tiny = Tiny::new();
    let shape = r#"model={"preset":"llama-160m","n_layer":4,"n_head":2,"n_embd":512,"n_inner":1024,"n_positions":32,"vocab_size":264}"#;
    tiny.run("base", &[shape, "eval.questions=[]", "train.steps=1", "train.micro_batch=1"]);
    let numbers = 4 * (4 * 512 * 512 + 3 * 512 * 1024);
    let table = 4 * 264 * 512;
    // A larger budget keeps some matrices; a smaller one brings some a third time.
    for (form, codes, kib) in [
        (NF4, numbers / 2, 5072),
        ("memory.base=int8", numbers, 5888),
        ("memory.base=bf16", 2 * numbers, 5568),
    ] {
        let budget = format!("memory.device_budget={kib}KiB");
        let set =
            ["train.steps=6", "train.micro_batch=1", "train.sequence=16", "train.recompute=1", form, &budget];
        let summary = tiny.tune(form, &set);
        let moved = ["spilled_in_median", "spilled_out_median"].map(|key| summary[key].as_u64());
        // The embedding comes with the first block, the head once.
        assert_eq!(moved, [Some(2 * codes + 3 * table), Some(0)], "{form}: {summary:#}");
    }
}

#[test]
fn weights_that_only_answer_are_packed_without_adapters() {
    let tiny = based();
    let form = ["--set", "memory.base=int8"];
    let export = ["export", "--from", "base", "--out", "rounded", "--device", "cpu"];
    assert_success(&tiny.train(&[&export[..], &form].concat()));
    assert_success(&tiny.train(&["import", "--from", "rounded", "--out", "back", "--config", "tiny.json"]));
    assert_eq!(tiny.answer("back", &[]), tiny.answer("base", &form));

    let loss = |from: &str, more: &[&str]| {
        let eval = ["eval", "--from", from, "--device", "cpu", "--json"];
        let output = tiny.train(&[&eval[..], more].concat());
        assert_success(&output);
        json(&output)["loss"].clone()
    };
    assert_eq!(loss("back", &[]), loss("base", &form));
    assert_ne!(loss("base", &[]), loss("base", &form), "eight bits round");
}

#[test]
fn a_packed_base_without_adapters_is_refused() {
    let tiny = based();
    let output = tiny.attempt_to_tune("whole", &[NF4]);
    assert_code(&output, 2);
    let said = last_words(&output, tiny.path());
    assert!(said.contains("`memory.base` = \"nf4\" is for frozen weights"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_packed_base_gives_two_ranks_the_bits_of_one_process() {
    if !crate::ranks::has_mpi() {
        return;
    }
    let tiny = based();
    let settings = [&LORA[..], &crate::ranks::SHARED, &["train.recompute=1", NF4]].concat();
    let one = tiny.attempt_to_tune("one", &settings);
    assert_success(&one);
    let two = tiny.train_on_ranks(&[&begin("two", &settings)[..], &crate::ranks::on("2")].concat());
    assert_success(&two);
    assert_eq!(bits(&json(&two)), bits(&json(&one)));
}
