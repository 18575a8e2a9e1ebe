//! Activation functions.

use super::{Operation, Results, Value};
use burn::tensor::activation;
use burn::tensor::backend::AutodiffBackend;

pub fn operations<B: AutodiffBackend>() -> Vec<Operation<B>> {
    vec![
        Operation { name: "rectifiers", run: rectifiers::<B> },
        Operation { name: "gelu", run: gelu::<B> },
        Operation { name: "sigmoids", run: sigmoids::<B> },
        Operation { name: "softmax", run: softmax::<B> },
    ]
}

const SHAPE: [usize; 2] = [20, 48];

fn rectifiers<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", SHAPE);
    out.differentiate("relu", x.clone(), activation::relu);
    out.differentiate("squared relu", x.clone(), |x| activation::relu(x).powi_scalar(2));
    out.differentiate("leaky_relu", x.clone(), |x| activation::leaky_relu(x, 0.1));
    out.differentiate("softplus", x.clone(), |x| activation::softplus(x, 1.0));
    let slopes = out.floats("slopes", [48]);
    out.differentiate("prelu", x, |x| activation::prelu(x, slopes));
    out.values
}

fn gelu<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", SHAPE);
    out.differentiate("gelu", x.clone(), activation::gelu);
    out.differentiate("gelu_approximate", x, activation::gelu_approximate);
    out.values
}

fn sigmoids<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", SHAPE);
    out.differentiate("sigmoid", x.clone(), activation::sigmoid);
    out.differentiate("log_sigmoid", x.clone(), activation::log_sigmoid);
    out.differentiate("silu", x.clone(), activation::silu);
    out.differentiate("hard_sigmoid", x.clone(), |x| activation::hard_sigmoid(x, 0.2, 0.5));
    out.differentiate("mish", x.clone(), activation::mish);
    out.differentiate("tanh", x.clone(), activation::tanh);
    out.differentiate("glu", x, |x| activation::glu(x, 1));
    out.values
}

fn softmax<B: AutodiffBackend>(device: &B::Device) -> Vec<Value> {
    let mut out = Results::<B>::new(device);
    let x = out.floats("x", SHAPE);
    out.differentiate("softmax, last", x.clone(), |x| activation::softmax(x, 1));
    out.differentiate("softmax, first", x.clone(), |x| activation::softmax(x, 0));
    out.differentiate("log_softmax", x.clone(), |x| activation::log_softmax(x, 1));
    out.differentiate("quiet_softmax", x, |x| activation::quiet_softmax(x, 1));
    out.values
}
