//! Micro-batches that pass each segment together: fewer bytes, same bits.

use crate::program::{assert_success, json};
use crate::tiny::{TIGHT, Tiny, bits, number};

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
        let passing = if count == "auto" { 16 } else { count.parse().expect("a number") };
        // Eleven inputs of fifteen tokens, in f32.
        assert_eq!(bytes("kept_inputs"), passing * 11 * 15 * 256 * 4);
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
    let cases: [&[&str]; 7] = [
        &["train.optimizer=adamw", "model.resid_pdrop=0.1"],
        &["memory.optimizer=host", "model.compute=bf16", "memory.optimizer_state=compact"],
        &["train.optimizer=muon"],
        &["train.optimizer=sgd", "memory.optimizer=host"],
        &["memory.optimizer=host", "memory.device_blocks=1"],
        &["memory.optimizer=host", "memory.activations=int8"],
        &["memory.optimizer=host", "memory.activations=bf16", "model.compute=bf16"],
    ];
    let tiny = Tiny::new();
    for (n, settings) in suite::first(1, &cases).iter().enumerate() {
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
fn inputs_kept_in_bf16_take_half_the_bytes_in_the_run_and_its_plan() {
    let tiny = Tiny::new();
    let shared = ["model.n_layer=3", "train.recompute=1", "train.accumulate=2", "train.together=2"];
    let [computed, bf16] = ["computed", "bf16"].map(|out| {
        let form = format!("memory.activations={out}");
        let settings = [&shared[..], &[&form]].concat();
        tiny.run(out, &settings);
        let kept = number(&tiny.records(out, "step")[0], "kept_inputs");

        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        let arguments: Vec<_> =
            ["plan", "--config", "tiny.json", "--device", "cpu", "--json"].into_iter().chain(set).collect();
        let output = tiny.train(&arguments);
        assert_success(&output);
        let planned = json(&output);
        let held = planned["held"].as_array().expect("a list");
        let activations = held.iter().find(|part| part["what"] == "activations").expect("inputs are kept");
        (kept, number(activations, "bytes"), tiny.losses(out))
    });

    // Two inputs of two micro-batches of 64 tokens.
    let inputs = 2 * 2 * 64 * 128;
    assert_eq!([computed.0, bf16.0], [4 * inputs, 2 * inputs]);
    let saved = computed.1 - bf16.1;
    assert!(saved >= 2 * inputs, "the plan has {} and {}", computed.1, bf16.1);
    assert_eq!(bf16.2[0].to_bits(), computed.2[0].to_bits(), "the forward pass rounds nothing");
    assert_ne!(bf16.2, computed.2, "nothing was rounded");
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

mod gate {
    use super::*;

    const DEEP: [&str; 8] = [
        "memory.optimizer=host",
        "memory.device_budget=5MiB",
        "train.recompute=1",
        "train.micro_batch=1",
        "train.sequence=15",
        "train.accumulate=16",
        "train.steps=3",
        "eval.questions=[]",
    ];
    const DEPTHS: [u64; 2] = [12, 44];
    const BLOCK: u64 = 4 * (4 * 128 * 128 + 2 * 128 * 512);

    /// What stays on the device where a pass turns does not depend on the depth, nor does what crosses for each
    /// micro-batch: both cancel out between two depths.
    #[test]
    #[ignore = "gate: trains for minutes"]
    fn a_blocks_weights_come_twice_and_its_gradients_leave_once_for_a_group() {
        let tiny = Tiny::new();
        let added = (DEPTHS[1] - DEPTHS[0]) * BLOCK;
        for count in [1_u64, 4, 16] {
            let group = together(&count.to_string());
            let [shallow, deep] = DEPTHS.map(|layers| {
                let (out, layers) = (format!("{count}-{layers}"), format!("model.n_layer={layers}"));
                tiny.run(&out, &[&DEEP[..], &[&group, &layers]].concat());
                let step = &tiny.records(&out, "step")[2];
                let bytes = |key: &str| number(step, key);
                [bytes("bytes_in") + bytes("bytes_written"), bytes("bytes_out") + bytes("bytes_read")]
            });

            let [came, left] = [0, 1].map(|way| deep[way] - shallow[way]);
            let gradients = 16 / count * added;
            let weights = 2 * gradients;
            let figures = format!(
                "{count} together, in and out with {DEPTHS:?} blocks: {shallow:?} and {deep:?}; \
                 {came} in for {weights}, {left} out for {gradients}"
            );
            println!("{figures}");
            assert_eq!(left, gradients, "{figures}");
            assert!(100 * came.abs_diff(weights) <= weights, "{figures}");
        }
    }
}

#[cfg(target_os = "linux")]
mod full {
    use super::*;
    use crate::ranks::has_mpi;

    #[test]
    #[ignore = "full: trains for minutes"]
    fn groups_have_the_same_bits_on_any_number_of_ranks_at_any_budget() {
        if !has_mpi() {
            return;
        }
        let shared = [
            "model.n_layer=3",
            "train.recompute=1",
            "train.accumulate=8",
            "train.micro_batch=1",
            "train.steps=20",
            "eval.questions=[]",
        ];
        let tiny = Tiny::new();
        for optimizer in ["adamw", "sgd", "muon"] {
            for (place, placed) in [
                ("device", &["memory.optimizer=device"][..]),
                ("host", &["memory.optimizer=host"]),
                ("mixed", &["memory.optimizer=host", "memory.device_blocks=1"]),
            ] {
                if (optimizer, place) == ("muon", "host") {
                    continue;
                }
                let rule = format!("train.optimizer={optimizer}");
                let settings = [&shared[..], placed, &[&rule]].concat();
                let name = format!("{optimizer}-{place}");
                let alone = tiny.run(&name, &[&settings[..], &["train.together=1"]].concat());
                let peak = alone["peak_device_bytes"].as_u64().expect("bytes");
                // Muon's largest operation.
                let least = if optimizer == "muon" { 1408 } else { 0 };
                for share in [1, 2, 4] {
                    let budget = (peak / share).div_ceil(1024).max(least);
                    let budget = format!("memory.device_budget={budget}KiB");
                    for ranks in ["1", "2", "4"] {
                        for count in ["1", "2", "8"] {
                            let group = together(count);
                            let settings = [&settings[..], &[&budget, &group]].concat();
                            let out = format!("{name}-{share}-{ranks}-{count}");
                            let output = tiny.attempt_on(ranks, &out, &settings);
                            assert_success(&output);
                            let run = json(&output);
                            assert_eq!(bits(&run), bits(&alone), "{out}");
                            let restores = number(&run, "restores");
                            assert!(share < 4 || restores > 0, "{out}: nothing spilled under {budget}");
                        }
                    }
                }
            }
        }
    }
}
