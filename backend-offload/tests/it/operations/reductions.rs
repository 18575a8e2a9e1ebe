//! Reductions over all elements or one dimension, and cumulative ones.

use super::{Operation, Results, Value};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "sums and means", run: sums::<B> },
        Operation { name: "products", run: products::<B> },
        Operation { name: "extrema", run: extrema::<B> },
        Operation { name: "variance", run: variance::<B> },
        Operation { name: "running reductions", run: running::<B> },
        Operation { name: "any and all", run: any_and_all::<B> },
    ]
}

const SHAPE: [usize; 3] = [6, 18, 20];

fn sums<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", SHAPE);
    out.differentiate("sum", x.clone(), Tensor::sum);
    out.differentiate("mean", x.clone(), Tensor::mean);
    for dim in 0..3 {
        out.differentiate(&format!("sum_dim {dim}"), x.clone(), |x| x.sum_dim(dim));
        out.differentiate(&format!("mean_dim {dim}"), x.clone(), |x| x.mean_dim(dim));
    }
    out.differentiate("sum of a transpose", x, |x| x.swap_dims(0, 2).sum_dim(1));
    out.values
}

fn products<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.positive("x", [4, 5]);
    out.add("prod", x.clone().prod());
    out.add("prod_dim", x.prod_dim(1));
    out.values
}

fn extrema<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", SHAPE);
    out.add("max", x.clone().max());
    out.add("min", x.clone().min());
    for dim in 0..3 {
        out.differentiate(&format!("max_dim {dim}"), x.clone(), |x| x.max_dim(dim));
        out.differentiate(&format!("min_dim {dim}"), x.clone(), |x| x.min_dim(dim));
        out.add(&format!("argmax {dim}"), x.clone().argmax(dim));
        out.add(&format!("argmin {dim}"), x.clone().argmin(dim));
    }
    out.add("max_abs", x.clone().max_abs());
    let (values, indices) = x.max_dim_with_indices(2);
    out.add("max_dim_with_indices, values", values);
    out.add("max_dim_with_indices, indices", indices);
    out.values
}

fn variance<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", SHAPE);
    out.differentiate("var", x.clone(), |x| x.var(2));
    out.differentiate("var_bias", x.clone(), |x| x.var_bias(1));
    let (variance, mean) = x.var_mean(0);
    out.add("var_mean, variance", variance);
    out.add("var_mean, mean", mean);
    out.values
}

fn running<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [8, 24]);
    out.differentiate("cumsum", x.clone(), |x| x.cumsum(1));
    out.add("cumprod", x.clone().cumprod(0));
    out.add("cummax", x.clone().cummax(1));
    out.add("cummin", x.cummin(1));
    out.values
}

fn any_and_all<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let mask = out.bools("mask", [6, 9]);
    out.add("any", mask.clone().any());
    out.add("all", mask.clone().all());
    out.add("any_dim", mask.clone().any_dim(1));
    out.add("all_dim", mask.all_dim(0));
    out.values
}
