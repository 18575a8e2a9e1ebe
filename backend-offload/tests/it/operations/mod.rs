//! Burn operations, forward and backward, to compare two backends.
//!
//! Operations share nothing and may run concurrently.

mod activations;
mod arithmetic;
mod indexing;
mod integers;
mod layers;
mod matmul;
mod recurrent;
mod reductions;
pub mod refusals;
mod shapes;
mod sharing;
mod sorting;
mod windows;

use crate::numbers::Series;
use burn::prelude::*;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{BasicOps, TensorData};

#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    pub name: String,
    pub data: TensorData,
}

#[derive(Debug)]
pub struct Operation<B: Backend> {
    pub name: &'static str,
    pub run: fn(&B::Device) -> Vec<Value>,
}

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    [
        activations::operations::<B>(),
        arithmetic::operations(),
        indexing::operations(),
        integers::operations(),
        layers::operations(),
        matmul::operations(),
        recurrent::operations(),
        reductions::operations(),
        refusals::operations(),
        shapes::operations(),
        sharing::operations(),
        sorting::operations(),
        windows::operations(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

struct Results<'d, B: Backend> {
    device: &'d B::Device,
    values: Vec<Value>,
}

impl<'d, B: AutodiffBackend> Results<'d, B> {
    fn new(device: &'d B::Device) -> Self {
        Self { device, values: Vec::new() }
    }

    fn floats<const D: usize>(&self, name: &str, shape: [usize; D]) -> Tensor<B, D> {
        Tensor::from_data(Series::new(1, name).floats(&shape, 2.0), self.device)
    }

    fn positive<const D: usize>(&self, name: &str, shape: [usize; D]) -> Tensor<B, D> {
        self.floats(name, shape) + 2.5
    }

    fn ints<const D: usize>(&self, name: &str, shape: [usize; D], below: u64) -> Tensor<B, D, Int> {
        Tensor::from_data(Series::new(2, name).ints(&shape, below), self.device)
    }

    fn bools<const D: usize>(&self, name: &str, shape: [usize; D]) -> Tensor<B, D, Bool> {
        Tensor::from_data(Series::new(3, name).bools(&shape), self.device)
    }

    fn add<T: Backend, const D: usize, K: BasicOps<T>>(&mut self, name: &str, tensor: Tensor<T, D, K>) {
        self.values.push(Value { name: name.to_owned(), data: tensor.into_data() });
    }

    fn differentiate<const D: usize, const E: usize>(
        &mut self,
        name: &str,
        x: Tensor<B, D>,
        f: impl FnOnce(Tensor<B, D>) -> Tensor<B, E>,
    ) {
        self.differentiate_all(name, [x], |[x]| f(x));
    }

    fn differentiate_all<const N: usize, const D: usize, const E: usize>(
        &mut self,
        name: &str,
        operands: [Tensor<B, D>; N],
        f: impl FnOnce([Tensor<B, D>; N]) -> Tensor<B, E>,
    ) {
        let operands = operands.map(|operand| operand.detach().require_grad());
        let y = f(operands.clone());
        self.add(name, y.clone());
        let gradients = self.backward(name, y);
        for (n, operand) in operands.iter().enumerate() {
            if let Some(gradient) = operand.grad(&gradients) {
                self.add(&format!("{name}, gradient {n}"), gradient);
            }
        }
    }

    fn backward<const E: usize>(&self, name: &str, y: Tensor<B, E>) -> B::Gradients {
        let upstream = self.floats(&format!("{name} upstream"), y.dims());
        (y * upstream).sum().backward()
    }
}
