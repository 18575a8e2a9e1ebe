//! Sorting and top-k. All values differ, for a unique order.

use super::{Operation, Results, Value};
use burn::prelude::*;
use burn::tensor::backend::AutodiffBackend;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![Operation { name: "sort", run: sort::<B> }, Operation { name: "topk", run: topk::<B> }]
}

fn distinct<B: AutodiffBackend>(device: &B::Device) -> Tensor<B, 2> {
    let steps = Tensor::<B, 1, Int>::arange(0..8 * 37, device).reshape([8, 37]);
    (steps * 101 % 331).float() / 7
}

fn sort<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = distinct::<B>(device);
    out.differentiate("ascending", x.clone(), |x| x.sort(1));
    out.add("descending", x.clone().sort_descending(0));
    out.add("argsort", x.clone().argsort(1));
    let (values, indices) = x.sort_with_indices(1);
    out.add("with indices, values", values);
    out.add("with indices, indices", indices);
    out.values
}

fn topk<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    // Autodiff does not implement it.
    let x = distinct::<B>(device).inner();
    out.add("topk", x.clone().topk(5, 1));
    let (values, indices) = x.topk_with_indices(3, 1);
    out.add("with indices, values", values);
    out.add("with indices, indices", indices);
    out.values
}
