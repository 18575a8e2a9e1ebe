//! The batches of a step: accumulated, repeated and different.

use crate::program::assert_success;
use crate::tiny::Tiny;

#[test]
fn small_batches_add_up_to_the_gradients_of_a_large_one() {
    let tiny = Tiny::new();
    let settings = ["train.optimizer=sgd", "train.lr=0.1", "train.steps=8"];
    let run = |out: &str, micro_batch: &str, accumulate: &str| {
        tiny.run(out, &[&settings[..], &[micro_batch, accumulate]].concat());
        tiny.losses(out)
    };
    let large = run("large", "train.micro_batch=4", "train.accumulate=1");
    let small = run("small", "train.micro_batch=2", "train.accumulate=2");
    let single = run("single", "train.micro_batch=1", "train.accumulate=4");
    assert_eq!(large.len(), 8);
    for other in [small, single] {
        assert_eq!(other.len(), 8);
        for (step, (large, small)) in large.iter().zip(&other).enumerate() {
            let apart = ((large - small) / large).abs();
            assert!(apart < 1e-5, "step {}: {large} and {small} are {apart:e} apart", step + 1);
        }
    }
}

#[test]
fn one_batch_can_be_memorized() {
    let tiny = Tiny::new();
    let run = ["--config", "tiny.json", "--device", "cpu", "--out", "run", "--overfit-one-batch"];
    let settings = ["--set", "train.steps=50", "--set", "train.lr=0.01"];
    assert_success(&tiny.train(&[&run[..], &settings].concat()));
    let losses = tiny.losses("run");
    assert!(losses[0] > 5.0, "an untrained model knows nothing: {}", losses[0]);
    assert!(losses[49] < 0.2, "the batch is not known after 50 steps: {}", losses[49]);
}

#[test]
fn without_overfit_one_batch_each_step_has_other_sequences() {
    let tiny = Tiny::new();
    tiny.run("run", &["train.steps=3", "train.optimizer=sgd", "train.lr=1e-12", "train.weight_decay=0"]);
    let losses = tiny.losses("run");
    let apart = |a: usize, b: usize| (losses[a] - losses[b]).abs() > 1e-6;
    assert!(apart(0, 1) && apart(1, 2), "{losses:?}");
    tiny.run(
        "same",
        &[
            "train.steps=3",
            "train.optimizer=sgd",
            "train.lr=1e-12",
            "train.weight_decay=0",
            "train.overfit_one_batch=true",
        ],
    );
    let losses = tiny.losses("same");
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-6), "{losses:?}");
}
