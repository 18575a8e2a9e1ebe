//! Numbers for weights and data, equal on every backend, thread and run.
//!
//! Burn's seeds are global: concurrent tests would draw each other's numbers.

use burn::module::{Module, ModuleMapper, Param};
use burn::prelude::*;
use burn::tensor::TensorData;

/// Depends only on its seed and name.
#[derive(Debug, Clone, Copy)]
pub struct Series(u64);

impl Series {
    pub fn new(seed: u64, name: &str) -> Self {
        Self(name.bytes().fold(mix(seed), |state, byte| mix(state ^ u64::from(byte))))
    }

    fn bits(self, index: usize) -> u64 {
        mix(self.0.wrapping_add(index as u64))
    }

    /// Uniform in `[-1, 1)`, on a grid exact in `f32`.
    fn float(self, index: usize) -> f32 {
        (self.bits(index) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn floats(self, shape: &[usize], scale: f32) -> TensorData {
        let values: Vec<f32> = (0..shape.iter().product()).map(|n| self.float(n) * scale).collect();
        TensorData::new(values, shape.to_vec())
    }

    pub fn ints(self, shape: &[usize], below: u64) -> TensorData {
        let values: Vec<i32> = (0..shape.iter().product()).map(|n| (self.bits(n) % below) as i32).collect();
        TensorData::new(values, shape.to_vec())
    }

    pub fn bools(self, shape: &[usize]) -> TensorData {
        let values: Vec<bool> = (0..shape.iter().product()).map(|n| self.bits(n) & 1 == 1).collect();
        TensorData::new(values, shape.to_vec())
    }
}

/// The output function of `SplitMix64`.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub fn initialise<B: Backend, M: Module<B>>(module: M, device: &B::Device, seed: u64) -> M {
    module.map(&mut Initialise::<B> { seed, path: Vec::new(), device: device.clone() })
}

struct Initialise<B: Backend> {
    seed: u64,
    path: Vec<String>,
    device: B::Device,
}

impl<B: Backend> ModuleMapper<B> for Initialise<B> {
    fn enter_module(&mut self, name: &str, _kind: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _kind: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let shape = param.lazy_shape().to_vec();
        let fan_in = match D {
            1 => 64,
            2 => shape[0],
            _ => shape[1..].iter().product(),
        };
        let data =
            Series::new(self.seed, &self.path.join(".")).floats(&shape, (fan_in as f32).sqrt().recip());
        let value = Tensor::from_data(data, &self.device);
        // Smaller norm scales would suppress the signal.
        let value = if self.path.last().is_some_and(|name| name == "gamma") { value + 1.0 } else { value };
        Param::initialized(param.id, value.require_grad())
    }
}
