//! Tensors that share memory, and updates in place with live views.

use super::{Operation, Results, Value};
use burn::tensor::backend::AutodiffBackend;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "views beside their source", run: views::<B> },
        Operation { name: "updates in place", run: in_place::<B> },
        Operation { name: "updates of a source with live views", run: copy_on_write::<B> },
        Operation { name: "a long chain", run: chain::<B> },
    ]
}

fn views<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [24, 36]);
    let (turned, part, row) =
        (x.clone().transpose(), x.clone().slice([3..20, 5..30]), x.clone().slice([7..8, 0..36]));
    let wide = row.clone().expand([24, 36]);
    out.add("product of a source and its view", x.clone().matmul(turned.clone()));
    out.add("sum of a source and its expanded row", x.clone() + wide.clone());
    drop(x);
    out.add("a view outlives its source", turned.clone() * 2);
    out.add("a slice outlives its source", part.exp());
    out.add("a row outlives its source", row);
    out.add("an expanded row outlives its source", wide.matmul(turned));
    out.values
}

fn in_place<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let mut x = out.floats("x", [20, 30]);
    for step in 0..10 {
        x.inplace(|x| x * 0.9 + f64::from(step));
    }
    out.add("scalars", x.clone());
    let y = out.floats("y", [20, 30]);
    x.inplace(|x| x * y.clone() + y);
    out.add("tensors", x.clone());
    x.inplace(|x| x.slice_fill([0..4, 0..30], 0.0));
    let patch = out.floats("patch", [4, 10]);
    x.inplace(|x| x.slice_assign([8..12, 10..20], patch));
    out.add("slices", x);
    out.values
}

fn copy_on_write<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [20, 30]);
    let (copy, view) = (x.clone(), x.clone().slice([0..20, 0..15]));
    let x = x.slice_fill([0..20, 0..10], 7.0).add_scalar(1.0);
    let view = view * 2;
    out.add("the source, changed", x);
    out.add("the clone, as before", copy);
    out.add("the view, changed on its own", view);
    out.values
}

fn chain<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [16, 16]);
    out.differentiate("sixteen layers", x, |x| {
        (0..16).fold(x, |y, _| (y.clone().matmul(y.transpose()) / 16).tanh())
    });
    out.values
}
