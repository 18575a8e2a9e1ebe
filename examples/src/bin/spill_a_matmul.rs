//! Multiplies eight matrices of 16 MiB on a device with a budget of 64 MiB: the rest waits on the host.
//!
//! ```sh
//! cargo run -p examples --release --bin spill_a_matmul    # on a GPU add --features vulkan, wgpu or cuda
//! ```

use backend_offload::{Offload, OffloadConfig, stats};
use burn::prelude::*;
use burn::tensor::Distribution;
use examples::{Device, Inner};

fn main() -> anyhow::Result<()> {
    let device = Device::default();
    OffloadConfig::new().device_budget("64MiB".parse()?).install::<Inner>(&device)?;

    let random = || Tensor::<Offload<Inner>, 2>::random([2048, 2048], Distribution::Default, &device);
    let matrices: Vec<_> = (0..8).map(|_| random()).collect();
    let product = matrices.into_iter().reduce(|product, next| product.matmul(next) / 1024.0);

    println!("mean {}", product.expect("eight matrices").mean().into_scalar());
    println!("{}", stats::<Inner>(&device));
    Ok(())
}
