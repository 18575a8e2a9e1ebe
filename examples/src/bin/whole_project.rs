//! Trains eight layers under a device budget of 16 MiB, less than half of their need.

use backend_offload::{Offload, OffloadConfig, stats};
use burn::backend::{Autodiff, Flex};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::prelude::*;
use burn::tensor::Distribution;

/// The CPU plays the device; on an NVIDIA card `burn::backend::Cuda`.
type Inner = Flex;
type B = Autodiff<Offload<Inner>>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::<Inner>::default();
    OffloadConfig::new().device_budget("16MiB".parse()?).install::<Inner>(&device)?;

    let mut net: Vec<Linear<B>> = (0..8).map(|_| LinearConfig::new(512, 512).init(&device)).collect();
    let mut optimizer = AdamWConfig::new().init();
    let x = Tensor::<B, 2>::random([64, 512], Distribution::Default, &device);

    for step in 0..10 {
        let y = net.iter().fold(x.clone(), |x, layer| layer.forward(x).tanh());
        let loss = (y - 0.5).square().mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
        println!("step {step}: loss {}", loss.into_scalar());
    }
    println!("{}", stats::<Inner>(&device));
    Ok(())
}
