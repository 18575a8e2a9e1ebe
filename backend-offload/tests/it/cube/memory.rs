//! Both tiers of memory, its release, and errors without enough.

use super::{Machine, Plain, Spilling, Target, children, counted, promises};
use crate::child::Facts;
use crate::folders;
use backend_offload::{
    Budget, OffloadConfig, OffloadRuntime, Stats, Tier, host_memory, largest_holders, stats, trim,
};
use burn::prelude::*;
use burn::tensor::TensorData;
use cubecl_common::device_handle::DeviceHandle;
use cubecl_core::Runtime;
use std::sync::mpsc;
use std::time::Duration;

children! {
    "cube/comes back" => comes_back,
    "cube/stays flat" => stays_flat,
    "cube/evicted io" => evicted_io,
    "cube/refusals" => refusals,
    "cube/devices" => devices,
    "cube/devices above a disk" => devices_above_a_disk,
    "cube/streams" => streams,
    "cube/usage" => usage,
    "cube/uploads" => uploads,
    "cube/pinned" => pinned,
    "cube/busy" => take_beside_a_busy_thread,
    "cube/empty" => empty,
    "cube/restores" => restores,
}

promises! {
    stand_in {
        dropping_tensors_frees_both_tiers: Every,
        training_run_after_run_leaves_usage_flat: Every,
        tensors_on_the_host_are_read_and_written_there: Every,
        an_operation_that_cannot_run_is_reported_and_disturbs_no_other: Every,
        tensors_move_between_devices_that_each_have_their_budget: Every,
        tensors_from_another_device_come_back_from_the_disk: One,
        tensors_used_by_several_streams_keep_their_values: Every,
        tensors_that_fit_take_the_allocations_of_the_plain_runtime: Every,
        bytes_uploaded_to_streams_that_never_launch_are_released: One,
        all_page_locked_memory_is_counted: One,
        idle_host_memory_is_taken_and_given_back_while_the_devices_thread_is_busy: One,
        tensors_without_elements_take_nothing_from_others: Every,
        tensors_that_return_in_line_do_not_count_as_written: One,
    }
    vulkan {
        dropping_tensors_frees_both_tiers,
        tensors_on_the_host_are_read_and_written_there,
        an_operation_that_cannot_run_is_reported_and_disturbs_no_other,
        tensors_move_between_devices_that_each_have_their_budget,
        tensors_that_fit_take_the_allocations_of_the_plain_runtime,
        tensors_without_elements_take_nothing_from_others,
        tensors_that_return_in_line_do_not_count_as_written,
    }
    full {
        training_run_after_run_leaves_usage_flat,
        tensors_from_another_device_come_back_from_the_disk,
        tensors_used_by_several_streams_keep_their_values,
        bytes_uploaded_to_streams_that_never_launch_are_released,
    }
}

const MIB: u64 = 1 << 20;

fn budget<T: Target>(device: &T::Device, bytes: u64) {
    OffloadConfig::new()
        .device_budget(Budget::Bytes(bytes))
        .max_bindings(3)
        .install::<Plain<T>>(device)
        .expect("installs");
}

fn mebibyte<T: Target>(value: f32, device: &T::Device) -> Tensor<Spilling<T>, 2> {
    Tensor::from_data(TensorData::new(vec![value; 512 * 512], [512, 512]), device)
}

/// Fusion queues drops too.
fn in_use<T: Target>(device: &T::Device) -> (u64, u64) {
    Spilling::<T>::sync(device).expect("the kernels run");
    let Stats { device, host, .. } = stats::<Plain<T>>(device);
    (device.in_use, host.in_use)
}

