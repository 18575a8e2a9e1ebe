//! Frozen groups of parameters.

use burn::optim::GradientsParams;
use burn::tensor::DType;
use models::weights::{self, Layout, Stored};
use models::{
    BaseForm, Batch, Chunks, Compute, Gpt, GptConfig, Lean, ParameterGroup, ParameterInfo, PassOptions,
    recompute,
};

use crate::alone::is_alone;
use crate::fixtures::{Cpu, Tape, batch, model, numbers, shrunk, unusual};

const KERNELS: Lean = Lean(Chunks::of(4, 5));

fn frozen(config: &GptConfig, groups: &[&str]) -> Gpt<Tape> {
    let groups: Vec<ParameterGroup> = groups.iter().map(|group| group.parse().expect("a group")).collect();
    model(config).with_frozen(&groups)
}

type Gradients = Vec<(String, Vec<f64>)>;

fn named(model: &Gpt<Tape>, gradients: &GradientsParams) -> Gradients {
    let learning = model.learning();
    assert_eq!(gradients.len(), learning.len(), "only what learns has a gradient");
    let of = |(id, ParameterInfo { name, shape, .. }): (_, ParameterInfo)| {
        let values = match shape.len() {
            1 => numbers::<Cpu, 1>(&gradients.get(id).expect("it learns")),
            _ => numbers::<Cpu, 2>(&gradients.get(id).expect("it learns")),
        };
        (name, values)
    };
    learning.into_iter().map(of).collect()
}

fn passes(model: &Gpt<Tape>, every: usize) -> [(Vec<f64>, Gradients); 2] {
    let (config, options) = (model.config(), PassOptions::default());
    let loss = model.loss(batch(config, 2, 11), &options, &KERNELS);
    let value = numbers(&loss);
    let kept = named(model, &GradientsParams::from_grads(loss.backward(), model));
    let (again, recomputed) =
        recompute::loss_and_gradients(model, batch(config, 2, 11), &options, KERNELS, every);
    [(value, kept), (numbers(&again), named(model, &recomputed))]
}

#[test]
fn frozen_groups_have_no_gradient_and_change_no_bit_of_others() {
    if !is_alone() {
        return;
    }
    let untied = shrunk("llama-3-8b");
    for config in [shrunk("gpt2"), unusual(), untied] {
        for every in [1, 2] {
            let whole = passes(&model(&config), every);
            for groups in [
                &["embedding"][..],
                &["blocks.0-1", "norms"],
                &["embedding", "followers", "norms", "blocks.0-1"],
                &["attention", "biases"],
                &["mlp", "embedding"],
                &["blocks"],
            ] {
                let model = frozen(&config, groups);
                let learning = model.learning().len();
                assert!(learning > 0 && learning < config.parameters().len());
                for ((loss, gradients), (expected, all)) in passes(&model, every).into_iter().zip(&whole) {
                    assert_eq!(loss, *expected);
                    let learns =
                        |(name, _): &&(String, Vec<f64>)| gradients.iter().any(|(own, _)| own == name);
                    let expected: Gradients = all.iter().filter(learns).cloned().collect();
                    assert!(gradients == expected, "{groups:?}, every {every}");
                }
            }
        }
    }
}

#[test]
fn below_the_lowest_block_that_learns_no_block_runs_again() {
    let config = shrunk("gpt2");
    for (groups, handed_out) in [
        (&[][..], 4),
        (&["blocks.0-1"], 4),
        (&["embedding"], 4),
        (&["embedding", "blocks.0"], 3),
        (&["embedding", "blocks.0-1"], 2),
        (&["embedding", "blocks"], 1),
    ] {
        let mut segments = 0;
        let batch: Batch<Cpu> = batch(&config, 1, 6);
        let model = frozen(&config, groups);
        recompute::sweep(model, batch, &PassOptions::default(), KERNELS, 1, |model, _| {
            segments += 1;
            model
        });
        assert_eq!(segments, handed_out, "{groups:?}: the head, then one of three blocks each");
    }
}

#[test]
fn frozen_factors_take_the_compute_type_where_that_loses_nothing() {
    if !is_alone() {
        return;
    }
    let config = GptConfig { compute: Compute::Bf16, ..shrunk("llama-3-8b") };
    let groups = ["blocks.0-1", "head"].map(|group| group.parse().expect("a group"));
    let published = || model(&config).rounded(BaseForm::Bf16);
    let [exact, rounded] = [model(&config), published()].map(|gpt| gpt.with_frozen(&groups));
    let kind = |gpt: &Gpt<Tape>, layer: usize| gpt.blocks[layer].mlp.up.weight.val().dtype();
    assert_eq!(
        [kind(&exact, 1), kind(&rounded, 1), kind(&rounded, 2)],
        [DType::F32, DType::BF16, DType::F32]
    );
    assert!(!rounded.blocks[0].mlp.up.weight.val().is_require_grad());

    for (frozen, whole) in passes(&rounded, 1).into_iter().zip(passes(&published(), 1)) {
        assert_eq!(frozen.0, whole.0);
        assert!(frozen.1.iter().all(|gradient| whole.1.contains(gradient)));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let saved = |gpt: &Gpt<Tape>, name: &str| {
        weights::save(gpt, &folder.path().join(name), Layout::Native, Stored::F32).expect("saved");
        std::fs::read(folder.path().join(name)).expect("it was saved")
    };
    assert!(saved(&rounded, "frozen") == saved(&published(), "whole"));
}
