//! Matrices that cross the link in eight bits: exact bytes, equal numbers under each budget, refusals.

use crate::program::{assert_code, last_words};
use crate::tiny::{TIGHT, Tiny, bits};

const HOST: &str = "memory.optimizer=host";
const NARROW: &str = "model.compute=bf16";
const TWO: &str = "model.n_layer=2";
const INT8: &str = "memory.stream=int8";
const FP8: &str = "memory.stream=fp8";
const GRADIENTS: &str = "memory.gradients=int8";
const ACTIVATIONS: &str = "memory.activations=int8";

#[test]
fn a_tight_budget_changes_no_bit() {
    let cases: [&[&str]; 5] = [
        &[FP8, GRADIENTS, ACTIVATIONS, TWO, "train.recompute=1", "train.accumulate=3"],
        &[INT8, GRADIENTS],
        &[INT8, NARROW, "memory.optimizer_state=bf16"],
        &[GRADIENTS, NARROW, "memory.optimizer_state=compact"],
        &[INT8, GRADIENTS, NARROW, TWO, "memory.device_blocks=1"],
    ];
    let tiny = Tiny::new();
    for (n, settings) in suite::first(2, &cases).iter().enumerate() {
        let settings = [&[HOST], *settings].concat();
        tiny.assert_spills_to_the_same_bits(&n.to_string(), "memory.device_budget=800KiB", &settings);
    }
}

#[test]
fn eight_bits_learn_nearly_as_well_as_sixteen() {
    let tiny = Tiny::new();
    let settings = [HOST, NARROW, TWO, "train.recompute=1", "train.steps=60"];
    let last = |run: &str| *tiny.losses(run).last().expect("a step was taken");
    let sixteen = tiny.run("sixteen", &settings);
    let cases: [(&str, &[&str]); 5] = [
        ("all", &[INT8, GRADIENTS, ACTIVATIONS]),
        ("int8", &[INT8]),
        ("fp8", &[FP8]),
        ("gradients", &[GRADIENTS]),
        ("activations", &[ACTIVATIONS]),
    ];
    for (run, eight) in suite::first(1, &cases) {
        let summary = tiny.run(run, &[&settings[..], *eight].concat());
        assert_ne!(bits(&summary), bits(&sixteen), "{run} rounds nothing");
        let (exact, narrow) = (last("sixteen"), last(run));
        assert!((exact - narrow).abs() < 0.05 * exact, "{run}: {narrow} where {exact} is of sixteen bits");
    }
}

#[test]
fn a_run_resumes_from_its_checkpoint_to_the_same_bits() {
    let tiny = Tiny::new();
    for state in suite::first(1, &["bf16", "f32"]) {
        let format = format!("memory.optimizer_state={state}");
        tiny.assert_resumes_to_the_same_bits(state, &[HOST, NARROW, TIGHT, INT8, GRADIENTS, &format]);
    }
}

#[test]
fn a_diverging_step_is_skipped_although_tiles_cannot_hold_nan() {
    let tiny = Tiny::new();
    let settings =
        [HOST, INT8, GRADIENTS, "train.lr=1e30", "train.bad_steps=2", "train.steps=9", "checkpoint.every=1"];
    let output = tiny.attempt("run", &settings);
    assert_code(&output, 4);
    assert_eq!(tiny.records("run", "withheld").len(), 2);
    tiny.whole_checkpoints("run");
}

/// Scales and rounding are then negligible.
const WIDE: [&str; 10] = [
    HOST,
    NARROW,
    GRADIENTS,
    "model.n_layer=6",
    "model.n_embd=512",
    "train.recompute=1",
    "train.micro_batch=1",
    "train.sequence=15",
    "train.steps=3",
    "eval.questions=[]",
];
const MATRICES: u64 = 6 * 12 * 512 * 512;
const EMBEDDING: u64 = 264 * 512;
/// Most bytes in a step of fifteen tokens.
const ROWS: u64 = 4 * 15 * 512;

/// 33/32 bytes of gradient out, and of weights in per pass.
#[test]
fn a_step_moves_little_more_than_three_bytes_per_parameter() {
    let tiny = Tiny::new();
    let streamed = MATRICES * 33 / 32 + 2 * EMBEDDING;
    for stream in suite::first(1, &[INT8, FP8]) {
        let settings = [&WIDE[..], &[*stream]].concat();
        let [tight, roomy] = [format!("{stream}-tight"), format!("{stream}-roomy")];
        let summary = tiny.run(&tight, &[&settings[..], &["memory.device_budget=14MiB"]].concat());
        let parameters = summary["parameters"].as_u64().expect("a number");
        assert_eq!(parameters, MATRICES + 2 * EMBEDDING);
        for step in &tiny.records(&tight, "step")[1..] {
            let bytes = |key: &str| step[key].as_u64().expect("a number");
            let (out, back) =
                (bytes("bytes_out") + bytes("bytes_read"), bytes("bytes_in") + bytes("bytes_written"));
            assert!(
                (streamed..streamed + ROWS + 64).contains(&out),
                "{out} bytes out, not {streamed}: {step}"
            );
            assert!(
                back <= 2 * streamed + streamed / 50,
                "{back} bytes in, not {} at most: {step}",
                2 * streamed
            );
            assert!((out + back) as f64 <= 3.2 * parameters as f64, "{} bytes in all", out + back);
        }
        assert_eq!(bits(&tiny.run(&roomy, &settings)), bits(&summary));
        for step in &tiny.records(&roomy, "step")[1..] {
            let bytes = |key: &str| step[key].as_u64().expect("a number");
            assert_eq!((bytes("bytes_out"), bytes("bytes_in")), (0, 0), "everything fits");
            assert!(bytes("bytes_written") <= streamed + streamed / 50, "{step}");
        }
    }
}

#[test]
fn settings_that_exclude_eight_bits_are_refused() {
    let tiny = Tiny::new();
    for (settings, words) in [
        (&[INT8][..], "set `memory.optimizer` to \"host\""),
        (&[GRADIENTS], "`memory.gradients` = \"int8\" is for an optimizer on the host"),
        (&[HOST, FP8, "train.optimizer=muon"], "muon steps them on the device"),
        (&[ACTIVATIONS], "`train.recompute` = null runs none"),
        (&[HOST, INT8, "memory.optimizer_state=compact"], "needs master weights on the host"),
    ] {
        let output = tiny.attempt("run", settings);
        assert_code(&output, 2);
        assert!(last_words(&output, tiny.path()).contains(words), "{settings:?}");
    }
}
