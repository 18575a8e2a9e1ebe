//! Integers, booleans, and casts.

use super::{Operation, Results, Value};
use burn::prelude::*;
use burn::tensor::backend::AutodiffBackend;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "integer arithmetic", run: arithmetic::<B> },
        Operation { name: "integer indexing", run: indexing::<B> },
        Operation { name: "bits", run: bits::<B> },
        Operation { name: "booleans", run: booleans::<B> },
        Operation { name: "casts", run: casts::<B> },
    ]
}

fn arithmetic<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (a, b) = (out.ints("a", [9, 15], 100), out.ints("b", [9, 15], 100) + 1);
    out.add("add", a.clone() + b.clone());
    out.add("sub", a.clone() - b.clone());
    out.add("mul", a.clone() * b.clone());
    out.add("div", a.clone() / b.clone());
    out.add("remainder", a.clone() % b.clone());
    out.add("scalars", (a.clone() * 3 + 7) / 2 - 5);
    out.add("sum", a.clone().sum());
    out.add("sum_dim", a.clone().sum_dim(1));
    out.add("mean_dim", a.clone().mean_dim(0));
    out.add("max", a.clone().max());
    out.add("min_dim", a.clone().min_dim(1));
    out.add("argmax", a.clone().argmax(1));
    out.add("abs and neg", a.clone().neg().abs());
    out.add("greater", a.clone().greater(b.clone()));
    out.add("equal_elem", a.clone().equal_elem(17));
    out.add("clamp", a.clamp(20, 60));
    out.add("cumsum", b.cumsum(1));
    out.values
}

fn indexing<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.ints("x", [8, 14], 1000);
    out.add("gather", x.clone().gather(1, out.ints("columns", [8, 4], 14)));
    out.add("select", x.clone().select(0, out.ints("rows", [11], 8)));
    out.add("slice", x.clone().slice([1..7, 2..9]));
    out.add("slice_assign", x.clone().slice_assign([0..2, 0..3], out.ints("patch", [2, 3], 9)));
    out.add("permute", x.clone().transpose() + 1);
    out.add("reshape", x.clone().reshape([4, 28]));
    out.add("cat", Tensor::cat(vec![x.clone(), x.clone()], 0));
    out.add("mask_fill", x.clone().mask_fill(out.bools("mask", [8, 14]), -1));
    out.add("one_hot", x.slice([0..1, 0..5]).flatten::<1>(0, 1).one_hot::<2>(1000).sum_dim(1));
    out.values
}

fn bits<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (a, b) = (out.ints("a", [6, 10], 1 << 20), out.ints("b", [6, 10], 8));
    out.add("and", a.clone().bitwise_and(b.clone()));
    out.add("or", a.clone().bitwise_or(b.clone()));
    out.add("xor", a.clone().bitwise_xor(b.clone()));
    out.add("not", a.clone().bitwise_not());
    out.add("left shift", a.clone().bitwise_left_shift(b.clone()));
    out.add("right shift", a.bitwise_right_shift(b));
    out.values
}

fn booleans<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (a, b) = (out.bools("a", [7, 11]), out.bools("b", [7, 11]));
    out.add("and", a.clone().bool_and(b.clone()));
    out.add("or", a.clone().bool_or(b.clone()));
    out.add("xor", a.clone().bool_xor(b.clone()));
    out.add("not", a.clone().bool_not());
    out.add("equal", a.clone().equal(b.clone()));
    out.add("cat", Tensor::cat(vec![a.clone(), b], 1));
    out.add("slice of a transpose", a.clone().transpose().slice([2..5, 0..7]));
    out.add("expand", a.reshape([7, 1, 11]).expand([7, 3, 11]));
    out.values
}

fn casts<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (x, n, b) = (out.floats("x", [6, 13]) * 30, out.ints("n", [6, 13], 3), out.bools("b", [6, 13]));
    out.add("float to int", x.clone().int());
    out.add("float to bool", (x.clone() / 40).round().bool());
    out.add("int to float", n.clone().float());
    out.add("int to bool", n.bool());
    out.add("bool to int", b.clone().int());
    out.add("bool to float", b.float());
    out.add("of a transpose", x.transpose().int());
    out.values
}