fn comes_back<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    budget::<T>(&device, 4 * MIB);
    let mut tensors: Vec<_> = (0..10).map(|n| mebibyte::<T>(n as f32, &device) + 1.0).collect();
    Spilling::<T>::sync(&device).expect("the kernels run");
    let (on_device, on_host) = in_use::<T>(&device);
    assert!(on_device <= 4 * MIB && on_device + on_host >= 10 * MIB, "{on_device} + {on_host}");
    let oldest_first = largest_holders::<Plain<T>>(&device, 100);
    assert_eq!(oldest_first.len(), 10);
    assert!(oldest_first.iter().any(|holder| holder.tier == Tier::Host));
    tensors.truncate(3);
    let (on_device, on_host) = in_use::<T>(&device);
    assert!(on_device + on_host <= 2 * 3 * MIB, "seven of ten are gone: {on_device} + {on_host}");
    drop(tensors);
    assert_eq!(in_use::<T>(&device), (0, 0), "nothing is held");
    trim::<Plain<T>>(&device);
    let Stats { device: tier, host, .. } = stats::<Plain<T>>(&device);
    assert_eq!((tier.reserved, host.reserved), (0, 0), "and nothing is kept");
    Facts::default()
}

fn dropping_tensors_frees_both_tiers(machine: &Machine) {
    machine.run(machine.child("cube/comes back"));
}

fn stays_flat<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    budget::<T>(&device, 6 * MIB);
    let train = crate::programs::program::<burn::backend::Autodiff<Spilling<T>>>("mlp").train;
    let mut held = Vec::new();
    for _ in 0..4 {
        train(&device, crate::programs::Size::Usual, parameters.value("steps"), 1);
        assert_eq!(in_use::<T>(&device), (0, 0), "a finished run leaves nothing");
        let Stats { device, host, .. } = stats::<Plain<T>>(&device);
        held.push((device.reserved, host.reserved, host.peak));
    }
    assert!(held.iter().all(|(device, ..)| *device <= 6 * MIB), "{held:?}");
    // The number of concurrent copies varies.
    let (_, _, once_in_use) = held[1];
    assert!(held[3].1 <= once_in_use + MIB, "what is kept for reuse does not grow: {held:?}");
    assert!(held[3].2 <= once_in_use + MIB, "nor what is in use: {held:?}");
    Facts::default()
}

fn training_run_after_run_leaves_usage_flat(machine: &Machine) {
    let steps = if machine.follows_another() { 5 } else { suite::size().pick(6, 50, 50) };
    machine.run(machine.child("cube/stays flat").with("steps", steps));
}

fn evicted_io<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    budget::<T>(&device, 2 * MIB);
    let first = mebibyte::<T>(1.0, &device) * 2.0;
    let _others: Vec<_> = (0..6).map(|n| mebibyte::<T>(n as f32, &device) * 3.0).collect();
    Spilling::<T>::sync(&device).expect("the kernels run");
    let before = stats::<Plain<T>>(&device);
    let read = first.clone().into_data();
    assert!(read.iter::<f32>().all(|value| value.to_bits() == 2f32.to_bits()));
    let after = stats::<Plain<T>>(&device);
    assert_eq!(before.restores, after.restores, "a tensor on the host is read there");
    assert_eq!(before.evictions, after.evictions, "and evicts no tensor");

    let loaded = mebibyte::<T>(7.0, &device);
    let loading = stats::<Plain<T>>(&device);
    assert_eq!(after.evictions, loading.evictions);
    let sum = (loaded + first).mean().into_scalar().elem::<f32>();
    assert_eq!(sum.to_bits(), 9f32.to_bits());
    Facts::default()
}

fn tensors_on_the_host_are_read_and_written_there(machine: &Machine) {
    machine.run(machine.child("cube/evicted io"));
}

fn refusals<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    budget::<T>(&device, 4 * MIB);
    let small = mebibyte::<T>(1.0, &device);
    // The sum needs 3 x 4 MiB.
    let large = Tensor::<Spilling<T>, 2>::ones([1024, 1024], &device);
    let sum = large.clone() + large.slice([0..1024, 0..1024]).transpose() * 2.0;
    let error = sum.clone().mean().try_into_data().expect_err("an operation above the budget").to_string();
    for part in ["budget", "MiB", "operations ago", "largest holders"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let derived = (sum + 1.0).sum().try_into_data().expect_err("and all derived from it").to_string();
    assert!(derived.contains("budget"), "{derived}");
    let beyond = Tensor::<Spilling<T>, 2>::zeros([1 << 16, 1 << 12], &device);
    assert!(beyond.try_into_data().is_err());
    let mean = (small * 3.0).mean().try_into_data().expect("the next smaller operation works");
    assert!(mean.iter::<f32>().all(|value| value.to_bits() == 3f32.to_bits()));
    Spilling::<T>::sync(&device).ok();
    Facts::default()
}

