//! Projections with weights made for each use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{AutodiffModule, Module, ModuleMapper, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};
use models::{Chunks, Compute, Gpt, GptConfig, Lean, OnDemand, PassOptions, Plain, recompute};

use crate::alone::is_alone;
use crate::fixtures::{Cpu, Tape, batch, model, named_values, numbers, shrunk, tokens, unusual};

const KERNELS: Lean = Lean(Chunks::of(4, 5));

fn on_demand(model: Gpt<Tape>, compute: Compute) -> (Gpt<Tape>, Arc<AtomicUsize>) {
    let mut out = TakeOut { path: Vec::new(), taken: HashMap::new() };
    let model = model.map(&mut out);
    let made = Arc::new(AtomicUsize::new(0));
    let model = model.with_weights_on_demand(|id| {
        let (weights, made) = (out.taken.remove(&id)?, Arc::clone(&made));
        Some(OnDemand::new(move || {
            made.fetch_add(1, Ordering::Relaxed);
            match compute {
                Compute::Bf16 => weights.clone().cast(FloatDType::BF16),
                _ => weights.clone(),
            }
        }))
    });
    assert!(out.taken.is_empty(), "every matrix of a block is a projection's");
    (model, made)
}

struct TakeOut {
    path: Vec<String>,
    taken: HashMap<ParamId, Tensor<Cpu, 2>>,
}

impl ModuleMapper<Tape> for TakeOut {
    models::keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<Tape, D>>) -> Param<Tensor<Tape, D>> {
        let (id, weights, mapper) = param.consume();
        if D != 2 || self.path[0] != "blocks" {
            return Param::from_mapped_value(id, weights, mapper);
        }
        let weights = Tensor::<Cpu, D>::from_primitive(weights.inner().into_primitive());
        let nothing =
            Tensor::<Cpu, D>::full([1; D], f32::NAN, &weights.device()).expand::<D, _>(weights.shape());
        self.taken.insert(id, Tensor::from_primitive(weights.into_primitive()));
        Param::from_mapped_value(id, Tensor::from_inner(nothing).require_grad(), mapper)
    }
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn gradients(model: &Gpt<Tape>, grads: &GradientsParams) -> Vec<(String, Vec<u64>)> {
    named_values(model, Some(grads)).into_iter().map(|(name, values)| (name, bits(&values))).collect()
}

fn check(config: &GptConfig) {
    let options = PassOptions::default();
    let kept = model(config);
    let (made, count) = on_demand(kept.clone(), config.compute);
    let projections = made.on_demand().len();
    assert_eq!(projections, config.n_layer * if kept.blocks[0].mlp.gate.is_some() { 7 } else { 6 });
    let [(kept_loss, kept_grads), (made_loss, made_grads)] = [&kept, &made].map(|model| {
        let loss = model.loss(batch(config, 2, 11), &options, &KERNELS);
        let value = numbers(&loss);
        (bits(&value), GradientsParams::from_grads(loss.backward(), model))
    });
    assert_eq!(made_loss, kept_loss);
    assert_eq!(gradients(&kept, &made_grads), gradients(&kept, &kept_grads));
    let matrix = made.blocks[0].mlp.up.weight.id;
    let kind = made_grads.get::<Cpu, 2>(matrix).expect("it has one").dtype();
    assert_eq!(kind, made.blocks[0].mlp.up.weight.val().dtype(), "the gradient has its parameter's type");
    assert_eq!(count.swap(0, Ordering::Relaxed), 2 * projections, "once forward and once backward");

    let (loss, again) = recompute::loss_and_gradients(&made, batch(config, 2, 11), &options, KERNELS, 1);
    let (kept_loss, kept_again) =
        recompute::loss_and_gradients(&kept, batch(config, 2, 11), &options, KERNELS, 1);
    assert_eq!(bits(&numbers(&loss)), bits(&numbers(&kept_loss)));
    assert_eq!(gradients(&kept, &again), gradients(&kept, &kept_again));
    assert_eq!(count.load(Ordering::Relaxed), 3 * projections);

    let logits = |model: &Gpt<Tape>| {
        let inner = model.valid();
        bits(&numbers(
            &inner.narrowed().forward(tokens::<Cpu>(1, 9, config.vocab_size, 3), &Plain::default()),
        ))
    };
    assert_eq!(logits(&made), logits(&kept), "below the tape, and narrowed for inference");
}

#[test]
fn on_demand_weights_give_the_bits_of_stored_weights() {
    if !is_alone() {
        return;
    }
    check(&shrunk("gpt2"));
    check(&unusual());
    check(&shrunk("llama-1.1b"));
    check(&GptConfig { compute: Compute::Bf16, ..shrunk("llama-3-8b") });
}

#[test]
#[should_panic(expected = "train with `Lean` kernels")]
fn plain_kernels_refuse_on_demand_weights() {
    let config = shrunk("gpt2");
    let (model, _) = on_demand(model(&config), config.compute);
    model.loss(batch::<Tape>(&config, 1, 5), &PassOptions::default(), &Plain::default());
}
