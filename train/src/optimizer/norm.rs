//! The norm of all gradients together, as one number on the device.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{
    Tensor,
    backend::{AutodiffBackend, Backend},
};
use models::Gpt;

/// The root of the sum of all squares, shape `[1]`. Rows are summed before columns: a sum over a whole large tensor
/// has no fixed order on the CPU backend.
pub(crate) fn global_norm<B: AutodiffBackend>(
    model: &Gpt<B>,
    gradients: &GradientsParams,
) -> Tensor<B::InnerBackend, 1> {
    let mut squares = Squares::<B::InnerBackend> { gradients, of_each: Vec::new() };
    model.visit(&mut squares);
    Tensor::cat(squares.of_each, 0).sum().sqrt()
}

struct Squares<'g, I: Backend> {
    gradients: &'g GradientsParams,
    of_each: Vec<Tensor<I, 1>>,
}

impl<B: AutodiffBackend<InnerBackend = I>, I: Backend> ModuleVisitor<B> for Squares<'_, I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(gradient) = self.gradients.get::<I, D>(param.id) {
            let squares = gradient.square();
            let of_rows = if D > 1 { squares.sum_dim(D - 1) } else { squares };
            self.of_each.push(of_rows.sum());
        }
    }
}
