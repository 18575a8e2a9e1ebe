//! Models start at the expected loss, memorize one batch, and have equal gradients in micro-batches.

use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, Optimizer};
use burn::tensor::{Int, Tensor};
use models::{Batch, Gpt, GptConfig, Lean, PassOptions, Plain, presets};

use crate::alone::is_alone;
use crate::fixtures::{
    Cpu, DEVICE, Tape, assert_gradients_agree, batch, distance, model, named_values, numbers, shrunk, unusual,
};

#[test]
fn an_untrained_model_is_as_uncertain_as_its_head_predicts() {
    for preset in presets::PRESETS {
        let config =
            GptConfig { n_embd: 128, n_inner: None, vocab_size: 997, n_positions: 128, ..shrunk(preset) };
        let model = Gpt::<Cpu>::new(&config, 3, &DEVICE).expect("a valid configuration");
        let loss = model.loss(batch(&config, 4, 128), &PassOptions::default(), &Plain::default());
        let deviation = config.head_deviation();
        let expected = 997_f64.ln() + deviation * deviation * 128.0 / 2.0;
        if config.logit_softcap.is_some() {
            assert!(deviation * 128_f64.sqrt() < 1.0, "the cap is far above the first logits");
        }
        let loss = numbers(&loss)[0];
        assert!((loss - expected).abs() < 0.05, "{preset}: {loss:.4}, expected {expected:.4}");
    }
}

#[test]
fn every_family_learns_one_batch_by_heart() {
    if !is_alone() {
        return;
    }
    for config in [shrunk("gpt2"), shrunk("llama-1.1b"), shrunk("nanochat"), unusual()] {
        let mut model = model(&config);
        let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).with_epsilon(1e-8).init();
        let mut reached = f64::INFINITY;
        let mut steps = 0;
        while reached >= 0.05 && steps < 200 {
            let loss = model.loss(batch(&config, 2, 12), &PassOptions::default(), &Lean::default());
            reached = numbers(&loss)[0];
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, grads);
            steps += 1;
        }
        assert!(reached < 0.05, "{:?} stands at {reached:.3} after {steps} steps", config.init);
    }
}

#[test]
fn micro_batches_add_up_to_one_batch() {
    if !is_alone() {
        return;
    }
    let config = shrunk("llama-1.1b");
    let model = model(&config);
    let mut whole = batch::<Tape>(&config, 4, 10);
    // Rows differ in their number of targets.
    let index = Tensor::<Tape, 1, Int>::arange(0..40, &DEVICE);
    let mask = (index.clone() * index).remainder_scalar(7).greater_elem(1).float().reshape([4, 10]);
    whole.mask = Some(mask.clone());
    let loss = model.loss(whole.clone(), &PassOptions::default(), &Lean::default());
    let expected_loss = numbers(&loss);
    let expected = GradientsParams::from_grads(loss.backward(), &model);

    let divisor = Some(numbers(&mask.clone().sum())[0]);
    let options = PassOptions { divisor, ..PassOptions::default() };
    let mut accumulated = GradientsAccumulator::new();
    let mut total = 0.0;
    for row in 0..4 {
        let rows = row..row + 1;
        let part = Batch {
            inputs: whole.inputs.tokens.clone().slice_dim(0, rows.clone()).into(),
            targets: whole.targets.clone().slice_dim(0, rows.clone()),
            mask: Some(mask.clone().slice_dim(0, rows)),
        };
        let loss = model.loss(part, &options, &Lean::default());
        total += numbers(&loss)[0];
        accumulated.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
    }
    assert!(distance(&[total], &expected_loss) <= 1e-5);
    assert_gradients_agree(&model, &accumulated.grads(), &expected, 1e-5);
}

#[test]
fn a_seed_fixes_every_number_and_another_seed_changes_them() {
    let values = |seed| named_values(&Gpt::<Tape>::new(&shrunk("gpt2"), seed, &DEVICE).expect("valid"), None);
    assert_eq!(values(1), values(1));
    assert_ne!(values(1), values(2));
    let small = named_values(&model(&shrunk("nanochat")), None);
    let zero =
        |name: &str| small.iter().find(|(n, _)| n == name).expect("a parameter").1.iter().all(|v| *v == 0.0);
    assert!(zero("blocks.0.attention.output.weight") && zero("blocks.2.mlp.down.weight"));
    assert!(!zero("blocks.0.mlp.up.weight"));
}
