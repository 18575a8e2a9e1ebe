//! Peak live bytes of forward and backward pass, with each memory measure on and off: `cargo bench -p models --bench
//! peak_memory -- [T [BATCH]] [lean]`; `lean` skips the runs with a measure off.
//!
//! GPT-2 124M on one thread of the CPU backend. Bytes exclude the weights.

#[path = "../tests/it/counting.rs"]
mod counting;

use std::time::Instant;

use burn::backend::Autodiff;
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use burn_flex::{Flex, FlexDevice};
use models::NormKind;
use models::activation::Pointwise;
use models::attention::AttentionOptions;
use models::loss::{LossOptions, Targets};
use models::{
    Batch, Chunks, Compute, Footprint, Gpt, Kernels, Lean, OnDemand, Packed, PassOptions, Plain, presets,
    recompute,
};

type Tape = Autodiff<Flex>;

#[derive(Debug, Clone, Copy)]
struct Mixed {
    lean_attention: bool,
    lean_loss: bool,
    lean_rest: bool,
}

const PLAIN: Plain = Plain(Chunks::WHOLE);
const LEAN: Lean = Lean(Chunks::of(128, 128));

impl Kernels<Tape> for Mixed {
    fn attention(
        &self,
        q: Tensor<Tape, 4>,
        k: Tensor<Tape, 4>,
        v: Tensor<Tape, 4>,
        options: &AttentionOptions,
    ) -> Tensor<Tape, 4> {
        if self.lean_attention { LEAN.attention(q, k, v, options) } else { PLAIN.attention(q, k, v, options) }
    }

    fn loss(
        &self,
        hidden: Tensor<Tape, 2>,
        head: Tensor<Tape, 2>,
        targets: Targets<Tape>,
        options: &LossOptions,
    ) -> Tensor<Tape, 1> {
        if self.lean_loss {
            LEAN.loss(hidden, head, targets, options)
        } else {
            PLAIN.loss(hidden, head, targets, options)
        }
    }

    fn normalise<const D: usize>(&self, x: Tensor<Tape, D>, kind: NormKind, epsilon: f64) -> Tensor<Tape, D> {
        if self.lean_rest { LEAN.normalise(x, kind, epsilon) } else { PLAIN.normalise(x, kind, epsilon) }
    }

    fn pointwise(&self, x: Tensor<Tape, 3>, function: Pointwise) -> Tensor<Tape, 3> {
        if self.lean_rest { LEAN.pointwise(x, function) } else { PLAIN.pointwise(x, function) }
    }

    fn swiglu(&self, gate: Tensor<Tape, 3>, up: Tensor<Tape, 3>) -> Tensor<Tape, 3> {
        if self.lean_rest { LEAN.swiglu(gate, up) } else { PLAIN.swiglu(gate, up) }
    }

    fn product(
        &self,
        x: Tensor<Tape, 2>,
        leaf: Tensor<Tape, 2>,
        weights: &OnDemand,
        compute: Compute,
    ) -> Tensor<Tape, 2> {
        LEAN.product(x, leaf, weights, compute)
    }

    fn packed_product(&self, x: Tensor<Tape, 2>, weights: &Packed<Tape>) -> Tensor<Tape, 2> {
        LEAN.packed_product(x, weights)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("nothing measured: run it with `cargo bench`");
        return;
    }

    let only_lean = arguments.iter().any(|argument| argument == "lean");
    let mut sizes = arguments.iter().filter_map(|argument| argument.parse::<usize>().ok());
    let (time, rows) = (sizes.next().unwrap_or(512), sizes.next().unwrap_or(1));
    let config = presets::preset("gpt2").expect("a preset");
    let model = Gpt::<Tape>::new(&config, 1, &FlexDevice).expect("a valid configuration");
    let footprint = Footprint::of(&config).expect("a preset fits");

    println!(
        "gpt2, batch {rows}, T = {time}; gradients alone are {} MB",
        footprint.weight_bytes() / 1_000_000
    );
    println!("chunks: {:?}", LEAN.0);

    let first = model.loss(batch(rows, time), &PassOptions::default(), &LEAN).into_scalar();
    let expected =
        (config.vocab_size as f64).ln() + config.head_deviation().powi(2) * config.n_embd as f64 / 2.0;
    println!("loss of the untrained model: {first:.3}, expected {expected:.3}");
    println!("attention | loss  | rest  | recompute | peak MB | seconds");

    for (lean_attention, lean_loss, lean_rest) in [
        (false, false, false),
        (true, false, false),
        (false, true, false),
        (true, true, false),
        (true, true, true),
    ] {
        if only_lean && !lean_rest {
            continue;
        }
        let kernels = Mixed { lean_attention, lean_loss, lean_rest };
        let label = |lean| if lean { "lean" } else { "plain" };
        let [attention, loss, rest] = [lean_attention, lean_loss, lean_rest].map(label);
        report(&format!("{attention:9} | {loss:5} | {rest:5} | off      "), || {
            let loss = model.loss(batch(rows, time), &PassOptions::default(), &kernels);
            GradientsParams::from_grads(loss.backward(), &model)
        });
    }

    for every in [4, 1] {
        report(&format!("lean      | lean  | lean  | every {every}  "), || {
            recompute::loss_and_gradients(&model, batch(rows, time), &PassOptions::default(), LEAN, every).1
        });
    }
}

fn report(label: &str, work: impl Fn() -> GradientsParams + Send + Sync) {
    let start = Instant::now();
    let (peak, _) = counting::bytes(work);
    println!("{label} | {:7} | {:.1}", peak / 1_000_000, start.elapsed().as_secs_f64() / 2.0);
}

fn batch<B: Backend<Device = FlexDevice>>(rows: usize, time: usize) -> Batch<B> {
    let ids = |step: usize| -> Tensor<B, 2, Int> {
        let ids: Vec<i32> = (0..rows * time).map(|at| (at * step % 50_257) as i32).collect();
        Tensor::from_data(TensorData::new(ids, [rows, time]), &FlexDevice)
    };
    Batch { inputs: ids(7_919).into(), targets: ids(104_729), mask: None }
}
