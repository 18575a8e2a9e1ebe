//! Changes of shape and order, joins and repeats.

use super::{Operation, Results, Value};
use burn::prelude::*;
use burn::tensor::backend::AutodiffBackend;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "no elements", run: no_elements::<B> },
        Operation { name: "reshape", run: reshape::<B> },
        Operation { name: "permute", run: permute::<B> },
        Operation { name: "expand and repeat", run: expand::<B> },
        Operation { name: "cat and stack", run: cat::<B> },
        Operation { name: "filled tensors", run: filled::<B> },
    ]
}

const SHAPE: [usize; 3] = [4, 10, 18];

fn reshape<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", SHAPE);
    out.differentiate("reshape", x.clone(), |x| x.reshape([8, 90]));
    out.differentiate("reshape of a transpose", x.clone(), |x| x.swap_dims(0, 2).reshape([36, 20]));
    out.differentiate("flatten", x.clone(), |x| x.flatten::<1>(0, 2));
    out.differentiate("unsqueeze and squeeze", x.clone(), |x| {
        x.unsqueeze_dim::<4>(1).exp().squeeze_dim::<3>(1)
    });
    out.differentiate("reshape of a slice", x, |x| x.slice([1..3, 2..8, 0..18]).reshape([12, 18]));
    out.values
}

fn permute<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", SHAPE);
    out.differentiate("permute", x.clone(), |x| x.permute([2, 0, 1]));
    out.differentiate("swap_dims", x.clone(), |x| x.swap_dims(1, 2).exp());
    out.differentiate("transpose twice", x.clone(), |x| x.transpose().transpose());
    out.differentiate("flip", x.clone(), |x| x.flip([0, 2]));
    out.differentiate("roll", x, |x| x.roll_dim(5, 1));
    out.values
}

fn expand<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [4, 1, 18]);
    out.differentiate("expand", x.clone(), |x| x.expand([4, 7, 18]));
    out.differentiate("expand, then multiply", x.clone(), |x| {
        let wide = x.expand([4, 7, 18]);
        wide.clone() * wide
    });
    out.differentiate("repeat_dim", x.clone(), |x| x.repeat_dim(1, 3));
    out.differentiate("repeat", x, |x| x.repeat(&[2, 3, 1]));
    out.values
}

fn cat<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (a, b) = (out.floats("a", [4, 3, 6]), out.floats("b", [4, 5, 6]));
    out.differentiate_all("cat", [a.clone(), b.clone()], |[a, b]| Tensor::cat(vec![a, b], 1));
    out.differentiate("cat with itself", a.clone(), |a| Tensor::cat(vec![a.clone(), a.clone(), a], 0));
    out.differentiate("cat of transposes", b, |b| Tensor::cat(vec![b.clone().transpose(), b.transpose()], 2));
    out.differentiate("stack", a, |a| Tensor::stack::<4>(vec![a.clone(), a], 1));
    out.values
}

fn filled<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    out.add("zeros", Tensor::<B, 2>::zeros([5, 7], device));
    out.add("ones", Tensor::<B, 2>::ones([5, 7], device));
    out.add("full", Tensor::<B, 2>::full([5, 7], 0.1, device));
    out.add("eye", Tensor::<B, 2>::eye(6, device));
    out.add("arange", Tensor::<B, 1, Int>::arange(3..40, device));
    out.add("int zeros", Tensor::<B, 2, Int>::zeros([3, 3], device));
    out.values
}

fn no_elements<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    out.add("zeros", Tensor::<B, 2>::zeros([0, 7], device));
    out.values
}
