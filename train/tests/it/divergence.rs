//! NaN and infinite losses skip the update and end the run.

use std::fs;

use safetensors::SafeTensors;

use crate::program::{assert_code, json, stderr};
use crate::tiny::Tiny;

const ABSURD: [&str; 6] = [
    "train.optimizer=sgd",
    "train.lr=1e30",
    "train.grad_clip=null",
    "train.schedule.warmup=0",
    "train.bad_steps=3",
    "train.steps=20",
];

#[test]
fn a_diverged_run_skips_updates_and_stops_with_finite_weights() {
    let tiny = Tiny::new();
    let output = tiny.attempt("run", &ABSURD);
    assert_code(&output, 4);
    assert_eq!(json(&output)["outcome"], "diverged");

    let withheld = tiny.records("run", "withheld");
    let steps: Vec<_> = withheld.iter().map(|record| record["step"].as_u64().expect("a step")).collect();
    assert_eq!(steps, [2, 3, 4]);

    for step in steps {
        let named = format!("step {step}: loss ");
        assert!(stderr(&output).contains(&named), "{named:?} is not in\n{}", stderr(&output));
    }

    assert_eq!(tiny.whole_checkpoints("run"), [4]);
    let bytes = fs::read(tiny.join("run/checkpoints/step-00000004/model.safetensors")).expect("reading");
    for (name, tensor) in SafeTensors::deserialize(&bytes).expect("tensors").tensors() {
        let mut numbers =
            tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        assert!(numbers.all(f32::is_finite), "{name} holds what is no number");
    }
}

#[test]
fn a_skipped_update_changes_no_weight() {
    let tiny = Tiny::new();
    let after_one = tiny.run("one", &[&ABSURD[..], &["train.steps=1"]].concat());
    let output = tiny.attempt("more", &ABSURD);
    assert_code(&output, 4);
    assert_eq!(json(&output)["weights_sha256"], after_one["weights_sha256"]);
}
