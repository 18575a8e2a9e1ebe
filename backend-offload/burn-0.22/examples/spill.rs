//! Trains a stack of layers whose weights, gradients and moments exceed the device budget, on Burn 0.22.
//!
//! `cargo run --release --example spill` in this folder, after `cargo xtask burn-0.22 --facade backend-offload/burn-0.22/cubecl`.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor, activation};
use offload_burn_22::{OffloadConfig, WgpuDevice, install, mark_step, stats};

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

/// Trains three steps and prints what spilled.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = WgpuDevice::default();
    // Before the first tensor. Everything below is ordinary Burn.
    install(&gpu, OffloadConfig::new().device_budget("24MiB".parse()?))?;

    let device = Device::from(gpu.clone()).autodiff();
    let layers = (0..8).map(|_| LinearConfig::new(512, 512).init(&device)).collect();
    let (mut model, mut optimizer) = (Stack { layers }, AdamWConfig::new().init());
    let input = Tensor::<2>::random([64, 512], Distribution::Default, &device);

    for step in 1..=3 {
        let output = model.layers.iter().fold(input.clone(), |x, layer| activation::relu(layer.forward(x)));
        let loss = (output - 1.0).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
        mark_step(&gpu);
        println!("step {step}: loss {}", loss.into_scalar::<f32>());
    }

    let stats = stats(&gpu);
    println!(
        "at most {} KiB on the device; {} evictions, {} KiB out, {} KiB in",
        stats.device.peak >> 10,
        stats.evictions,
        stats.bytes_out >> 10,
        stats.bytes_in >> 10
    );
    Ok(())
}
