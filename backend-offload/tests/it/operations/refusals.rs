//! Wrong programs: Burn or the backend refuses each with a panic.

use super::{Operation, Results, Value};
use burn::prelude::*;
use burn::tensor::TensorData;
use burn::tensor::backend::AutodiffBackend;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![Operation { name: "wrong programs", run: wrong_programs::<B> }]
}

pub fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

fn wrong_programs<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (a, b) = (out.floats("a", [4, 6]), out.floats("b", [5, 7]));
    let wrong: [(&str, &dyn Fn() -> Tensor<B, 2>); 6] = [
        ("sum of different shapes", &|| a.clone() + b.clone()),
        ("product of matrices that do not chain", &|| a.clone().matmul(b.clone())),
        ("reshape to another number of elements", &|| a.clone().reshape([5, 5])),
        ("cat of different widths", &|| Tensor::cat(vec![a.clone(), b.clone()], 0)),
        ("reduction over a dimension that is not there", &|| a.clone().sum_dim(2)),
        ("swap of dimensions that are not there", &|| a.clone().swap_dims(0, 5)),
    ];
    for (name, program) in wrong {
        let panic = catch_unwind(AssertUnwindSafe(program)).expect_err(name);
        let text = message(&*panic).into_bytes();
        let length = text.len();
        out.values.push(Value { name: name.to_owned(), data: TensorData::new(text, [length]) });
    }
    out.add("one operand, unharmed", a);
    out.add("the other, unharmed", b);
    out.values
}