fn an_operation_that_cannot_run_is_reported_and_disturbs_no_other(machine: &Machine) {
    machine.run(machine.child("cube/refusals"));
}

fn devices<T: Target>(_: &Facts) -> Facts {
    let [one, two] = T::devices();
    budget::<T>(&one, 4 * MIB);
    budget::<T>(&two, 3 * MIB);
    let here: Vec<_> = (0..6).map(|n| mebibyte::<T>(n as f32, &one) + 1.0).collect();
    let there: Vec<_> = here.into_iter().map(|tensor| tensor.to_device(&two) * 2.0).collect();
    for (n, tensor) in there.into_iter().enumerate() {
        let expected = (n as f32 + 1.0) * 2.0;
        assert!(tensor.into_data().iter::<f32>().all(|value| value.to_bits() == expected.to_bits()));
    }
    let (first, second) = (stats::<Plain<T>>(&one), stats::<Plain<T>>(&two));
    assert_eq!((first.device.budget, second.device.budget), (Some(4 * MIB), Some(3 * MIB)));
    assert!(first.device.peak_reserved <= 4 * MIB && second.device.peak_reserved <= 3 * MIB);
    assert!(second.evictions > 0);
    assert_eq!(first.host.budget, second.host.budget, "one host");
    Facts::default()
}

fn tensors_move_between_devices_that_each_have_their_budget(machine: &Machine) {
    machine.run(machine.child("cube/devices"));
}

/// A received tensor lacks the padding behind its last row.
fn devices_above_a_disk<T: Target>(_: &Facts) -> Facts {
    let [one, two] = T::devices();
    for device in [&one, &two] {
        let config =
            OffloadConfig::new().device_budget(Budget::Bytes(2 * MIB)).host_budget(Budget::Bytes(2 * MIB));
        let config = config.disk(folders::target(), Budget::Bytes(64 * MIB)).max_bindings(3);
        config.install::<Plain<T>>(device).expect("installs");
    }
    let made = |n: usize| Tensor::<Spilling<T>, 2>::full([100_000, 1], n as f32, &one) + 0.0;
    let there: Vec<_> = (0..16).map(|n| made(n).to_device(&two)).collect();
    for (n, tensor) in there.into_iter().enumerate() {
        let read = (tensor + 1.0).try_into_data().expect("it comes back");
        assert!(read.iter::<f32>().all(|value| value.to_bits() == (n as f32 + 1.0).to_bits()));
    }
    let second = stats::<Plain<T>>(&two);
    assert!(second.bytes_to_disk > 0 && second.bytes_from_disk > 0, "{second:?}");
    Facts::default()
}

fn tensors_from_another_device_come_back_from_the_disk(machine: &Machine) {
    machine.run(machine.child("cube/devices above a disk"));
}

fn streams<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    if parameters.text("backend") == "plain" {
        pass_around::<Plain<T>>(&device);
    } else {
        budget::<T>(&device, parameters.value("budget"));
        pass_around::<Spilling<T>>(&device);
    }
    Facts::default()
}

