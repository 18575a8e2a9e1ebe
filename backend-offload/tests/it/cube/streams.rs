//! Threads with a stream each: work is ordered, and errors reach their threads.

use super::{Machine, Plain, Spilling, Target, Unfused, children, install, promises};
use crate::child::Facts;
use crate::folders;
use backend_offload::{Budget, OffloadConfig};
use burn::prelude::*;
use burn::tensor::TensorData;
use cubecl_common::stream_id::StreamId;

children! {
    "cube/hand over" => hand_over,
    "cube/hand around" => hand_around,
    "cube/guilty" => errors_by_thread,
}

promises! {
    stand_in {
        tensors_handed_over_without_waiting_keep_their_values: Every,
        tensors_handed_around_without_waiting_keep_their_values: Every,
        an_error_reaches_the_thread_that_caused_it_and_no_other: Every,
    }
    vulkan {}
    full {
        tensors_handed_over_without_waiting_keep_their_values,
        tensors_handed_around_without_waiting_keep_their_values,
        an_error_reaches_the_thread_that_caused_it_and_no_other,
    }
}

const MIB: u64 = 1 << 20;

fn hand_over<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    let config = OffloadConfig::new().max_bindings(3);
    let budget: Budget = parameters.text("budget").parse().expect("a budget");
    config.device_budget(budget).install::<Plain<T>>(&device).expect("installs");
    pass_on::<Spilling<T>>(&device, [512, 512]);
    pass_on::<Spilling<T>>(&device, [32, 32]);
    Facts::default()
}

/// No thread waits for a kernel.
fn pass_on<B: Backend>(device: &B::Device, shape: [usize; 2]) {
    let made = |n: usize| {
        let data = TensorData::new(vec![n as f32; shape[0] * shape[1]], shape);
        Tensor::<B, 2>::from_data(data, device)
    };
    let mut shared: Vec<_> = (0..6).map(made).collect();
    for _ in 1..=5 {
        shared = std::thread::scope(|scope| {
            let work: Vec<_> = shared.drain(..).map(|tensor| scope.spawn(move || tensor + 1.0)).collect();
            work.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        shared = shared.into_iter().map(|tensor| tensor * 2.0).collect();
    }
    for (n, tensor) in shared.into_iter().enumerate() {
        let expected = (1..=5).fold(n as f32, |value, _| (value + 1.0) * 2.0);
        let found = tensor.into_data();
        let wrong = found.iter::<f32>().find(|value| value.to_bits() != expected.to_bits());
        assert_eq!(wrong, None, "tensor {n} of {shape:?}, which should be {expected}");
    }
}

fn tensors_handed_over_without_waiting_keep_their_values(machine: &Machine) {
    machine.run(machine.child("cube/hand over").with("budget", "unlimited"));
    machine.run(machine.child("cube/hand over").with("budget", 4 * MIB));
}

fn hand_around<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    for shape in [[512, 512], [32, 32]] {
        alternate::<Spilling<T>>(&device, shape);
        free_early::<Unfused<T>>(&device, shape);
    }
    Facts::default()
}

fn on<R>(stream: u64, work: impl FnOnce() -> R) -> R {
    StreamId { value: 40 + stream }.executes(work)
}

fn alternate<B: Backend>(device: &B::Device, shape: [usize; 2]) {
    let mut tensor = on(0, || Tensor::<B, 2>::from_data(ones(shape), device));
    for stream in [1, 2, 1, 3, 2, 1, 0, 3, 1] {
        tensor = on(stream, || tensor * 2.0);
    }
    holds(&on(2, || tensor.into_data()), 512.0);
}

/// Another stream may still read the memory.
fn free_early<B: Backend>(device: &B::Device, shape: [usize; 2]) {
    for cleans_up in [true, false] {
        let tensor = on(0, || Tensor::<B, 2>::from_data(ones(shape), device));
        let sum = on(1, || tensor.clone() + 2.0);
        on(0, || drop(tensor));
        if cleans_up {
            on(0, || B::memory_cleanup(device));
        }
        let next = on(0, || Tensor::<B, 2>::from_data(ones(shape), device));
        let changed = on(2, || next * 7.0);
        holds(&on(1, || sum.into_data()), 3.0);
        holds(&on(2, || changed.into_data()), 7.0);
    }
}

fn ones(shape: [usize; 2]) -> TensorData {
    TensorData::new(vec![1f32; shape[0] * shape[1]], shape)
}

fn holds(data: &TensorData, expected: f32) {
    let wrong = data.iter::<f32>().find(|value| value.to_bits() != expected.to_bits());
    assert_eq!(wrong, None, "a value of {:?}, which should be {expected}", data.shape);
}

fn tensors_handed_around_without_waiting_keep_their_values(machine: &Machine) {
    machine.run(machine.child("cube/hand around"));
    machine.run(machine.child("cube/hand around").with("budget", "4MiB").with("bindings", 3));
}

fn errors_by_thread<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    let config = OffloadConfig::new().device_budget(Budget::Bytes(4 * MIB)).max_bindings(3);
    config.install::<Plain<T>>(&device).expect("installs");
    let errors: Vec<usize> = std::thread::scope(|scope| {
        let work: Vec<_> = (0..6)
            .map(|n| {
                let device = &device;
                scope.spawn(move || {
                    if n % 2 == 0 { exceed_budget::<T>(device) } else { stay_within_budget::<T>(device) }
                })
            })
            .collect();
        work.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    Facts::default().with("errors", format!("{errors:?}"))
}

const ROUNDS: usize = 8;

fn exceed_budget<T: Target>(device: &T::Device) -> usize {
    let fails = |_: &usize| {
        let large = Tensor::<Spilling<T>, 2>::ones([1024, 1024], device);
        let sum = large.clone() + large.transpose() * 2.0;
        let synced = Spilling::<T>::sync(device);
        let read = sum.mean().try_into_data();
        // Operations that the read drains may fail later.
        let settled = Spilling::<T>::sync(device);
        read.is_err() && (synced.is_err() || settled.is_err())
    };
    (0..ROUNDS).filter(fails).count()
}

fn stay_within_budget<T: Target>(device: &T::Device) -> usize {
    let disturbed = |n: &usize| {
        let data = TensorData::new(vec![*n as f32; 128 * 256], [128, 256]);
        let sum = Tensor::<Spilling<T>, 2>::from_data(data, device) + 1.0;
        let synced = Spilling::<T>::sync(device);
        let right = |value: f32| value.to_bits() == (*n as f32 + 1.0).to_bits();
        synced.is_err() || !sum.try_into_data().is_ok_and(|data| data.iter::<f32>().all(right))
    };
    (0..ROUNDS).filter(disturbed).count()
}

fn an_error_reaches_the_thread_that_caused_it_and_no_other(machine: &Machine) {
    let expected = format!("{:?}", [ROUNDS, 0, ROUNDS, 0, ROUNDS, 0]);
    let report = machine.run(machine.child("cube/guilty"));
    assert_eq!(report.text("errors"), expected, "a stream for each thread");
    let two_streams =
        machine.folder("two streams", &format!("[streaming]\nmax_streams = 2\n\n{}", folders::SETTINGS));
    let report = machine.run(machine.child("cube/guilty").directory(two_streams));
    assert_eq!(report.text("errors"), expected, "threads that share a stream of the runtime");
}
