//! Matrix products of many shapes and layouts.

use super::{Operation, Results, Value};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::module::linear;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "matmul of two matrices", run: matrices::<B> },
        Operation { name: "matmul of transposes", run: transposes::<B> },
        Operation { name: "matmul in batches", run: batches::<B> },
        Operation { name: "linear", run: linear_layer::<B> },
    ]
}

fn matrices<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    for [m, k, n] in [[1, 1, 1], [1, 40, 1], [1, 64, 33], [33, 64, 1], [5, 7, 3], [64, 64, 64], [96, 130, 70]]
    {
        let (a, b) = (out.floats("a", [m, k]), out.floats("b", [k, n]));
        out.differentiate_all(&format!("{m}x{k} by {k}x{n}"), [a, b], |[a, b]| a.matmul(b));
    }
    out.values
}

fn transposes<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (a, b) = (out.floats("a", [40, 24]), out.floats("b", [56, 40]));
    out.differentiate_all("both", [a.clone(), b.clone()], |[a, b]| a.transpose().matmul(b.transpose()));
    let c = out.floats("c", [40, 56]);
    out.differentiate_all("left", [a.clone(), c.clone()], |[a, c]| a.transpose().matmul(c));
    out.differentiate_all("right", [c, b], |[c, b]| c.matmul(b));
    out.differentiate("with itself", a, |a| a.clone().matmul(a.transpose()));
    out.values
}

fn batches<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (a, b) = (out.floats("a", [3, 4, 16, 12]), out.floats("b", [3, 4, 12, 20]));
    out.differentiate_all("equal", [a.clone(), b], |[a, b]| a.matmul(b));
    let shared = out.floats("shared", [1, 1, 12, 20]);
    out.differentiate_all("broadcast", [a.clone(), shared], |[a, shared]| a.matmul(shared));
    let keys = out.floats("keys", [3, 16, 4, 12]);
    out.differentiate_all("heads swapped", [a, keys], |[a, keys]| a.matmul(keys.swap_dims(1, 2).transpose()));
    out.values
}

fn linear_layer<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (x, weight, bias) =
        (out.floats("x", [4, 9, 24]), out.floats("weight", [24, 16]), out.floats("bias", [16]));
    out.differentiate("input", x.clone(), |x| linear(x, weight.clone(), Some(bias.clone())));
    out.differentiate("weight", weight.clone(), |weight| linear(x.clone(), weight, None));
    out.differentiate("bias", bias, |bias| linear(x, weight, Some(bias)));
    out.values
}
