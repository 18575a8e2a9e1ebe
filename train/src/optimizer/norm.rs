//! The norm of all gradients, on the device.

use std::collections::HashMap;

use burn::module::{ParamId, list_param_ids};
use burn::tensor::{
    Tensor,
    backend::{AutodiffBackend, Backend},
};
use models::Gpt;

use super::Passes;

/// Sums of squares by parameter, taken before a gradient leaves the device.
#[derive(Debug)]
pub(crate) struct SquaredNorms<I: Backend> {
    squares: HashMap<ParamId, Tensor<I, 1>>,
    passes: Passes<I>,
}

impl<I: Backend> SquaredNorms<I> {
    pub(crate) fn new(passes: Passes<I>) -> Self {
        Self { squares: HashMap::new(), passes }
    }

    /// Adds a gradient and returns it. Sums rows first: the CPU backend sums a large tensor in no fixed order.
    pub(crate) fn add<const D: usize>(&mut self, parameter: ParamId, gradient: Tensor<I, D>) -> Tensor<I, D> {
        let (gradient, sum) = self.passes.squares(gradient).unwrap_or_else(|gradient| {
            let squares = gradient.clone().square();
            let sums = if D > 1 { squares.sum_dim(D - 1) } else { squares };
            (gradient, sums.sum())
        });
        self.squares.insert(parameter, sum);
        gradient
    }

    /// The norm, shape `[1]`, summed in the model's order; `None` without gradients.
    pub(crate) fn take_global<B: AutodiffBackend<InnerBackend = I>>(
        &mut self,
        model: &Gpt<B>,
    ) -> Option<Tensor<I, 1>> {
        let squares: Vec<_> = self.take_each(model).into_iter().map(|(_, squares)| squares).collect();
        (!squares.is_empty()).then(|| Tensor::cat(squares, 0).sum().sqrt())
    }

    /// Shape `[1]`, in the model's order.
    pub(crate) fn take_each<B: AutodiffBackend<InnerBackend = I>>(
        &mut self,
        model: &Gpt<B>,
    ) -> Vec<(ParamId, Tensor<I, 1>)> {
        let mut squares = std::mem::take(&mut self.squares);
        list_param_ids(model).iter().filter_map(|id| squares.remove_entry(id)).collect()
    }
}
