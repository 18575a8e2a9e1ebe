//! Lean operations compute the same as plain ones, at any chunk size.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor, backend::Backend};
use models::activation::Pointwise;
use models::attention::AttentionOptions;
use models::{Activation, NormKind};
use models::{Chunks, Compute, Gpt, GptConfig, Kernels, Lean, PassOptions, Plain};

use crate::alone::is_alone;
use crate::fixtures::{
    Cpu, DEVICE, Tape, assert_gradients_agree, batch, distance, model, normal, numbers, shrunk, tokens,
    unusual,
};

/// Parameter ids differ between models.
fn assert_same_training_signal<A: Kernels<Tape>, B: Kernels<Tape>>(
    config: &GptConfig,
    a: &A,
    b: &B,
    tolerance: f64,
) {
    let model = model(config);
    let options = PassOptions { z_loss: 1e-3, ..PassOptions::default() };
    let loss_a = model.loss(batch(config, 2, 13), &options, a);
    let loss_b = model.loss(batch(config, 2, 13), &options, b);
    let apart = distance(&numbers(&loss_a), &numbers(&loss_b));
    assert!(apart <= tolerance, "losses {apart:.2e} apart");
    let grads_a = GradientsParams::from_grads(loss_a.backward(), &model);
    let grads_b = GradientsParams::from_grads(loss_b.backward(), &model);
    assert_gradients_agree(&model, &grads_a, &grads_b, tolerance);
}

const SMALL: Chunks = Chunks::of(4, 5);

#[test]
fn lean_gradients_equal_plain_burn_for_every_family() {
    if !is_alone() {
        return;
    }
    for preset in ["gpt2", "llama-1.1b", "nanochat"] {
        assert_same_training_signal(&shrunk(preset), &Lean(SMALL), &Plain(Chunks::WHOLE), 1e-5);
    }
}

#[test]
fn lean_gradients_equal_plain_burn_with_soft_caps_grouped_heads_and_offsets() {
    if !is_alone() {
        return;
    }
    assert_same_training_signal(&unusual(), &Lean(SMALL), &Plain(Chunks::WHOLE), 1e-5);
}

#[test]
fn results_do_not_depend_on_chunk_sizes() {
    if !is_alone() {
        return;
    }
    let configs = [shrunk("gpt2"), shrunk("llama-1.1b"), GptConfig { initializer_range: 0.1, ..unusual() }];
    for config in configs {
        for (queries, tokens) in [(1, 1), (3, 7), (5, 26), (13, 11), (64, 64)] {
            let chunks = Lean(Chunks::of(queries, tokens));
            assert_same_training_signal(&config, &chunks, &Lean(Chunks::WHOLE), 1e-6);
        }
    }
}

#[test]
fn plain_kernels_agree_across_chunk_sizes() {
    if !is_alone() {
        return;
    }
    assert_same_training_signal(&shrunk("gpt2"), &Plain(SMALL), &Plain(Chunks::WHOLE), 1e-5);
}

#[test]
fn forward_passes_have_the_same_bits_with_a_tape_and_without() {
    fn results<B: Backend, K: Kernels<B>>(kernels: &K) -> Vec<Vec<f64>> {
        let [gate, up] =
            [1, 2].map(|seed| normal::<B, 3>([2, 9, 50], seed, DType::F32).mul_scalar(4.0).require_grad());
        let options =
            AttentionOptions { scale: 0.3, soft_cap: Some(3.0), window: None, compute: Compute::F32 };
        let q = up.clone().reshape([2, 9, 5, 10]).swap_dims(1, 2);
        let mut results = vec![kernels.swiglu(gate.clone(), up.clone())];
        for function in [Pointwise::GeluTanh, Pointwise::GeluErf, Pointwise::ReluSquared] {
            results.push(kernels.pointwise(up.clone(), function));
        }
        for kind in [NormKind::LayerNorm, NormKind::RmsNorm] {
            results.push(kernels.normalise(up.clone(), kind, 1e-5));
        }
        results.push(kernels.attention(q.clone(), q.clone(), q, &options).flatten(0, 1));
        results.iter().map(numbers).collect()
    }
    let chunks = Chunks::of(4, 5);
    let lean = results::<Tape, _>(&Lean(chunks));
    assert_eq!(lean, results::<Tape, _>(&Plain(chunks)));
    assert_eq!(lean, results::<Cpu, _>(&Plain(chunks)));
}

