//! New weights from the host tier, whose memory goes along with them.

use super::{Machine, Plain, Spilling, Target, Unfused, children, counted, install_for_copies, promises};
use crate::child::Facts;
use backend_offload::{HostMemory, Managed, host_memory};
use burn::prelude::*;
use burn::tensor::{DType, TensorData, TensorPrimitive};

children! { "cube/new weights" => upload }

promises! {
    stand_in {
        new_weights_arrive_unchanged_on_device_and_host: Every,
        new_weights_in_line_leave_the_host_when_others_need_it: One,
    }
    vulkan {}
    full {
        new_weights_arrive_unchanged_on_device_and_host,
        new_weights_in_line_leave_the_host_when_others_need_it,
    }
}

const SIDE: usize = 512;
const ROUNDS: usize = 16;
/// Longer than an upload on a simulated clock.
const KERNELS: usize = 8;

fn upload<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    let out_of_order = install_for_copies::<T>(parameters, &device);
    let memory = host_memory::<Plain<T>>(&device);
    let keeps = parameters.find("keeps").is_some();
    let rounds =
        if parameters.find("fused").is_some() { rounds::<Spilling<T>> } else { rounds::<Unfused<T>> };
    let grew = rounds(&device, &memory, keeps, out_of_order);
    counted::<T>(&device, Facts::default().with("grew", grew))
}

/// Each round replaces a tensor by new weights, and uses them after kernels that do not. Returns by how much creations
/// exceeded the host tier's peak.
fn rounds<B: Managed>(device: &B::Device, memory: &HostMemory, keeps: bool, out_of_order: bool) -> u64 {
    let mut kept = Vec::new();
    let mut work = Tensor::<B, 2>::ones([SIDE, SIDE], device);
    let mut grew = 0;

    for round in 0..ROUNDS {
        for n in 0..KERNELS {
            work = work * if n % 2 == 0 { 2.0 } else { 0.5 };
        }
        let data = weights(memory, round);
        let weights = if keeps {
            B::sync(device).expect("the kernels run");
            // What a creation takes from here on exceeds the peak.
            let usage = memory.usage();
            let rest =
                memory.take((usage.peak - usage.in_use) as usize, "the rest").expect("it was taken before");
            let weights = memory.first(|| made::<B>(data, device));
            B::sync(device).expect("the tensor is made");
            grew += memory.usage().peak - usage.peak;
            drop(rest);
            weights
        } else {
            made::<B>(data, device)
        };
        work = work.ones_like() + weights.clone();
        if keeps {
            kept.push(weights);
        }
        if round % 4 == 3 {
            arrived(work.clone(), round as f32 + 1.0, out_of_order);
        }
    }
    for (round, weights) in kept.into_iter().enumerate() {
        arrived(weights, round as f32, out_of_order);
    }
    grew
}

fn weights(memory: &HostMemory, round: usize) -> TensorData {
    let mut buffer = memory.take(SIDE * SIDE * size_of::<f32>(), "new weights").expect("there is memory");
    for number in buffer.chunks_exact_mut(size_of::<f32>()) {
        number.copy_from_slice(&(round as f32).to_ne_bytes());
    }
    match buffer.into_bytes() {
        Ok(bytes) => TensorData::from_bytes(bytes, [SIDE, SIDE], DType::F32),
        Err(buffer) => TensorData::from_bytes_vec(buffer.to_vec(), [SIDE, SIDE], DType::F32),
    }
}

fn made<B: Managed>(data: TensorData, device: &B::Device) -> Tensor<B, 2> {
    Tensor::from_primitive(TensorPrimitive::Float(B::float_without_copy(data, device)))
}

fn arrived<B: Backend>(tensor: Tensor<B, 2>, expected: f32, out_of_order: bool) {
    let read = tensor.into_data();
    let wrong = read.iter::<f32>().find(|value| value.to_bits() != expected.to_bits());
    assert!(wrong.is_none() || out_of_order, "{wrong:?} where {expected} was uploaded");
}

fn new_weights_in_line_leave_the_host_when_others_need_it(machine: &Machine) {
    let child = machine.child("cube/new weights").with("budget", "unlimited").with("host", "4MiB");
    machine.run(child.environment("OFFLOAD_OVERLAP", 0));
}

fn new_weights_arrive_unchanged_on_device_and_host(machine: &Machine) {
    let child = |budget: &str| machine.child("cube/new weights").with("budget", budget);
    assert_eq!(machine.run(child("unlimited")).number("evictions"), 0);
    assert_eq!(machine.run(child("unlimited").with("keeps", 1)).number("evictions"), 0);
    assert!(machine.run(child("5MiB").with("keeps", 1)).number("evictions") > 0);
    assert!(machine.run(child("5MiB").with("keeps", 1).with("fused", 1)).number("evictions") > 0);
}
