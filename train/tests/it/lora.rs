//! `train.lora`: adapters learn beside another run's frozen weights.

use std::fs;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::program::{assert_code, assert_success, json, last_words, stderr, stdout};
use crate::tiny::{Tiny, bits};

/// Large enough to spill.
pub(crate) const SHAPE: &str = r#"model={"preset":"llama-160m","n_layer":3,"n_head":2,"n_embd":256,"n_inner":512,"n_positions":64,"vocab_size":320}"#;
pub(crate) const MATRICES: u64 = 4 * (3 * (4 * 256 * 256 + 3 * 256 * 512) + 2 * 320 * 256);

pub(crate) const LORA: [&str; 3] = ["train.lora.rank=4", "train.lora.alpha=16", "train.lr=0.01"];

pub(crate) fn based() -> Tiny {
    let tiny = Tiny::new();
    tiny.run("base", &[SHAPE, "eval.questions=[]"]);
    tiny
}

pub(crate) fn begin<'a>(out: &'a str, settings: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["--from", "base", "--config", "tiny.json", "--out", out, "--device", "cpu", "--json"];
    let fixed = fixed.into_iter().chain(["--log-every", "1"]);
    fixed.chain(settings.iter().flat_map(|setting| ["--set", setting])).collect()
}

impl Tiny {
    pub(crate) fn attempt_to_tune(&self, out: &str, settings: &[&str]) -> Output {
        self.train(&begin(out, settings))
    }

    pub(crate) fn tune(&self, out: &str, settings: &[&str]) -> Value {
        let output = self.attempt_to_tune(out, &[&LORA[..], settings].concat());
        assert_success(&output);
        json(&output)
    }

    pub(crate) fn answer(&self, from: &str, more: &[&str]) -> String {
        let asked = ["sample", "--from", from, "--question", "What is 3 plus 4?", "--temperature", "0"];
        let output = self.train(&[&asked[..], &["--max-new-tokens", "12", "--device", "cpu"], more].concat());
        assert_success(&output);
        stdout(&output)
    }

    fn weights_file(&self, run: &str) -> u64 {
        let latest = fs::read_to_string(self.join(run).join("checkpoints/latest")).expect("a checkpoint");
        let file = self.join(run).join("checkpoints").join(latest.trim()).join("model.safetensors");
        fs::metadata(file).expect("it was saved").len()
    }
}

