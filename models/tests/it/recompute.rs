//! Recomputation changes memory, not numbers.

use burn::optim::GradientsParams;
use models::{Batch, Chunks, Compute, DropoutKey, GptConfig, Lean, PassOptions, recompute};
use std::collections::HashSet;

use crate::fixtures::{Cpu, Tape, assert_gradients_agree, batch, distance, model, numbers, shrunk, unusual};

const KERNELS: Lean = Lean(Chunks::of(4, 5));

fn check(config: &GptConfig, every: usize, options: PassOptions) {
    let model = model(config);
    let loss = model.loss(batch(config, 2, 11), &options, &KERNELS);
    let value = numbers(&loss);
    let kept = GradientsParams::from_grads(loss.backward(), &model);
    let (loss, again) = recompute::loss_and_gradients(&model, batch(config, 2, 11), &options, KERNELS, every);
    assert!(distance(&numbers(&loss), &value) <= 1e-6);
    assert_gradients_agree(&model, &again, &kept, 1e-5);
}

#[test]
fn recomputed_gradients_equal_those_of_the_whole_tape() {
    for every in [1, 2, 3, 9] {
        check(&shrunk("gpt2"), every, PassOptions::default());
        check(&unusual(), every, PassOptions::default());
    }
    check(&GptConfig { compute: Compute::Bf16, ..shrunk("llama-3-8b") }, 2, PassOptions::default());
    check(&shrunk("llama-1.1b"), 2, PassOptions { z_loss: 1e-3, ..PassOptions::default() });
}

#[test]
fn recomputation_draws_the_same_dropout_bits() {
    let config = GptConfig { embd_pdrop: 0.2, resid_pdrop: 0.3, ..shrunk("gpt2") };
    let key = |step| PassOptions {
        dropout: Some(DropoutKey { seed: 1, step, micro_batch: 0 }),
        ..PassOptions::default()
    };
    check(&config, 1, key(5));
    let model = model(&config);
    let loss = |options| numbers(&model.loss(batch(&config, 2, 11), &options, &KERNELS));
    assert_eq!(loss(key(5)), loss(key(5)));
    assert_ne!(loss(key(5)), loss(key(6)), "another step drops other features");
    assert_ne!(loss(key(5)), loss(PassOptions::default()), "without a key nothing is dropped");
}

#[test]
fn each_parameter_is_handed_out_once_from_the_head_down() {
    let config = shrunk("gpt2");
    let model = model(&config);
    let (norm, first_block, embedding) = (
        model.final_norm.weight.as_ref().expect("a scale").id,
        model.blocks[0].mlp.up.weight.id,
        model.wte.id,
    );
    let mut order = Vec::new();
    let batch: Batch<Cpu> = batch(&config, 1, 6);
    recompute::sweep(model.clone(), batch, &PassOptions::default(), KERNELS, 2, |model, ready| {
        order.push(ready);
        model
    });
    assert_eq!(order.len(), 3, "the head, then two segments of three blocks");
    assert!(order[0].get::<Cpu, 1>(norm).is_some());
    assert!(order[2].get::<Cpu, 2>(first_block).is_some() && order[2].get::<Cpu, 2>(embedding).is_some());
    assert!(order[..2].iter().all(|segment| segment.get::<Cpu, 2>(embedding).is_none()));
    let ids = burn::module::list_param_ids(&model);
    let handed_out: usize = order.iter().map(GradientsParams::len).sum();
    assert_eq!(handed_out, ids.iter().collect::<HashSet<_>>().len());
}

#[test]
fn stepping_a_segment_at_once_leaves_the_others_gradients_alone() {
    use burn::optim::{AdamWConfig, Optimizer};
    let config = shrunk("llama-1.1b");
    let model = model(&config);
    let options = PassOptions::default();
    let (_, grads) = recompute::loss_and_gradients(&model, batch(&config, 2, 9), &options, KERNELS, 1);
    let mut whole = AdamWConfig::new().init::<Tape, _>();
    let expected = whole.step(1e-2, model.clone(), grads);
    let mut early = AdamWConfig::new().init::<Tape, _>();
    let (stepped, _) = recompute::sweep(model, batch(&config, 2, 9), &options, KERNELS, 1, |model, ready| {
        early.step(1e-2, model, ready)
    });
    let values = |model| crate::fixtures::named_values(model, None);
    assert_eq!(values(&stepped), values(&expected));
}
