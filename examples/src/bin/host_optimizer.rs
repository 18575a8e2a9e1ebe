//! An optimizer whose state takes no device memory: `cargo run -p examples --release --bin host_optimizer`. On a GPU add
//! `--features vulkan`, `wgpu` or `cuda`.

use backend_offload::{Offload, OffloadConfig, host_memory, stats};
use burn::backend::Autodiff;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::{Distribution, Tensor};
use examples::{Device, Inner};
use host_optim::{Format, HostAdamWConfig};

type B = Autodiff<Offload<Inner>>;

fn main() -> anyhow::Result<()> {
    let device = Device::default();
    // Weight and gradient of one layer fit. AdamW on the device would hold ten such tensors.
    OffloadConfig::new().device_budget("16MiB".parse()?).install::<Inner>(&device)?;
    let mut optimizer =
        HostAdamWConfig::new().with_format(Format::Bf16Moments).init(host_memory::<Inner>(&device));
    let mut model: Linear<B> = LinearConfig::new(1024, 1024).init(&device);
    for step in 1..=3 {
        let input = Tensor::<B, 2>::random([16, 1024], Distribution::Default, &device);
        let loss = model.forward(input).powf_scalar(2.0).mean();
        println!("step {step}: loss {:.4}", loss.clone().into_scalar());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    println!("the optimizer holds {} bytes on the host\n{}", optimizer.host_bytes(), stats::<Inner>(&device));
    Ok(())
}
