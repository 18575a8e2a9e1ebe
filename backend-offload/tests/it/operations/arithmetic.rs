//! Element-wise arithmetic and comparisons, with tensors, scalars and broadcasting.

use super::{Operation, Results, Value};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "arithmetic of two tensors", run: two_tensors::<B> },
        Operation { name: "broadcast arithmetic", run: broadcast::<B> },
        Operation { name: "arithmetic with a scalar", run: with_a_scalar::<B> },
        Operation { name: "functions of one element", run: one_element::<B> },
        Operation { name: "comparisons", run: comparisons::<B> },
    ]
}

const SHAPE: [usize; 2] = [24, 40];

fn two_tensors<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (a, b) = (out.floats("a", SHAPE), out.positive("b", SHAPE));
    out.differentiate_all("add", [a.clone(), b.clone()], |[a, b]| a + b);
    out.differentiate_all("sub", [a.clone(), b.clone()], |[a, b]| a - b);
    out.differentiate_all("mul", [a.clone(), b.clone()], |[a, b]| a * b);
    out.differentiate_all("div", [a.clone(), b.clone()], |[a, b]| a / b);
    out.differentiate_all("max_pair", [a.clone(), b.clone()], |[a, b]| a.max_pair(b));
    out.differentiate_all("min_pair", [a.clone(), b.clone()], |[a, b]| a.min_pair(b));
    out.differentiate_all("powf", [b.clone(), a.clone()], |[b, a]| b.powf(a));
    out.add("remainder", a.remainder(b));
    out.values
}

fn broadcast<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (row, column) = (out.floats("row", [1, 40]), out.floats("column", [24, 1]));
    out.differentiate_all("outer sum", [row.clone(), column.clone()], |[row, column]| row + column);
    let matrix = out.floats("matrix", SHAPE);
    out.differentiate_all("bias", [matrix.clone(), row], |[matrix, row]| matrix + row);
    out.differentiate_all("scale", [column, matrix], |[column, matrix]| matrix * column);
    out.values
}

fn with_a_scalar<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let a = out.positive("a", SHAPE);
    out.differentiate("add", a.clone(), |a| a + 0.3);
    out.differentiate("sub", a.clone(), |a| a - 0.3);
    out.differentiate("mul", a.clone(), |a| a * -1.7);
    out.differentiate("div", a.clone(), |a| a / 3.0);
    out.differentiate("power", a.clone(), |a| a.powf_scalar(1.5));
    out.differentiate("square", a.clone(), |a| a.powi_scalar(2));
    out.differentiate("clamp", a.clone(), |a| a.clamp(1.0, 3.0));
    out.differentiate("clamp_min", a.clone(), |a| a.clamp_min(2.0));
    out.differentiate("clamp_max", a.clone(), |a| a.clamp_max(2.0));
    out.add("remainder", a.remainder_scalar(0.7));
    out.values
}

fn one_element<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (a, p) = (out.floats("a", SHAPE), out.positive("p", SHAPE));
    out.differentiate("neg", a.clone(), |a| -a);
    out.differentiate("abs", a.clone(), Tensor::abs);
    out.differentiate("exp", a.clone(), Tensor::exp);
    out.differentiate("log", p.clone(), Tensor::log);
    out.differentiate("log1p", p.clone(), Tensor::log1p);
    out.differentiate("sqrt", p.clone(), Tensor::sqrt);
    out.differentiate("recip", p, Tensor::recip);
    out.differentiate("sin", a.clone(), Tensor::sin);
    out.differentiate("cos", a.clone(), Tensor::cos);
    out.differentiate("tanh", a.clone(), Tensor::tanh);
    out.differentiate("erf", a.clone(), Tensor::erf);
    out.add("floor", a.clone().floor());
    out.add("ceil", a.clone().ceil());
    out.add("round", a.clone().round());
    out.add("sign", a.sign());
    out.values
}

fn comparisons<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    // Halves: some are equal.
    let a = out.floats("a", SHAPE).mul_scalar(2).round() / 2;
    let b = out.floats("b", SHAPE).mul_scalar(2).round() / 2;
    out.add("equal", a.clone().equal(b.clone()));
    out.add("not_equal", a.clone().not_equal(b.clone()));
    out.add("greater", a.clone().greater(b.clone()));
    out.add("greater_equal", a.clone().greater_equal(b.clone()));
    out.add("lower", a.clone().lower(b.clone()));
    out.add("lower_equal", a.clone().lower_equal(b.clone()));
    out.add("equal_elem", a.clone().equal_elem(0.5));
    out.add("greater_elem", a.clone().greater_elem(0.5));
    out.add("greater_equal_elem", a.clone().greater_equal_elem(0.5));
    out.add("lower_elem", a.clone().lower_elem(0.5));
    out.add("lower_equal_elem", a.clone().lower_equal_elem(0.5));
    out.add("is_nan", (a / b).is_nan());
    out.values
}