#[test]
fn grouped_heads_equal_repeated_keys_and_values() {
    let options = AttentionOptions { scale: 0.3, soft_cap: None, window: None, compute: Compute::F32 };
    let q = normal::<Tape, 4>([2, 6, 9, 8], 1, DType::F32);
    let k = normal::<Tape, 4>([2, 2, 9, 8], 2, DType::F32);
    let v = normal::<Tape, 4>([2, 2, 9, 8], 3, DType::F32);
    let repeated =
        |kv: &Tensor<Tape, 4>| kv.clone().reshape([2, 2, 1, 72]).repeat_dim(2, 3).reshape([2, 6, 9, 8]);
    let grouped = Lean(SMALL).attention(q.clone(), k.clone(), v.clone(), &options);
    let copied = Lean(SMALL).attention(q, repeated(&k), repeated(&v), &options);
    assert!(distance(&numbers(&grouped), &numbers(&copied)) < 1e-6);
}

#[test]
fn a_query_never_sees_a_later_key() {
    let options = AttentionOptions { scale: 0.3, soft_cap: Some(3.0), window: None, compute: Compute::F32 };
    let q = normal::<Tape, 4>([1, 2, 10, 4], 1, DType::F32);
    let k = normal::<Tape, 4>([1, 2, 10, 4], 2, DType::F32);
    let later = normal::<Tape, 4>([1, 2, 3, 4], 9, DType::F32);
    let changed = k.clone().slice_assign([0..1, 0..2, 7..10, 0..4], later);
    let with = |k: Tensor<Tape, 4>| Lean(SMALL).attention(q.clone(), k.clone(), k, &options);
    let (before, after) = (with(k), with(changed));
    let first_seven = |t: Tensor<Tape, 4>| numbers(&t.slice_dim(2, 0..7));
    assert_eq!(first_seven(before.clone()), first_seven(after.clone()));
    assert_ne!(numbers(&before), numbers(&after), "the last queries do see the changed keys");
}

#[test]
fn narrow_products_stay_close_to_wide_ones_and_gradients_stay_wide() {
    if !is_alone() {
        return;
    }
    let wide = shrunk("llama-1.1b");
    let exact = numbers(&model(&wide).loss(batch(&wide, 2, 13), &PassOptions::default(), &Lean(SMALL)))[0];
    for (compute, tolerance) in [(Compute::Bf16, 0.05), (Compute::F16, 0.01)] {
        let narrow = GptConfig { compute, ..wide.clone() };
        let model = model(&narrow);
        let loss = model.loss(batch(&narrow, 2, 13), &PassOptions::default(), &Lean(SMALL));
        let apart = (exact - numbers(&loss)[0]).abs();
        assert!(apart < tolerance, "{compute:?}: {apart} from the exact loss");
        assert!(apart > 0.0, "{compute:?} left no trace, so no product was computed in it");
        assert_eq!(loss.dtype(), DType::F32);
        let mut grads = loss.backward();
        let grad = model.blocks[0].mlp.up.weight.grad_remove(&mut grads).expect("a gradient");
        assert_eq!(grad.dtype(), DType::F32, "gradients follow the parameters");
        assert_same_training_signal(&narrow, &Lean(SMALL), &Plain(Chunks::WHOLE), 20.0 * tolerance);
    }
}

