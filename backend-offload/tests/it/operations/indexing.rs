//! Reads and writes by index, range and mask.

use super::{Operation, Results, Value};
use burn::prelude::*;
use burn::tensor::IndexingUpdateOp;
use burn::tensor::backend::AutodiffBackend;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "gather and scatter", run: gather::<B> },
        Operation { name: "select", run: select::<B> },
        Operation { name: "slices", run: slices::<B> },
        Operation { name: "masks", run: masks::<B> },
    ]
}

fn gather<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [12, 30]);
    let (columns, rows) = (out.ints("columns", [12, 7], 30), out.ints("rows", [5, 30], 12));
    out.differentiate("gather, last", x.clone(), |x| x.gather(1, columns.clone()));
    out.differentiate("gather, first", x.clone(), |x| x.gather(0, rows));
    let values = out.floats("values", [12, 7]);
    out.differentiate("scatter, target", x.clone(), |x| {
        x.scatter(1, columns.clone(), values.clone(), IndexingUpdateOp::Add)
    });
    out.differentiate("scatter, values", values, |values| {
        x.scatter(1, columns, values, IndexingUpdateOp::Add)
    });
    out.values
}

fn select<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [20, 6, 10]);
    // With repetitions, so that gradients add up.
    let indices = out.ints("indices", [33], 6);
    out.differentiate("select", x.clone(), |x| x.select(1, indices.clone()));
    let values = out.floats("values", [20, 33, 10]);
    out.differentiate("select_assign", x, |x| x.select_assign(1, indices, values, IndexingUpdateOp::Add));
    out.values
}

fn slices<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [10, 16, 12]);
    out.differentiate("slice", x.clone(), |x| x.slice([2..9, 0..16, 3..4]));
    out.differentiate("slice with steps", x.clone(), |x| x.slice(s![1..10;3, .., ..;2]));
    out.differentiate("narrow", x.clone(), |x| x.narrow(1, 5, 6));
    let patch = out.floats("patch", [3, 16, 2]);
    out.differentiate_all("slice_assign", [x.clone(), patch], |[x, patch]| {
        x.slice_assign([4..7, 0..16, 9..11], patch)
    });
    out.add("slice_fill", x.clone().slice_fill([0..2, 3..5, 0..12], 1.25));
    for (n, part) in x.clone().chunk(3, 0).into_iter().enumerate() {
        out.add(&format!("chunk {n}"), part);
    }
    for (n, part) in x.split(5, 1).into_iter().enumerate() {
        out.add(&format!("split {n}"), part);
    }
    out.values
}

fn masks<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (x, y) = (out.floats("x", [14, 22]), out.floats("y", [14, 22]));
    let mask = out.bools("mask", [14, 22]);
    out.differentiate("mask_fill", x.clone(), |x| x.mask_fill(mask.clone(), -1e9));
    out.differentiate_all("mask_where", [x.clone(), y], |[x, y]| x.mask_where(mask.clone(), y));
    out.differentiate("triu", x.clone(), |x| x.triu(1));
    out.differentiate("tril", x, |x| x.tril(-1));
    out.add("tril_mask", Tensor::<B, 2, Bool>::tril_mask([9, 9], 0, device));
    out.add("argwhere", mask.argwhere());
    out.values
}
