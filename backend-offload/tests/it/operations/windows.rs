//! Convolutions and pooling.

use super::{Operation, Results, Value};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::module as f;
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions};

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "conv1d", run: conv1d::<B> },
        Operation { name: "conv2d", run: conv2d::<B> },
        Operation { name: "conv_transpose2d", run: conv_transpose2d::<B> },
        Operation { name: "max pooling", run: max_pooling::<B> },
        Operation { name: "average pooling", run: average_pooling::<B> },
    ]
}

fn conv1d<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (x, weight) = (out.floats("x", [2, 4, 25]), out.floats("weight", [6, 4, 3]));
    let bias = out.floats("bias", [6]);
    out.differentiate_all("conv1d", [x, weight], |[x, weight]| {
        f::conv1d(x, weight, Some(bias), ConvOptions::new([2], [1], [1], 1))
    });
    out.values
}

fn conv2d<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (x, weight) = (out.floats("x", [2, 4, 12, 10]), out.floats("weight", [6, 4, 3, 3]));
    let bias = out.floats("bias", [6]);
    for (name, options) in [
        ("plain", ConvOptions::new([1, 1], [0, 0], [1, 1], 1)),
        ("padded", ConvOptions::new([1, 1], [1, 1], [1, 1], 1)),
        ("strided", ConvOptions::new([2, 2], [1, 1], [1, 1], 1)),
        ("dilated", ConvOptions::new([1, 1], [2, 2], [2, 2], 1)),
    ] {
        out.differentiate_all(name, [x.clone(), weight.clone()], |[x, weight]| {
            f::conv2d(x, weight, Some(bias.clone()), options)
        });
    }
    out.differentiate("bias", bias, |bias| {
        f::conv2d(x, weight, Some(bias), ConvOptions::new([1, 1], [0, 0], [1, 1], 1))
    });
    let (x, weight) = (out.floats("x", [2, 4, 9, 9]), out.floats("weight", [8, 2, 3, 3]));
    out.differentiate_all("grouped", [x, weight], |[x, weight]| {
        f::conv2d(x, weight, None, ConvOptions::new([1, 1], [1, 1], [1, 1], 2))
    });
    out.values
}

fn conv_transpose2d<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let (x, weight) = (out.floats("x", [2, 4, 6, 5]), out.floats("weight", [4, 3, 3, 3]));
    out.differentiate_all("conv_transpose2d", [x, weight], |[x, weight]| {
        let options = ConvTransposeOptions::new([2, 2], [1, 1], [1, 1], [1, 1], 1);
        f::conv_transpose2d(x, weight, None, options)
    });
    out.values
}

fn max_pooling<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [2, 3, 12, 10]);
    out.differentiate("apart", x.clone(), |x| f::max_pool2d(x, [2, 2], [2, 2], [0, 0], [1, 1], false));
    out.differentiate("overlapping", x, |x| f::max_pool2d(x, [3, 3], [1, 1], [1, 1], [1, 1], false));
    let line = out.floats("line", [2, 3, 21]);
    out.differentiate("along a line", line, |x| f::max_pool1d(x, 3, 2, 1, 1, false));
    out.values
}

fn average_pooling<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", [2, 3, 12, 10]);
    out.differentiate("apart", x.clone(), |x| f::avg_pool2d(x, [2, 2], [2, 2], [0, 0], true, false));
    out.differentiate("overlapping", x.clone(), |x| f::avg_pool2d(x, [3, 3], [1, 1], [1, 1], false, false));
    out.differentiate("adaptive", x, |x| f::adaptive_avg_pool2d(x, [3, 2]));
    out.values
}
