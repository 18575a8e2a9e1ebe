//! quick
use backend_offload::{Offload, OffloadConfig, stats, Offloadable, Oversized};
use burn::backend::{Autodiff, Wgpu, wgpu::WgpuDevice};
use burn::nn;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::prelude::*;
use burn::tensor::Distribution;
use burn::tensor::backend::AutodiffBackend;
use std::time::Instant;
#[derive(Module, Debug)]
struct Mlp<B: Backend> { ls: Vec<nn::Linear<B>> }
fn hash(bits: impl Iterator<Item = u32>) -> u64 { bits.fold(0xcbf29ce484222325, |h, b| (h ^ b as u64).wrapping_mul(0x100000001b3)) }
fn train<Bk: AutodiffBackend<Device = WgpuDevice>>(name: &str, d: usize, layers: usize, batch: usize, steps: usize) {
    let dev = Bk::Device::default();
    Bk::seed(&dev, 1);
    let mut m = Mlp::<Bk> { ls: (0..layers).map(|_| nn::LinearConfig::new(d, d).init(&dev)).collect() };
    let mut opt = AdamWConfig::new().init();
    let x = Tensor::<Bk, 2>::random([batch, d], Distribution::Normal(0., 1.), &dev);
    let mut first = 0.0;
    let t0 = Instant::now();
    for s in 0..steps {
        let t = Instant::now();
        let mut h = x.clone();
        for l in &m.ls { h = burn::tensor::activation::gelu(l.forward(h)); }
        let loss = (h - 1.0).powi_scalar(2).mean();
        let g = GradientsParams::from_grads(loss.backward(), &m);
        m = opt.step(1e-3, m, g);
        let last: f32 = loss.into_scalar().elem();
        if s == 0 { first = t.elapsed().as_secs_f64() * 1e3; }
        println!("step {s:3} loss {:08x} {last:.9}", last.to_bits());
    }
    let rest = t0.elapsed().as_secs_f64() * 1e3 - first;
    println!("# {name}: first step {first:.1} ms, then {:.2} ms/step", rest / (steps.max(2) - 1) as f64);
    let h = hash(m.ls.iter().flat_map(|l| l.weight.val().into_data().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()));
    println!("weights {h:016x}");
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n = |i: usize, d: usize| a.get(i).map(|s| s.parse().unwrap()).unwrap_or(d);
    let (d, layers, batch, steps) = (n(2, 512), n(3, 8), n(4, 64), n(5, 10));
    if a[1] == "plain" { train::<Autodiff<Wgpu>>("plain", d, layers, batch, steps); }
    else {
        let device = WgpuDevice::default();
        let mut c = OffloadConfig::new().device_budget(a[1].parse().unwrap());
        if a[1].len() < 3 { c = c.oversized(Oversized::RunAlone).smallest_block(1); }
        c.install::<Wgpu>(&device).unwrap();
        train::<Autodiff<Offload<Wgpu>>>("offload", d, layers, batch, steps);
        println!("{}", stats::<Wgpu>(&device));
        println!("{:?}", stats::<Wgpu>(&device));
    }
}
