//! `train.freeze` and `train.groups`: parameters that do not learn, or at a rate of their own.

use crate::lora::{self, MATRICES};
use crate::program::{assert_code, assert_success, json, last_words, stderr};
use crate::tiny::{Tiny, bits};

/// Matrices of 256 and 512 KiB; without norms' weights, all parameters can spill.
const SHAPE: &str = r#"model={"preset":"nanochat","n_layer":4,"n_head":2,"n_embd":256,"n_inner":512,"n_positions":64,"vocab_size":264}"#;
const FROZEN: &str = r#"train.freeze=["blocks.0-2"]"#;
const HOST: &str = "memory.optimizer=host";
const GROUPS: &str =
    r#"train.groups=[{"match":"mlp","lr_scale":0.1,"weight_decay":0},{"match":"blocks.3","lr_scale":0.5}]"#;

fn run(tiny: &Tiny, out: &str, settings: &[&str]) -> serde_json::Value {
    tiny.run(out, &[&[SHAPE, "eval.questions=[]"], settings].concat())
}

#[test]
fn frozen_groups_have_the_same_bits_under_every_budget_and_in_groups_of_every_size() {
    let tiny = Tiny::new();
    let adamw = "train.optimizer=adamw";
    let cases: [&[&str]; 5] = [
        &[adamw, "train.recompute=1", "train.accumulate=4", "train.micro_batch=1"],
        &[adamw, HOST, "model.compute=bf16", "train.recompute=1", GROUPS],
        &["train.optimizer=muon", "train.recompute=2", GROUPS],
        &[adamw, HOST, "memory.stream=int8", "train.recompute=1"],
        &["train.optimizer=sgd", "train.recompute=null"],
    ];
    for (n, settings) in suite::first(1, &cases).iter().enumerate() {
        let freeze = r#"train.freeze=["embedding","blocks.1","attention"]"#;
        let run = |name: &str, more: &[&str]| {
            run(&tiny, &format!("{n}-{name}"), &[&[freeze], *settings, more].concat())
        };
        let roomy = run("roomy", &["train.together=1"]);
        let tight = run("tight", &["memory.device_budget=5MiB"]);
        assert!(roomy["evictions"] == 0 && tight["evictions"].as_u64() > Some(0), "{settings:?}");
        assert_eq!(bits(&tight), bits(&roomy), "{settings:?}");
        if n == 0 {
            assert_eq!(bits(&run("group", &["train.together=4"])), bits(&roomy));
        }
    }
}

#[test]
fn frozen_weights_come_in_as_often_as_they_are_used_and_leave_without_a_copy() {
    let tiny = Tiny::new();
    let settings = [
        lora::SHAPE,
        "eval.questions=[]",
        "train.optimizer=adamw",
        "train.steps=8",
        "train.micro_batch=1",
        "train.sequence=16",
        "train.recompute=1",
        "memory.device_budget=3MiB",
    ];
    let run = |out: &str, freeze: &str| tiny.run(out, &[&settings[..], &[freeze]].concat());
    let frozen = run("frozen", r#"train.freeze=["embedding","attention","mlp","head"]"#);
    let count = |key: &str| frozen[key].as_u64().expect("a number");
    assert_eq!(count("spilled_out_median"), 0, "{frozen:#}");
    let come = count("spilled_in_median");
    assert!(come > MATRICES && come <= 2 * MATRICES, "{come} of {MATRICES}");
    assert!(count("step_bytes_out") < 2 * MATRICES, "each weight leaves at most once");

    // Nothing learns in blocks: they pass forward only.
    let once = run("once", r#"train.freeze=["embedding","blocks","head"]"#)["spilled_in_median"].clone();
    assert!(once.as_u64().expect("a number") <= MATRICES, "{once} of {MATRICES}");
    let whole = run("whole", "train.freeze=[]");
    assert!(whole["spilled_out_median"].as_u64() > Some(MATRICES), "weights that learn change");
}

#[test]
fn a_run_with_frozen_groups_resumes_to_the_same_bits_and_with_no_others() {
    let tiny = Tiny::new();
    for (n, place) in
        suite::first(1, &["memory.optimizer=host", "memory.optimizer=device"]).iter().enumerate()
    {
        let settings = [FROZEN, GROUPS, place];
        tiny.assert_resumes_to_the_same_bits(
            &n.to_string(),
            &[&[SHAPE, "eval.questions=[]"], &settings[..]].concat(),
        );
    }
    let output =
        tiny.train(&["--resume", "run-0", "--device", "cpu", "--set", r#"train.freeze=["blocks.0"]"#]);
    assert_code(&output, 2);
    let said = last_words(&output, tiny.path());
    assert!(said.contains("`train.freeze` from [\"blocks.0-2\"] to [\"blocks.0\"]"), "{said}");
    tiny.resume("run-0", &["train.steps=8", "train.groups=[]"]);
}

#[test]
fn a_run_begins_with_anothers_weights_and_thaws_what_that_froze() {
    let tiny = Tiny::new();
    run(&tiny, "base", &[FROZEN]);
    let begin = ["--from", "base", "--config", "tiny.json", "--device", "cpu", "--json", "--log-every", "1"];
    let tune = |out: &str, more: &[&str]| {
        let set = more.iter().flat_map(|set| ["--set", set]);
        let output = tiny.train(&[&begin[..], &["--out", out], &set.collect::<Vec<_>>()].concat());
        assert_success(&output);
        json(&output)
    };
    let [all, some] = [("all", &[][..]), ("some", &[r#"train.freeze=["embedding","blocks"]"#])]
        .map(|(out, freeze)| (tune(out, freeze), tiny.losses(out)));
    assert_eq!(all.1[0].to_bits(), some.1[0].to_bits());
    assert_ne!(bits(&all.0), bits(&some.0));
    let learning = |out: &str| tiny.records(out, "start")[0]["learning"].as_u64().expect("a number");
    assert!(learning("some") < learning("all") / 4);
}

#[test]
fn groups_that_a_model_lacks_are_refused_with_the_list_before_anything_is_made() {
    let tiny = Tiny::new();
    for (setting, part) in [
        (r#"train.freeze=["embeddings"]"#, "the groups are `embedding`, `followers`, `blocks`, `blocks.N`"),
        (r#"train.freeze=["blocks.1-9"]"#, "the group \"blocks.1-9\" has no parameter of this model"),
        (
            r#"train.groups=[{"match":"head","lr_scale":0}]"#,
            "`lr_scale` of \"head\" must be a factor above 0, and not 0",
        ),
    ] {
        let output = tiny.attempt("run", &[setting]);
        assert_code(&output, 2);
        let said = last_words(&output, tiny.path());
        assert!(said.contains(part), "{part:?} is not in {said}");
        assert!(!tiny.join("run").exists(), "{}", stderr(&output));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn frozen_groups_give_two_ranks_the_bits_of_one_process() {
    if !crate::ranks::has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let settings =
        [SHAPE, "eval.questions=[]", "train.recompute=1", "train.optimizer=adamw", HOST, FROZEN, GROUPS];
    let settings = [&crate::ranks::SHARED[..], &settings].concat();
    let one = tiny.run("one", &settings);
    assert_eq!(tiny.run_on("2", "two", &settings), bits(&one));
    let divided = [&settings[..], &["memory.shard=true"]].concat();
    assert_eq!(tiny.run_on("2", "divided", &divided), bits(&one));
}
