//! What the machine can do, found out once before a run: the link, the arithmetic, memory and disk.

use std::{path::Path, time::Instant};

use backend_offload::{Offload, Offloadable, available_host_memory, stats};
use burn::tensor::{FloatDType, Tensor, TensorData, backend::Backend};
use models::Compute;

use crate::device::Place;
use crate::durable::free_bytes;
use crate::plan::Machine;

/// Side of the square matrices that are multiplied and bytes copied there and back, where memory allows. The device's
/// counters see both, so they stay below what any model worth the name takes; a CPU needs less to show its speed.
const ON_A_GPU: (usize, usize) = (2048, 64 << 20);
const ON_THE_CPU: (usize, usize) = (384, 0);

/// Asks the operating system, and the device by a short product and a short copy.
pub(crate) fn survey<I: Offloadable>(
    device: &I::Device,
    place: &Place,
    compute: Compute,
    run: &Path,
) -> Machine {
    let room = place.budget.unwrap_or(u64::MAX);
    let (side, copied) = if place.shares_host { ON_THE_CPU } else { ON_A_GPU };
    let side = (side as u64).min(((room / 32) as f64).sqrt() as u64) as usize;
    let copied = (copied as u64).min(room / 4) as usize;
    let link_bytes_per_second =
        if place.shares_host { Some(host_copy()) } else { link::<Offload<I>>(device, copied) };
    let flops_per_second = arithmetic::<Offload<I>>(device, side, compute);
    // A measurement that did not fit is no number, and no error for the run to trip over.
    let _told = Offload::<I>::sync(device);
    Machine {
        device: place.name.clone(),
        device_total: place.memory.map(|memory| memory.total),
        device_free: place.memory.map(|memory| memory.free),
        device_budget: place.budget,
        shares_host: place.shares_host,
        link_bytes_per_second,
        flops_per_second,
        host_free: available_host_memory(),
        host_budget: stats::<I>(device).host.budget,
        disk_free: free_disk(run),
    }
}

/// Bytes that a program may still write where `path` is or will be.
fn free_disk(path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find(|folder| folder.exists()).and_then(|folder| free_bytes(folder).ok())
}

/// The best of three, since the first waits for the kernel to be chosen and compiled.
fn arithmetic<B: Backend>(device: &B::Device, side: usize, compute: Compute) -> Option<f64> {
    let side = side.max(16);
    let matrix = Tensor::<B, 2>::ones([side, side], device);
    let matrix = match compute {
        Compute::F32 => matrix,
        Compute::Bf16 => matrix.cast(FloatDType::BF16),
        Compute::F16 => matrix.cast(FloatDType::F16),
    };
    let seconds = (0..3).map(|_| {
        let begun = Instant::now();
        let product = matrix.clone().matmul(matrix.clone());
        product.slice([0..1, 0..1]).try_into_data().ok()?;
        Some(begun.elapsed().as_secs_f64())
    });
    let best = seconds.collect::<Option<Vec<_>>>()?.into_iter().fold(f64::INFINITY, f64::min);
    Some(2.0 * (side as f64).powi(3) / best)
}

/// Bytes per second of a copy within host memory, which is what a CPU's blocks move by. Larger than its caches.
fn host_copy() -> f64 {
    const BYTES: usize = 64 << 20;
    let from = vec![1_u8; BYTES];
    let mut to = vec![0_u8; BYTES];
    let begun = Instant::now();
    to.copy_from_slice(&from);
    let seconds = begun.elapsed().as_secs_f64();
    std::hint::black_box(&to);
    BYTES as f64 / seconds
}

/// Bytes per second and direction, of a copy there and back.
fn link<B: Backend>(device: &B::Device, bytes: usize) -> Option<f64> {
    let data = TensorData::new(vec![0_f32; (bytes / 4).max(1)], [(bytes / 4).max(1)]);
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let data = data.clone();
        let begun = Instant::now();
        Tensor::<B, 1>::from_data(data, device).try_into_data().ok()?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Some(2.0 * bytes as f64 / best)
}
