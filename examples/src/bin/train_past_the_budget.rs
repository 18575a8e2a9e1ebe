//! Trains a small model three times: without a cap on device memory, with a cap but nowhere to spill, and spilling to
//! the host. The second run fails; the others give the same numbers.
//!
//! ```sh
//! cargo run -p examples --release --bin train_past_the_budget                      # the CPU plays the device
//! cargo run -p examples --release --features vulkan --bin train_past_the_budget    # or cuda
//! ```
//!
//! A host budget of 0 leaves no place to spill. Each run is a process of its own, since a device is configured once.

use anyhow::{Context, bail};
use backend_offload::{Offload, OffloadConfig, stats};
use burn::backend::Autodiff;
use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::prelude::*;
use examples::{Device, Inner};
use std::process::Command;

type B = Autodiff<Offload<Inner>>;

const CAP: &str = "16MiB";
const WIDTH: usize = 512;
const LAYERS: usize = 8;
const STEPS: usize = 10;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    layers: Vec<Linear<B>>,
}

impl<B: Backend> Net<B> {
    fn loss(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let y = self.layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
        (y - 0.5).square().mean()
    }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [device, host] = &arguments[..] {
        return train(device, host);
    }

    let runs = [
        ("no cap", "unlimited", "unlimited"),
        ("cap, nowhere to spill", CAP, "0"),
        ("cap, spilling to the host", CAP, "unlimited"),
    ];

    for (title, device, host) in runs {
        println!("== {title}: device {device}, host {host}");
        let child = Command::new(std::env::current_exe()?).args([device, host]).output()?;
        print!("{}", String::from_utf8_lossy(&child.stdout));
        if !child.status.success() {
            print!("{}", String::from_utf8_lossy(&child.stderr));
        }
        println!();
    }
    Ok(())
}

fn train(device_budget: &str, host_budget: &str) -> anyhow::Result<()> {
    let device = Device::default();
    OffloadConfig::new()
        .device_budget(device_budget.parse()?)
        .host_budget(host_budget.parse()?)
        .install::<Inner>(&device)?;

    let layer = |n: usize| {
        let mut layer: Linear<B> = LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(&device);
        layer.weight = Param::from_tensor(pattern([WIDTH, WIDTH], n, &device) * 0.1);
        layer
    };
    let mut net = Net { layers: (0..LAYERS).map(layer).collect() };
    let mut optimizer = AdamWConfig::new().init();
    let x = pattern([64, WIDTH], LAYERS, &device);

    for step in 0..STEPS {
        let loss = net.loss(x.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
        let loss = match loss.try_into_data() {
            Ok(loss) => loss.iter::<f32>().next().context("a loss")?,
            Err(error) => bail!("step {step}: {error:?}"),
        };
        if step % 3 == 0 {
            println!("step {step}: loss {loss:.6} ({:08x})", loss.to_bits());
        }
    }
    let weights = net.layers.last().context("a layer")?.weight.val().into_data();
    let hash = weights.bytes.iter().fold(0u64, |hash, byte| hash.rotate_left(5) ^ u64::from(*byte));
    println!("last weights {hash:016x}");
    println!("{}", stats::<Inner>(&device));
    Ok(())
}

/// The same numbers on every backend, unlike a random generator's.
fn pattern<B: Backend>(shape: [usize; 2], seed: usize, device: &B::Device) -> Tensor<B, 2> {
    let value = |n: usize| ((n * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}
