//! Recomputation changes memory, not numbers.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use models::dropout::DropoutKey;
use models::tiles::TILE;
use models::{Batch, Chunks, Compute, Gpt, GptConfig, InputForm, Lean, PassOptions, recompute};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::alone::is_alone;
use crate::counting::live;
use crate::fixtures::{
    Cpu, Tape, assert_gradients_agree, batch, distance, model, named_values, numbers, shrunk, unusual,
};

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
    if !is_alone() {
        return;
    }
    for every in [1, 2, 3, 9] {
        check(&shrunk("gpt2"), every, PassOptions::default());
        check(&unusual(), every, PassOptions::default());
    }
    check(&GptConfig { compute: Compute::Bf16, ..shrunk("llama-3-8b") }, 2, PassOptions::default());
    check(&shrunk("llama-1.1b"), 2, PassOptions { z_loss: 1e-3, ..PassOptions::default() });
}

#[test]
fn narrow_kept_inputs_change_no_loss_and_gradients_a_little() {
    if !is_alone() {
        return;
    }
    for config in [shrunk("gpt2"), GptConfig { compute: Compute::Bf16, ..shrunk("llama-3-8b") }] {
        let model = model(&config);
        let swept = |kept_inputs| {
            let group = vec![(batch(&config, 2, 11), PassOptions { kept_inputs, ..PassOptions::default() })];
            let mut all = GradientsParams::new();
            let collect = |model: Gpt<Tape>, _: usize, mut ready: GradientsParams| {
                model.visit(&mut Collect { from: &mut ready, to: &mut all });
                model
            };
            let swept = recompute::sweep_together(model.clone(), group, KERNELS, 1, |_| {}, collect);
            (numbers(&swept.losses[0]), swept.kept_bytes, all)
        };

        // Inputs of all blocks but the first.
        let kept = (config.n_layer - 1) * 2 * 11 * config.n_embd;
        let tiles = (2 * 11 * config.n_embd).div_ceil(TILE) * (config.n_layer - 1);
        let exact = swept(InputForm::Computed);
        assert_eq!(exact.1, 4 * kept as u64);
        for (form, bytes) in [(InputForm::Bf16, 2 * kept), (InputForm::Int8, tiles * (TILE + 4))] {
            let (loss, kept, gradients) = swept(form);
            assert_eq!((loss, kept), (exact.0.clone(), bytes as u64), "{form:?}");
            assert_gradients_agree(&model, &gradients, &exact.2, 0.02);
            let first = model.blocks[0].mlp.up.weight.id;
            let of = |grads: &GradientsParams| numbers(&grads.get::<Cpu, 2>(first).expect("a gradient"));
            assert_ne!(of(&gradients), of(&exact.2), "{form:?}: nothing was rounded");
        }
    }
}

#[test]
fn recomputation_draws_the_same_dropout_bits() {
    if !is_alone() {
        return;
    }
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
fn batches_that_pass_segments_together_have_the_bits_they_have_alone() {
    if !is_alone() {
        return;
    }
    for (preset, every) in [("gpt2", 1), ("llama-1.1b", 2)] {
        let config = GptConfig { resid_pdrop: 0.2, ..shrunk(preset) };
        let model = model(&config);
        let options = |micro_batch| PassOptions {
            dropout: Some(DropoutKey { seed: 1, step: 1, micro_batch }),
            ..PassOptions::default()
        };
        let group: [(Batch<Cpu>, _); 3] =
            [9, 10, 11].map(|time| (batch(&config, 2, time), options(time as u64)));
        let alone = group.clone().map(|(batch, options)| {
            let (loss, gradients) = recompute::loss_and_gradients(&model, batch, &options, KERNELS, every);
            (loss.into_data(), named_values(&model, Some(&gradients)))
        });

        let mut gradients = [(); 3].map(|()| GradientsParams::new());
        let (mut places, mut entered) = (Vec::new(), Vec::new());
        let collect = |model: Gpt<Tape>, place: usize, mut ready: GradientsParams| {
            places.push(place);
            model.visit(&mut Collect { from: &mut ready, to: &mut gradients[place] });
            model
        };
        let losses = recompute::sweep_together(
            model.clone(),
            group.into(),
            KERNELS,
            every,
            |blocks| entered.push(blocks.start / every),
            collect,
        )
        .losses;
        let segments = config.n_layer.div_ceil(every);
        assert_eq!(entered, (0..segments).chain((0..segments).rev()).collect::<Vec<_>>());
        assert_eq!(places, [0, 1, 2].repeat(1 + segments), "all batches pass a segment before the next one");
        for ((loss, alone), (again, together)) in alone.into_iter().zip(losses.into_iter().zip(&gradients)) {
            assert_eq!(loss, again.into_data(), "{preset}");
            assert!(alone == named_values(&model, Some(together)), "{preset}: the gradients differ");
        }
    }
}

#[test]
fn stepping_a_segment_early_changes_no_other_gradient() {
    use burn::optim::{AdamWConfig, Optimizer};

    if !is_alone() {
        return;
    }
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
    let values = |model| named_values(model, None);
    assert_eq!(values(&stepped), values(&expected));
}

struct Collect<'a> {
    from: &'a mut GradientsParams,
    to: &'a mut GradientsParams,
}

impl ModuleVisitor<Tape> for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Tape, D>>) {
        if let Some(gradient) = self.from.remove::<Cpu, D>(param.id) {
            self.to.register(param.id, gradient);
        }
    }
}

struct RecordUses {
    path: Vec<String>,
    uses: Arc<Mutex<Vec<(String, isize)>>>,
}

impl ModuleMapper<Tape> for RecordUses {
    models::keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<Tape, D>>) -> Param<Tensor<Tape, D>> {
        let (name, uses, value) = (self.path.join("."), Arc::clone(&self.uses), param.val());
        let (device, shape) = (value.device(), value.shape());
        let value = move |_device: &_, _requires: bool| {
            uses.lock().expect("no panic").push((name.clone(), live()));
            value.clone()
        };
        Param::uninitialized(param.id, value, device, true, shape)
    }
}

#[test]
fn a_blocks_weights_are_first_used_when_the_pass_reaches_it() {
    if !is_alone() {
        return;
    }

    let (config, rows, time) = (GptConfig { n_layer: 4, ..shrunk("gpt2") }, 4, 11);
    let uses = Arc::new(Mutex::new(Vec::new()));
    let model = model(&config).map(&mut RecordUses { path: Vec::new(), uses: Arc::clone(&uses) });
    let (loss, _) = recompute::loss_and_gradients(
        &model,
        batch(&config, rows, time),
        &PassOptions::default(),
        KERNELS,
        1,
    );

    assert!(numbers(&loss)[0].is_finite());
    let uses = uses.lock().expect("no panic");
    let first = |block: usize| {
        let prefix = format!("blocks.{block}.");
        uses.iter().find(|(name, _)| name.starts_with(&prefix)).expect("every block is used").1
    };
    // Earlier segments have left their inputs.
    let input = (rows * time * config.n_embd * size_of::<f32>()) as isize;
    for block in 1..config.n_layer {
        assert!(first(block) - first(0) >= block as isize * input, "block {block}: {uses:?}");
    }
}
