//! Every operation through the CPU adapter against the plain backend.

use super::{Child, OPERATE, Offloaded, Training, one_byte, outcomes};
use crate::numbers::Series;
use crate::operations::{Value, operations};
use burn::backend::Autodiff;
use burn::nn::LayerNormConfig;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, activation};
use burn_flex::{Flex, FlexDevice};
use std::collections::HashMap;

/// Shares of the largest value. One kernel of Flex arrives as several operations with rounding in between: Burn's
/// router forwards no default methods.
const TOLERANCES: &[(&str, f64)] = &[
    // Exact forward; backward is Burn's approximation.
    ("gelu", 1e-3),
    ("sigmoids", 2.4e-7),
    ("lstm", 2.4e-7),
    ("gru", 2.4e-7),
];

#[test]
fn operations_differ_from_plain_flex_only_where_the_router_splits_them() {
    let device = FlexDevice;
    let mut wrong = Vec::new();
    for (plain, ours) in operations::<Autodiff<Flex>>().iter().zip(operations::<Training>()) {
        let tolerance = TOLERANCES.iter().find(|(name, _)| *name == plain.name).map_or(0.0, |entry| entry.1);
        let (expected, found) = ((plain.run)(&device), (ours.run)(&device));
        assert_eq!(expected.len(), found.len(), "{}", plain.name);
        let apart = |(plain, ours): (&Value, &Value)| difference(plain, ours);
        let most = expected.iter().zip(&found).map(apart).fold(0.0, f64::max);
        if most > tolerance || (tolerance > 0.0 && most == 0.0) {
            wrong.push(format!("{}: {most:e}, stated {tolerance:e}", plain.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Without autodiff, Flex runs layers in one kernel.
const INFERENCE_TOLERANCES: &[(&str, f64)] =
    &[("softmax", 2.4e-7), ("layer norm", 2.4e-7), ("sigmoid", 1.2e-7), ("silu", 1.2e-7)];

type Layer<B> = (&'static str, fn(Tensor<B, 3>) -> Tensor<B, 3>);

fn layers<B: Backend<Device = FlexDevice>>() -> [Layer<B>; 7] {
    [
        ("softmax", |x| activation::softmax(x, 2)),
        ("log_softmax", |x| activation::log_softmax(x, 2)),
        ("layer norm", |x| LayerNormConfig::new(40).init(&FlexDevice).forward(x)),
        ("gelu", activation::gelu),
        ("sigmoid", activation::sigmoid),
        ("silu", activation::silu),
        ("tanh", activation::tanh),
    ]
}

#[test]
fn inference_differs_from_plain_flex_only_where_the_router_splits_layers() {
    let data = Series::new(9, "inference").floats(&[6, 12, 40], 3.0);
    let mut wrong = Vec::new();
    for ((name, plain), (_, ours)) in layers::<Flex>().into_iter().zip(layers::<Offloaded>()) {
        let value = |data| Value { name: name.to_owned(), data };
        let expected = value(plain(Tensor::from_data(data.clone(), &FlexDevice)).into_data());
        let found = value(ours(Tensor::from_data(data.clone(), &FlexDevice)).into_data());
        let tolerance =
            INFERENCE_TOLERANCES.iter().find(|entry| entry.0 == name).map_or(0.0, |entry| entry.1);
        let apart = difference(&expected, &found);
        if apart > tolerance || (tolerance > 0.0 && apart == 0.0) {
            wrong.push(format!("{name}: {apart:e}, stated {tolerance:e}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// As a share of the largest value; infinite if not comparable. The router converts integer types.
fn difference(plain: &Value, ours: &Value) -> f64 {
    let same_kind = plain.name == ours.name && plain.data.shape == ours.data.shape;
    let (plain, ours) = (&plain.data, &ours.data);
    let same_integers =
        || plain.dtype.is_int() && ours.dtype.is_int() && plain.iter::<i64>().eq(ours.iter::<i64>());
    if same_kind && ((plain.dtype == ours.dtype && plain.bytes[..] == ours.bytes[..]) || same_integers()) {
        return 0.0;
    }
    if !same_kind || (plain.dtype, ours.dtype) != (DType::F32, DType::F32) {
        return f64::INFINITY;
    }
    let pairs = || plain.iter::<f32>().zip(ours.iter::<f32>());
    let scale = pairs().fold(f32::MIN_POSITIVE, |most, (a, b)| most.max(a.abs()).max(b.abs()));
    pairs()
        .filter(|(a, b)| a.to_bits() != b.to_bits())
        .map(|(a, b)| f64::from((a - b).abs() / scale))
        .fold(0.0, |most, next| if next.is_nan() { f64::INFINITY } else { most.max(next) })
}

#[test]
fn one_byte_is_enough_for_every_operation_to_give_the_same_bits() {
    let free = Child::new(OPERATE).with("threads", 1).run();
    let expected: HashMap<&str, &str> = outcomes(&free).collect();
    assert!(expected.values().all(|outcome| !outcome.starts_with("panic")), "{expected:?}");
    for threads in [1, 8] {
        let tight = one_byte(threads).run();
        let found: Vec<_> = outcomes(&tight).collect();
        assert_eq!(found.len(), threads * expected.len());
        for (operation, outcome) in found {
            assert_eq!(outcome, expected[operation], "{operation} with {threads} threads");
        }
        assert!(tight.number("evictions") > 0);
        assert_eq!(tight.number("in use") + tight.number("host in use"), 0);
    }
}