/// The plain backend needs these waits too.
fn pass_around<B: Backend>(device: &B::Device) {
    let mebibyte = |n: usize| {
        let data = TensorData::new(vec![n as f32; 512 * 512], [512, 512]);
        Tensor::<B, 2>::from_data(data, device)
    };
    let mut shared: Vec<_> = (0..6).map(mebibyte).collect();
    B::sync(device).expect("the kernels run");

    for round in 1..=4 {
        shared = std::thread::scope(|scope| {
            let add = |tensor: Tensor<B, 2>| {
                let sum = tensor + 1.0;
                B::sync(device).expect("the kernels run");
                sum
            };
            let work: Vec<_> = shared.drain(..).map(|tensor| scope.spawn(move || add(tensor))).collect();
            work.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for (n, tensor) in shared.iter().enumerate() {
            let expected = (n + round) as f32;
            let found = tensor.clone().into_data();
            let wrong = found.iter::<f32>().find(|value| value.to_bits() != expected.to_bits());
            assert_eq!(wrong, None, "tensor {n} after round {round}, which should be {expected}");
        }
    }
}

fn tensors_used_by_several_streams_keep_their_values(machine: &Machine) {
    machine.run(machine.child("cube/streams").with("backend", "plain"));
    machine.run(machine.child("cube/streams").with("backend", "spilling").with("budget", 1024 * MIB));
    machine.run(machine.child("cube/streams").with("backend", "spilling").with("budget", 4 * MIB));
}

fn usage<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    let held = if parameters.text("backend") == "plain" {
        hold::<Plain<T>, T::Runtime>(&device)
    } else {
        hold::<Spilling<T>, OffloadRuntime<T::Runtime>>(&device)
    };
    Facts::default().with("allocations", held.number_allocs).with("bytes", held.bytes_in_use)
}

fn hold<B, R>(device: &R::Device) -> cubecl_core::MemoryUsage
where
    B: Backend<Device = R::Device>,
    R: Runtime,
{
    let made: Vec<_> = (0..8).map(|n| Tensor::<B, 2>::ones([256, 256], device) * n as f32).collect();
    let updated: Vec<_> = made.into_iter().map(|tensor| (tensor + 1.0).exp().clamp(0.0, 9.0)).collect();
    let views: Vec<_> = updated.iter().map(|tensor| tensor.clone().transpose()).collect();
    let sums: Vec<_> = views.into_iter().map(|view| view.sum_dim(0)).collect();
    let product = updated[1].clone().matmul(updated[2].clone());
    B::sync(device).expect("the kernels run");
    let usage = R::client(device).memory_usage().expect("a runtime that tells");
    drop((updated, sums, product));
    usage
}

fn tensors_that_fit_take_the_allocations_of_the_plain_runtime(machine: &Machine) {
    let plain = machine.run(machine.child("cube/usage").with("backend", "plain"));
    let ours = machine.run(machine.child("cube/usage").with("backend", "spilling"));
    assert_eq!(
        (ours.number("allocations"), ours.number("bytes")),
        (plain.number("allocations"), plain.number("bytes"))
    );
}

fn uploads<T: Target>(_: &Facts) -> Facts {
    const TENSORS: u64 = 50;
    let device = T::device();
    budget::<T>(&device, 2 * MIB);
    let use_up = |made: Vec<Tensor<Spilling<T>, 2>>| {
        for (n, tensor) in made.into_iter().enumerate() {
            assert_eq!(tensor.mean().into_scalar().elem::<f32>().to_bits(), (n as f32).to_bits());
        }
    };

    for _ in 0..4 {
        let made = (0..TENSORS).map(|n| mebibyte::<T>(n as f32, &device)).collect();
        std::thread::scope(|scope| scope.spawn(|| use_up(made)).join().expect("no panic"));
    }

    let Stats { host, bytes_in, .. } = stats::<Plain<T>>(&device);
    assert!(bytes_in >= 4 * (TENSORS - 4) * MIB, "{bytes_in} bytes were uploaded");
    assert!(host.in_use <= 4 * MIB && host.reserved <= host.peak_reserved);
    let most = host.peak_reserved;
    assert!(
        most <= (TENSORS + 68) * MIB,
        "at most 64 MiB of uploads are held back besides the blocks: {most}"
    );
    Facts::default()
}

fn bytes_uploaded_to_streams_that_never_launch_are_released(machine: &Machine) {
    machine.run(machine.child("cube/uploads"));
}

fn pinned<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    if parameters.text("backend") == "plain" {
        compute_on_three_threads::<Plain<T>>(&device, false);
        return Facts::default();
    }
    budget::<T>(&device, 64 * MIB);
    compute_on_three_threads::<Spilling<T>>(&device, parameters.find("reads").is_some());
    counted::<T>(&device, Facts::default())
}

fn compute_on_three_threads<B: Backend>(device: &B::Device, reads: bool) {
    let compute = |n: usize| {
        // Larger than the runtime's page-locked pages.
        let made: Vec<_> =
            (0..2).map(|k| Tensor::<B, 2>::full([2048, 3072], (n * k) as f32, device) + 1.0).collect();
        B::sync(device).expect("the kernels run");
        let read = reads.then(|| made[1].clone().into_data());
        let expected = (n + 1) as f32;
        assert!(
            read.iter().all(|read| read.iter::<f32>().all(|value| value.to_bits() == expected.to_bits()))
        );
        (made, read)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|n| scope.spawn(move || compute(n))).collect();
        let _held: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    });
}