#[test]
fn a_narrowed_model_gives_the_same_bits() {
    for preset in ["gpt2", "llama-1.1b", "nanochat"] {
        for compute in [Compute::F32, Compute::Bf16, Compute::F16] {
            let config = GptConfig { compute, ..shrunk(preset) };
            let cast_at_use = Gpt::<Cpu>::new(&config, 7, &DEVICE).expect("valid");
            let narrowed = cast_at_use.clone().narrowed();
            let tokens = tokens::<Cpu>(2, 13, config.vocab_size, 1);
            let logits = |model: &Gpt<Cpu>| numbers(&model.forward(tokens.clone(), &Plain(SMALL)));
            assert_eq!(logits(&narrowed), logits(&cast_at_use), "{preset} in {compute:?}");
            let loss = |model: &Gpt<Cpu>| {
                numbers(&model.loss(batch(&config, 2, 13), &PassOptions::default(), &Plain(SMALL)))
            };
            assert_eq!(loss(&narrowed), loss(&cast_at_use), "{preset} in {compute:?}");
        }
    }
}

#[test]
fn chunks_follow_from_the_shape_alone() {
    let chunks = Chunks::default();
    let tokens = |rows: usize| chunks.tokens(rows * 1024, 768, 50_257);
    assert_eq!([1, 8, 16].map(tokens), [512, 512, 16 * 1024 * 4 * 768 / 50_257]);
    assert_eq!(chunks.tokens(1024, 128, 512), 1024, "a small vocabulary is taken in one step");
    assert_eq!(chunks.tokens(100, 768, 50_257), 100, "no more than there are");
    assert_eq!((chunks.queries(1024), chunks.queries(64)), (128, 64));
    assert_eq!(Chunks::of(7, 9).queries(64), 7);
    assert_eq!(Chunks::WHOLE.tokens(5000, 768, 50_257), 5000);
}

#[test]
fn lean_gradients_equal_plain_burn_with_layer_norm_and_exact_gelu() {
    if !is_alone() {
        return;
    }
    let config = GptConfig {
        norm: NormKind::LayerNorm,
        norm_bias: true,
        activation_function: Activation::GeluErf,
        ..shrunk("llama-1.1b")
    };
    assert_same_training_signal(&config, &Lean(SMALL), &Plain(Chunks::WHOLE), 1e-5);
}

#[test]
fn masked_targets_change_neither_loss_nor_gradients() {
    if !is_alone() {
        return;
    }
    let config = shrunk("gpt2");
    let model = model(&config);
    let mut first = batch::<Tape>(&config, 2, 8);
    let row = Tensor::<Tape, 2>::from_floats([[0., 0., 0., 1., 1., 1., 1., 1.]; 2], &DEVICE);
    first.mask = Some(row);
    let mut second = first.clone();
    let other = tokens::<Tape>(2, 3, config.vocab_size, 77);
    second.targets = second.targets.slice_assign([0..2, 0..3], other);
    let loss = |batch| model.loss(batch, &PassOptions::default(), &Lean(SMALL));
    let (first, second) = (loss(first), loss(second));
    assert_eq!(numbers(&first), numbers(&second));
    let a = GradientsParams::from_grads(first.backward(), &model);
    let b = GradientsParams::from_grads(second.backward(), &model);
    assert_gradients_agree(&model, &a, &b, 0.0);
}

#[test]
fn lean_operations_work_under_burns_own_checkpointing_too() {
    type Balanced = Autodiff<Cpu, BalancedCheckpointing>;

    if !is_alone() {
        return;
    }
    let config = unusual();
    let kept = model(&config);
    let balanced = Gpt::<Balanced>::new(&config, 7, &DEVICE).expect("valid");
    let options = PassOptions::default();
    let mut expected = kept.loss(batch(&config, 2, 13), &options, &Lean(SMALL)).backward();
    let mut found = balanced.loss(batch(&config, 2, 13), &options, &Lean(SMALL)).backward();
    for layer in 0..config.n_layer {
        let weight = &kept.blocks[layer].attention.key.weight;
        let expected = weight.grad_remove(&mut expected).expect("a gradient");
        let weight = &balanced.blocks[layer].attention.key.weight;
        let found = weight.grad_remove(&mut found).expect("a gradient");
        assert!(distance(&numbers(&found), &numbers(&expected)) < 1e-5);
    }
}