#[test]
fn adapters_are_tuned_saved_alone_asked_evaluated_and_exported() {
    let tiny = based();
    let by_heart = ["train.steps=12", "train.overfit_one_batch=true", "train.lr=0.003"];
    let summary = tiny.tune("tuned", &by_heart);
    let [whole, adapters] = ["base", "tuned"].map(|run| tiny.weights_file(run));
    assert!(adapters < whole / 10, "{adapters} of {whole}");
    assert_eq!(tiny.whole_checkpoints("tuned"), [12]);
    let losses = tiny.losses("tuned");
    assert!(losses[11] < 0.9 * losses[0], "{losses:?}");

    let answered = tiny.answer("tuned", &[]);
    assert_success(&tiny.train(&["export", "--from", "tuned", "--out", "merged", "--device", "cpu"]));
    assert_success(&tiny.train(&["import", "--from", "merged", "--out", "back", "--config", "tiny.json"]));
    assert_eq!(tiny.answer("back", &[]), answered);

    let evaluated = tiny.train(&["eval", "--from", "tuned", "--device", "cpu", "--json"]);
    assert_success(&evaluated);
    let [merged, separate] = [&json(&evaluated)["loss"], &summary["val_loss"]].map(Value::as_f64);
    let apart = merged.expect("a loss") - separate.expect("a loss");
    assert!(apart.abs() < 1e-4, "{apart}");

    let peft = ["export", "--from", "tuned", "--out", "peft", "--layout", "peft", "--device", "cpu"];
    assert_success(&tiny.train(&peft));
    let config = fs::read(tiny.join("peft/adapter_config.json")).expect("written");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    assert_eq!((&config["r"], &config["peft_type"]), (&4.into(), &"LORA".into()));
    assert!(tiny.join("peft/adapter_model.safetensors").exists());
    let adapter = ["--adapter", "peft"];
    assert_eq!(tiny.answer("base", &adapter), answered);
    assert_ne!(tiny.answer("base", &[]), answered);
    let again =
        tiny.train(&[&["eval", "--from", "base", "--device", "cpu", "--json"][..], &adapter].concat());
    assert_success(&again);
    assert_eq!(json(&again)["loss"], json(&evaluated)["loss"]);
    let on = [&begin("on", &["train.steps=1", "train.overfit_one_batch=true"])[..], &adapter].concat();
    assert_success(&tiny.train(&on));
    assert!(tiny.losses("on")[0] < losses[11] + 1e-4, "{:?} after {losses:?}", tiny.losses("on"));
    assert_eq!(tiny.resume("on", &["train.steps=2"])["steps"], 2);
    let twice = tiny
        .train(&[&["export", "--from", "base", "--out", "no", "--layout", "peft"][..], &adapter].concat());
    assert_code(&twice, 2);
    let dora = fs::read_to_string(tiny.join("peft/adapter_config.json")).expect("written");
    let dora = dora.replace(r#""r": 4"#, r#""r": 4, "use_dora": true"#);
    fs::write(tiny.join("peft/adapter_config.json"), dora).expect("writing");
    let refused = tiny.train(&[&["sample", "--from", "base", "--prompt", "a"][..], &adapter].concat());
    assert_code(&refused, 2);
    assert!(last_words(&refused, tiny.path()).contains("DoRA"));

    let plain = ["export", "--from", "base", "--out", "none", "--layout", "peft", "--device", "cpu"];
    let plain = tiny.train(&plain);
    assert_code(&plain, 2);
    assert!(last_words(&plain, tiny.path()).contains("has no adapters"));
    assert!(!tiny.join("none").exists());
}

#[test]
fn adapters_begin_with_the_loss_of_their_base() {
    let tiny = based();
    tiny.tune("tuned", &["train.steps=2"]);
    let whole = tiny.attempt_to_tune("whole", &["train.steps=2", "train.lr=0.01"]);
    assert_success(&whole);
    let [adapters, whole] = ["tuned", "whole"].map(|run| tiny.losses(run));
    assert_eq!(adapters[0].to_bits(), whole[0].to_bits());
    assert_ne!(adapters[1].to_bits(), whole[1].to_bits());
}

#[test]
fn adapters_have_the_same_bits_under_every_budget_and_in_groups_of_every_size() {
    let tiny = based();
    let accumulated = ["train.recompute=1", "train.accumulate=4", "train.micro_batch=1"];
    let cases: [&[&str]; 4] = [
        &accumulated,
        &["model.compute=bf16", "train.recompute=1", "train.lora.dropout=0.2"],
        &["train.recompute=null"],
        &["train.optimizer=sgd", "train.recompute=2", "train.lora.targets=[\"query\",\"down\"]"],
    ];
    for (n, settings) in suite::first(1, &cases).iter().enumerate() {
        let run = |name: &str, more: &[&str]| tiny.tune(&format!("{n}-{name}"), &[settings, more].concat());
        let roomy = run("roomy", &["train.together=1"]);
        assert_eq!(roomy["evictions"], 0);
        for budget in ["8MiB", "4MiB"] {
            let tight = run(budget, &[&format!("memory.device_budget={budget}")]);
            assert_eq!(bits(&tight), bits(&roomy), "{settings:?} under {budget}");
        }
        if *settings == accumulated {
            for count in ["2", "4"] {
                let group = format!("train.together={count}");
                assert_eq!(bits(&run(&group, &[&group])), bits(&roomy));
            }
        }
    }
}

#[test]
fn frozen_weights_come_in_twice_a_step_and_leave_once_in_a_run() {
    let tiny = based();
    let small = [
        "train.steps=8",
        "train.micro_batch=1",
        "train.sequence=16",
        "train.recompute=1",
        "memory.device_budget=3MiB",
    ];
    let summary = tiny.tune("tuned", &small);
    let count = |key: &str| summary[key].as_u64().expect("a number");
    assert_eq!(count("spilled_out_median"), 0, "{summary:#}");
    let come = count("spilled_in_median");
    assert!(come > MATRICES && come <= 2 * MATRICES, "{come} of {MATRICES}");
    assert!(count("step_bytes_out") < 2 * MATRICES, "each weight leaves at most once");

    let whole = tiny.attempt_to_tune("whole", &small);
    assert_success(&whole);
    assert!(json(&whole)["spilled_out_median"].as_u64() > Some(MATRICES), "whole weights change");
}

#[test]
fn adapters_resume_to_the_same_bits_also_after_a_kill() {
    let tiny = based();
    let settings =
        ["model.compute=bf16", "train.lora.dropout=0.1", "checkpoint.every=2", "train.recompute=1"];
    let whole = tiny.tune("whole", &[&settings[..], &["train.steps=9"]].concat());
    tiny.tune("run", &[&settings[..], &["train.steps=4"]].concat());
    let resumed = tiny.resume("run", &["train.steps=9"]);
    assert_eq!(bits(&resumed), bits(&whole));
    assert_eq!(tiny.losses("run"), tiny.losses("whole"));

    let mut command = std::process::Command::new(crate::program::PROGRAM);
    let all = [&LORA[..], &settings[..], &["train.steps=300"]].concat();
    command.args(begin("killed", &all)).current_dir(tiny.path()).envs([crate::program::CACHE]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    while !tiny.journal("killed").contains(r#"{"kind":"checkpoint""#) {
        assert!(child.try_wait().expect("waiting").is_none(), "it ended before a checkpoint");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().expect("a signal");
    child.wait().expect("it ends");
    let saved = *tiny.whole_checkpoints("killed").iter().max().expect("one is whole");
    let steps = format!("train.steps={}", saved + 3);
    let resumed = tiny.resume("killed", &[&steps]);
    let whole = tiny.tune("undisturbed", &[&settings[..], &[&steps]].concat());
    assert_eq!(bits(&resumed), bits(&whole));
}

#[test]
fn a_base_that_moved_or_changed_is_refused_with_the_way_out() {
    let tiny = based();
    tiny.tune("tuned", &["train.steps=2"]);
    let answered = tiny.answer("tuned", &[]);
    fs::rename(tiny.join("base"), tiny.join("moved")).expect("renaming");

    let refused = |arguments: &[&str], part: &str| {
        let output = tiny.train(&[arguments, &["--device", "cpu"]].concat());
        assert_code(&output, 2);
        let said = last_words(&output, tiny.path());
        assert!(said.contains(part) && said.contains("--set train.lora_base.path=PATH"), "{said}");
    };
    for verb in [&["--resume", "tuned", "--set", "train.steps=3"][..], &["sample", "--from", "tuned"]] {
        refused(verb, "the weights that this run tunes are not at DIR/base/checkpoints/step-00000004");
    }

    let moved = ["--set", "train.lora_base.path=moved"];
    assert_eq!(tiny.answer("tuned", &moved), answered);
    assert_eq!(tiny.resume("tuned", &["train.steps=3", "train.lora_base.path=moved"])["steps"], 3);
    tiny.answer("tuned", &[]);

    tiny.run("other", &[SHAPE, "eval.questions=[]", "train.seed=5"]);
    let other = ["sample", "--from", "tuned", "--set", "train.lora_base.path=other"];
    refused(&other, "holds other weights than this run tunes");
}

#[test]
fn tuned_adapters_are_a_base_for_weights_and_for_adapters() {
    let tiny = based();
    tiny.tune("first", &["train.steps=4"]);
    let [weights, adapters] = [("weights", &[][..]), ("adapters", &LORA[..])].map(|(out, lora)| {
        let mut arguments = begin(out, lora);
        arguments[1] = "first";
        assert_success(&tiny.train(&arguments));
        tiny.losses(out)[0]
    });
    assert!((weights - adapters).abs() < 1e-6, "{weights} and {adapters}");
    assert!(tiny.weights_file("weights") > 10 * tiny.weights_file("adapters"));
    tiny.answer("adapters", &[]);
}

#[test]
fn new_control_tokens_of_the_vocabulary_are_there_again_after_a_resume() {
    let tiny = Tiny::new();
    crate::program::write_text(&tiny.join("book.txt"), 400);
    let text = r#"data={"source":"text","path":"book.txt","split":"position"}"#;
    let shape = SHAPE.replace("320", "256");
    tiny.run("base", &[&shape, text, "tokenizer.chat=false", "eval.questions=[]"]);
    let output =
        tiny.attempt_to_tune("tuned", &[&LORA[..], &["tokenizer.chat=true", "train.steps=3"]].concat());
    assert_success(&output);
    assert!(stderr(&output).contains("`train.lora` tunes no embedding"), "{}", stderr(&output));
    assert_eq!(tiny.resume("tuned", &["train.steps=4"])["steps"], 4);
    tiny.answer("tuned", &[]);

    let export = ["export", "--from", "tuned", "--device", "cpu", "--out"];
    let peft = tiny.train(&[&export[..], &["peft", "--layout", "peft"]].concat());
    assert_code(&peft, 2);
    let said = last_words(&peft, tiny.path());
    assert!(said.contains("added 5 control tokens") && said.contains("merged"), "{said}");
    assert!(!tiny.join("peft").exists());
    assert_success(&tiny.train(&[&export[..], &["merged"]].concat()));
}

#[test]
fn adapters_that_make_no_sense_are_refused_before_anything_is_made() {
    let tiny = based();
    for (settings, part) in [
        (&["train.lora.rank=0"][..], "`rank` = 0 must be at least 1"),
        (&["train.lora.targets=[\"quary\"]"], "unknown value `quary`, expected one of `query`"),
        (&["train.lora.ranks=4"], "unknown field `ranks`"),
        (
            &["train.lora.rank=4", "memory.optimizer=host"],
            "`memory.optimizer` = \"host\" is for weights that learn",
        ),
        (&["train.lora.rank=4", "memory.shard=true"], "`memory.shard` divides the optimizer of all weights"),
        (
            &["train.lora.rank=4", "train.optimizer=muon"],
            "`train.optimizer` = \"muon\" is for whole matrices",
        ),
        (
            &["train.lora.rank=4", "ranks.exchange=one_bit", "ranks.warm_up=1"],
            "`ranks.exchange` = \"one_bit\" saves",
        ),
        (&["train.lora.rank=4", "model.longest_match=true"], "would freeze it at zero"),
    ] {
        let output = tiny.attempt_to_tune("tuned", settings);
        assert_code(&output, 2);
        let said = last_words(&output, tiny.path());
        assert!(said.contains(part), "{part:?} is not in {said}");
        assert!(!tiny.join("tuned").exists(), "{settings:?}");
    }

    let output = tiny.attempt("fresh", &["train.lora.rank=4"]);
    assert_code(&output, 2);
    let said = last_words(&output, tiny.path());
    assert!(said.contains("begin a run with them by `train --from RUN`"), "{said}");
    assert!(!tiny.join("fresh").exists());

    tiny.tune("tuned", &["train.steps=2"]);
    for setting in ["train.lora.rank=5", "train.lora.alpha=1", "train.lora=null"] {
        let output = tiny.train(&["--resume", "tuned", "--device", "cpu", "--set", setting]);
        assert_code(&output, 2);
    }
}

#[test]
fn a_plan_of_adapters_can_be_replayed() {
    let tiny = Tiny::new();
    let plan = ["plan", "--config", "tiny.json", "--on", "64MiB,1GiB,25GB/s,1TFLOP/s", "--replay", "--json"];
    let set = [SHAPE, "train.lora.rank=4", "train.recompute=1", "train.micro_batch=1", "train.sequence=16"];
    let set = [&set[..], &["memory.device_budget=3MiB"]].concat();
    let output =
        tiny.train(&[&plan[..], &set.iter().flat_map(|set| ["--set", set]).collect::<Vec<_>>()].concat());
    assert_success(&output);
    let replayed = &json(&output)["replayed"];
    assert_eq!(replayed["bytes_out"], 0, "{replayed}");
    let come = replayed["bytes_in"].as_u64().expect("a number");
    assert!(come > MATRICES && come <= 2 * MATRICES, "{come} of {MATRICES}");
}

#[cfg(target_os = "linux")]
#[test]
fn adapters_end_with_the_bits_of_one_process_on_two_and_four_ranks() {
    if !crate::ranks::has_mpi() {
        return;
    }
    let tiny = based();
    let settings = [&LORA[..], &crate::ranks::SHARED, &["train.recompute=1"]].concat();
    let one = tiny.attempt_to_tune("one", &settings);
    assert_success(&one);
    for (out, ranks) in [("two", "2"), ("four", "4")] {
        let several = tiny.train_on_ranks(&[&begin(out, &settings)[..], &crate::ranks::on(ranks)].concat());
        assert_success(&several);
        assert_eq!(bits(&json(&several)), bits(&json(&one)), "{out}");
    }
}
