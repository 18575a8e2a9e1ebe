//! Requests to a running device, for both adapters.

use crate::child::Facts;
use backend_offload::{
    Budget, Offload, OffloadConfig, Offloadable, Preference, prefer, prefer_module, ready, reset_peaks,
    set_device_budget, stats, with_device_budget,
};
use burn::backend::Autodiff;
use burn::nn::LinearConfig;
use burn::prelude::*;
use burn::tensor::TensorData;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MIB: u64 = 1 << 20;

type Trained<B> = Autodiff<Offload<B>>;

fn mebibyte<B: Backend>(value: f32, device: &B::Device) -> Tensor<B, 2> {
    let tensor = Tensor::from_data(TensorData::new(vec![value; 512 * 512], [512, 512]), device) + 1.0;
    B::sync(device).expect("the operations run");
    tensor
}

pub fn budgets<B: Offloadable>(device: &B::Device) {
    ready::<B>(device).expect("nothing is missing");
    let held: Vec<_> = (0..4).map(|n| mebibyte::<Offload<B>>(n as f32, device)).collect();
    let before = stats::<B>(device);
    assert!(before.device.in_use >= 4 * MIB && before.evictions == 0, "{before}");
    assert_eq!(before, stats::<Trained<B>>(device), "one device, by whatever name");

    set_device_budget::<B>(device, Budget::Bytes(2 * MIB)).expect("a budget");
    let lowered = stats::<B>(device);
    assert!(lowered.device.reserved <= 2 * MIB, "blocks leave at once: {lowered}");
    let moved = lowered.since(&before);
    assert_eq!((moved.launches, moved.restores), (0, 0));
    assert!(moved.evictions >= 2 && moved.bytes_out == lowered.bytes_out - before.bytes_out, "{moved}");
    assert_eq!(lowered.device.peak, before.device.peak, "peaks stay");
    reset_peaks::<B>(device);
    let anew = stats::<B>(device);
    assert_eq!((anew.device.peak, anew.largest_launch), (anew.device.in_use, 0), "until they are reset");

    let budget = || stats::<B>(device).device.budget;
    let inside = with_device_budget::<B, _>(device, Budget::Unlimited, budget).expect("a budget");
    assert_eq!((inside, budget()), (None, Some(2 * MIB)));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        with_device_budget::<B, ()>(device, Budget::Bytes(3 * MIB), || panic!("on purpose"))
    }));
    assert!(panicked.is_err() && budget() == Some(2 * MIB), "a panic leaves the budget as it was");
    let refused = set_device_budget::<B>(device, Budget::Share(f64::NAN));
    assert!(refused.is_err() && budget() == Some(2 * MIB), "so does a budget that is none");

    for (n, tensor) in held.into_iter().enumerate() {
        let wanted = n as f32 + 1.0;
        assert!(tensor.into_data().iter::<f32>().all(|value| value.to_bits() == wanted.to_bits()));
    }
}

/// `first` is the least recently used of three, `last` the most.
pub fn hints<B: Offloadable>(facts: &Facts, device: &B::Device) -> Facts {
    OffloadConfig::new().device_budget(Budget::Bytes(4 * MIB)).install::<B>(device).expect("installs");
    let layer = LinearConfig::new(512, 512).with_bias(false).init::<Trained<B>>(device);
    let first = layer.weight.val().inner();
    Offload::<B>::sync(device).expect("the layer is there");
    let middle = mebibyte::<Offload<B>>(1.0, device);
    let last = mebibyte::<Offload<B>>(2.0, device);

    match facts.text("hint") {
        "none" => {}
        "keep the first" => prefer_module(&layer, Preference::Device),
        "spare the last" => prefer(&last, Preference::Host),
        "take it back" => {
            prefer(&first, Preference::Device);
            prefer(&first, Preference::Policy);
        }
        other => panic!("no hint {other:?}"),
    }

    let others = [mebibyte::<Offload<B>>(3.0, device), mebibyte::<Offload<B>>(4.0, device)];
    let asked = if facts.text("asked") == "first" { &first } else { &last };
    let before = stats::<B>(device);
    let _sum = asked.clone().sum().into_data();
    let restores = stats::<B>(device).since(&before).restores;
    drop((middle, others));
    Facts::default().with("restores", restores).with("failures", stats::<B>(device).failures)
}

pub fn hints_decide_which_tensor_is_evicted(run: impl Fn(&str, &str) -> u64) {
    assert_eq!(run("none", "first"), 1, "the least recently used leaves");
    assert_eq!(run("keep the first", "first"), 0);
    assert_eq!(run("take it back", "first"), 1);
    assert_eq!(run("none", "last"), 0);
    assert_eq!(run("spare the last", "last"), 1, "however lately it was used");
}

#[cfg(feature = "router")]
pub fn readiness<B: backend_offload::Managed>(device: &B::Device) -> Facts {
    Facts::default().with("error", ready::<B>(device).expect_err("its budget is unknown").to_string())
}