#[cfg(feature = "cuda")]
fn all_page_locked_memory_is_counted(machine: &Machine) {
    use crate::stand_in::run_and_report;
    let (_, plain) = run_and_report(machine.child("cube/pinned").with("backend", "plain"));
    let page_locked = |counters: &serde_json::Value| {
        ["peak_pinned_bytes", "pinned_allocations"].map(|name| counters[name].as_u64().expect(name))
    };
    let [plain_bytes, plain_locks] = page_locked(&plain);
    let spilling = || machine.child("cube/pinned").with("backend", "spilling");
    for child in [spilling(), spilling().with("reads", 1)] {
        let (report, ours) = run_and_report(child);
        let [bytes, locks] = page_locked(&ours);
        let counted = (report.number("host peak reserved"), report.number("page locks"));
        println!("plain {plain_bytes} in {plain_locks}, ours {bytes} in {locks}, counted {counted:?}");
        assert!(report.number("evictions") > 0 && bytes > plain_bytes);
        // The runtime's own pool locks as much with and without spilling.
        assert_eq!((bytes, locks), (counted.0 + plain_bytes, counted.1 + plain_locks));
    }
}

fn take_beside_a_busy_thread<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    budget::<T>(&device, 4 * MIB);
    let memory = host_memory::<Plain<T>>(&device);
    let take = || memory.take(MIB as usize, "a test").expect("there is memory");
    drop(take());

    let server = DeviceHandle::<<OffloadRuntime<T::Runtime> as Runtime>::Server>::new(device.to_id());
    let ((begins, begun), (ends, ended)) = (mpsc::channel(), mpsc::channel());
    server.submit(move |_| {
        begins.send(()).expect("the test waits");
        let _given_up = ended.recv_timeout(Duration::from_secs(20));
    });
    server.flush_queue();
    begun.recv().expect("the device's thread runs");
    drop(take());
    ends.send(()).expect("the device's thread was busy all the time");
    Facts::default()
}

#[cfg(feature = "cuda")]
fn idle_host_memory_is_taken_and_given_back_while_the_devices_thread_is_busy(machine: &Machine) {
    machine.run(machine.child("cube/busy"));
}

fn empty<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    OffloadConfig::new().install::<Plain<T>>(&device).expect("installs");
    let mut kept = mebibyte::<T>(1.0, &device);
    drop(mebibyte::<T>(2.0, &device) + 1.0);
    Spilling::<T>::sync(&device).expect("the kernels run");
    let spare = || stats::<Plain<T>>(&device).device.reserved - in_use::<T>(&device).0;
    let before = spare();
    assert!(before >= MIB, "freed memory is kept for what comes next");
    let nothing = Tensor::<Spilling<T>, 2>::empty([0, 3], &device);
    kept.inplace(Tensor::neg);
    Spilling::<T>::sync(&device).expect("the kernels run");
    assert_eq!(nothing.into_data().shape.as_slice(), [0, 3]);
    assert_eq!(spare(), before, "no operation needed it");
    Facts::default()
}

fn tensors_without_elements_take_nothing_from_others(machine: &Machine) {
    machine.run(machine.child("cube/empty"));
}

fn restores<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    let config = OffloadConfig::new().device_budget(Budget::Bytes(4 * MIB)).overlap(false);
    config.install::<Plain<T>>(&device).expect("installs");
    let tensors: Vec<_> = (0..8).map(|n| mebibyte::<T>(n as f32, &device)).collect();
    for tensor in tensors.iter().chain(&tensors) {
        (tensor.clone() + 1.0).into_data();
    }
    let Stats { restores, bytes_written, .. } = stats::<Plain<T>>(&device);
    assert!(restores > 4 && bytes_written < 5 * MIB, "{restores} restores, {bytes_written} bytes written");
    Facts::default()
}

fn tensors_that_return_in_line_do_not_count_as_written(machine: &Machine) {
    machine.run(machine.child("cube/restores"));
}
