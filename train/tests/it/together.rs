//! Micro-batches that pass each segment together: fewer bytes, same bits.

use crate::tiny::{TIGHT, Tiny, bits};

/// Sixteen micro-batches of fifteen tokens under half of the weights' bytes.
const SIXTEEN: [&str; 9] = [
    "memory.optimizer=host",
    "memory.device_budget=20MiB",
    "model.n_layer=12",
    "model.n_embd=256",
    "train.recompute=1",
    "train.micro_batch=1",
    "train.sequence=15",
    "train.accumulate=16",
    "eval.questions=[]",
];
const EMBEDDING: u64 = 264 * 256;

fn together(count: &str) -> String {
    format!("train.together={count}")
}

#[test]
fn each_gradient_leaves_once_for_a_group_and_weights_come_that_much_less_often() {
    let tiny = Tiny::new();
    let [alone, four, all, auto] = ["1", "4", "16", "auto"].map(|count| {
        let run = tiny.run(count, &[&SIXTEEN[..], &["train.steps=3", &together(count)]].concat());
        let step = &tiny.records(count, "step")[2];
        let bytes = |key: &str| step[key].as_u64().expect("a number");
        (run, bytes("bytes_in") + bytes("bytes_written"), bytes("bytes_out") + bytes("bytes_read"))
    });

    for run in [&four, &all, &auto] {
        assert_eq!(bits(&run.0), bits(&alone.0));
    }
    // The embedding's rows leave for each micro-batch.
    let gradients = 4 * (alone.0["parameters"].as_u64().expect("a number") - EMBEDDING);
    assert_eq!([alone.2 - four.2, four.2 - all.2], [12 * gradients, 3 * gradients]);
    assert!(four.1 < alone.1 * 2 / 5 && all.1 < alone.1 / 8, "{} {} {}", alone.1, four.1, all.1);
    assert_eq!((auto.1, auto.2), (all.1, all.2), "the plan chooses all");
}

#[test]
fn groups_of_all_sizes_have_the_same_bits_under_every_optimizer_and_budget() {
    let cases: [&[&str]; 6] = [
        &["train.optimizer=adamw", "model.resid_pdrop=0.1"],
        &["memory.optimizer=host", "model.compute=bf16", "memory.optimizer_state=compact"],
        &["train.optimizer=muon"],
        &["train.optimizer=sgd", "memory.optimizer=host"],
        &["memory.optimizer=host", "memory.device_blocks=1"],
        &["memory.optimizer=host", "memory.activations=int8"],
    ];
    let tiny = Tiny::new();
    for (n, settings) in suite::first(2, &cases).iter().enumerate() {
        let shared = ["model.n_layer=3", "train.recompute=1", "train.accumulate=8", "train.micro_batch=1"];
        let settings = [&shared[..], settings].concat();
        let run = |name: &str, more: &[&str]| {
            bits(&tiny.run(&format!("{n}-{name}"), &[&settings[..], more].concat()))
        };
        let alone = run("alone", &["train.together=1"]);
        for count in ["2", "8"] {
            assert_eq!(run(count, &[&together(count)]), alone, "{settings:?}, {count} together");
            let tight = run(&format!("tight-{count}"), &[&together(count), TIGHT]);
            assert_eq!(tight, alone, "{settings:?}, {count} together, tight");
        }
    }
}

#[test]
fn a_run_resumes_with_a_group_of_another_size() {
    let tiny = Tiny::new();
    let settings = ["model.n_layer=2", "train.recompute=1", "train.accumulate=4", "memory.optimizer=host"];
    let whole = tiny.run("whole", &[&settings[..], &["train.together=1", "train.steps=6"]].concat());
    tiny.run("run", &[&settings[..], &["train.together=4", "train.steps=3"]].concat());
    let resumed = tiny.resume("run", &["train.together=2", "train.steps=6"]);
    assert_eq!(bits(&resumed), bits(&whole));
    assert_eq!(tiny.losses("run"), tiny.losses("whole"));
}

#[test]
fn a_group_needs_blocks_that_run_twice_and_a_power_of_two() {
    let tiny = Tiny::new();
    for (settings, part) in [
        (&["train.together=4"][..], "`train.together` = 4 is for blocks that run twice"),
        (&["train.together=3", "train.recompute=1"], "a power of two, or \"auto\""),
        (&["train.together=0", "train.recompute=1"], "a power of two, or \"auto\""),
        (&["train.together=all", "train.recompute=1"], "a power of two, or \"auto\""),
    ] {
        let output = tiny.attempt("run", settings);
        crate::program::assert_code(&output, 2);
        let said = crate::program::stderr(&output);
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}
