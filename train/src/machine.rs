//! The machine as a run finds it: memory and disk, and the speeds of link, arithmetic and disk, which are measured once and kept.

mod kept;
mod key;

use std::{path::Path, time::Instant};

use anyhow::Context;
use backend_offload::{
    Bytes, Offload, Offloadable, available_host_memory, disk_speed, reset_peaks, stats, trim,
};
use burn::tensor::{FloatDType, Tensor, TensorData, backend::Backend};
use durable::free_bytes;
use models::Compute;
use runs::BadInput;
use runs::config::{Config, DiskPart};
use runs::device::Place;

use crate::plan::Machine;
use crate::training::computes_nothing;
use kept::Speeds;
use key::{Key, Work};

pub(crate) use kept::Measuring;

/// Long enough for one wait not to count, and for a clock to be exact.
const MEASURED: f64 = 0.05;
/// Products queued before the one wait, at most.
const QUEUED: f64 = 64.0;
/// Measurements of each side: other programs disturb some of them.
const ATTEMPTS: usize = 5;

/// Asks the operating system and the device. Speeds are measured by short products and copies, or known from an earlier start. The
/// run is shared by `ranks`, of whom `ranks_here` share this host.
pub(crate) fn survey<I: Offloadable>(
    device: &I::Device,
    place: &Place,
    config: &Config,
    run: &Path,
    [ranks, ranks_here]: [usize; 2],
    measuring: Measuring,
) -> anyhow::Result<Machine> {
    let budgets = budgets::<I>(device, place, ranks);
    let disk_budget = match budgets.disk_budget {
        0 => disk_to_take(config, ranks_here)?,
        taken => taken,
    };
    let work = Work::of(place, config);
    let measured = || measured::<I>(device, place, config, &work);
    let (speeds, measurement) = if computes_nothing() {
        // Products that compute nothing take no time.
        (Speeds::default(), None)
    } else {
        kept::speeds(kept::file().as_deref(), Key::of(place, work.clone()), measuring, measured)
    };
    Ok(Machine {
        device: place.name.clone(),
        device_total: place.memory.map(|memory| memory.total),
        device_free: place.memory.map(|memory| memory.free),
        link_bytes_per_second: speeds.link_bytes_per_second,
        flops_per_second: speeds.flops_per_second,
        host_free: available_host_memory().map(|free| free / ranks_here as u64),
        disk_budget,
        disk_bytes_per_second: speeds.disk_bytes_per_second,
        disk_free: free_disk(run),
        measurement,
        ..budgets
    })
}

/// Measures the device, the link to it and the disk.
fn measured<I: Offloadable>(device: &I::Device, place: &Place, config: &Config, work: &Work) -> Speeds {
    let link_bytes_per_second =
        if place.shares_host { Some(host_copy()) } else { link::<Offload<I>>(device, work.copied) };
    let flops_per_second = arithmetic::<Offload<I>>(device, &work.sides, work.compute);
    // A measurement that did not fit is no number, and no error for the run to trip over.
    let _told = Offload::<I>::sync(device);
    // The run's own peaks are what its plan is compared with, and what was taken here is nobody's any more.
    trim::<I>(device);
    reset_peaks::<I>(device);
    Speeds { flops_per_second, link_bytes_per_second, disk_bytes_per_second: disk_speeds(config) }
}

/// The machine as far as its budgets tell: what decides where a run's state is, and the same whenever it is asked.
pub(crate) fn budgets<I: Offloadable>(device: &I::Device, place: &Place, ranks: usize) -> Machine {
    let tiers = stats::<I>(device);
    Machine {
        device_budget: place.budget,
        shares_host: place.shares_host,
        host_budget: tiers.host.budget,
        disk_budget: tiers.disk.budget.unwrap_or_default(),
        other_ranks: ranks - 1,
        ..Machine::default()
    }
}

/// Too little to wear a drive out, and enough for the speed of large blocks.
const WRITTEN_ONCE: usize = 64 << 20;

/// Write and read speed of the disk below host memory; `None` without a disk, or without room for the measurement.
fn disk_speeds(config: &Config) -> Option<[f64; 2]> {
    let speed = disk_speed(config.memory.disk.as_deref()?, WRITTEN_ONCE).ok()?;
    Some([speed.write, speed.read])
}

/// Bytes that each of the ranks here takes of the disk below host memory, before any has.
fn disk_to_take(config: &Config, ranks_here: usize) -> anyhow::Result<u64> {
    let Some((folder, part)) = config.memory.disk_part() else { return Ok(0) };
    let free =
        free_bytes(folder).with_context(|| format!("asking for free space at {}", folder.display()))?;
    let all = match part {
        DiskPart::Bytes(bytes) => bytes,
        DiskPart::Share(share) => (free as f64 * share) as u64,
    };
    if all > free {
        return Err(BadInput(format!(
            "`memory.disk_budget` takes {} and {} are free at {}; lower it, or name another place by `memory.disk`",
            Bytes(all),
            Bytes(free),
            folder.display()
        ))
        .into());
    }
    Ok(all / ranks_here as u64)
}

/// Bytes that a program may still write where `path` is or will be.
fn free_disk(path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find(|folder| folder.exists()).and_then(|folder| free_bytes(folder).ok())
}

/// The most FLOP/s that products of any side reach. Many are queued together and waited for once, in the run's own type.
fn arithmetic<B: Backend>(device: &B::Device, sides: &[usize], compute: Compute) -> Option<f64> {
    let mut reached: Option<f64> = None;
    let mut smaller = None;
    for side in sides.iter().copied() {
        let foretold = smaller.map_or(0.0, |(smaller, seconds)| seconds * work(side) / work(smaller));
        if foretold > MEASURED {
            break;
        }
        // The first product of a shape waits for its kernel to be chosen and compiled.
        let once = || products::<B>(device, side, compute, 1);
        let Some(seconds) = once().and_then(|_| once()) else { break };
        let queued = (MEASURED / seconds.max(1e-9)).clamp(1.0, QUEUED) as usize;
        let attempts = (0..ATTEMPTS).map_while(|_| products::<B>(device, side, compute, queued));
        let best = attempts.fold(seconds * queued as f64, f64::min);
        let speed = work(side) * queued as f64 / best;
        reached = Some(reached.map_or(speed, |smaller| smaller.max(speed)));
        smaller = Some((side, seconds));
    }
    reached
}

/// Floating-point operations of a product of two square matrices.
fn work(side: usize) -> f64 {
    2.0 * (side as f64).powi(3)
}

/// Seconds of `count` products, each of which needs the one before.
fn products<B: Backend>(device: &B::Device, side: usize, compute: Compute, count: usize) -> Option<f64> {
    // A product of such matrices is the same matrix again, so no number grows out of its type.
    let matrix = Tensor::<B, 2>::full([side, side], 1.0 / side as f64, device);
    let matrix = match compute {
        Compute::F32 => matrix,
        Compute::Bf16 => matrix.cast(FloatDType::BF16),
        Compute::F16 => matrix.cast(FloatDType::F16),
    };
    B::sync(device).ok()?;
    let begun = Instant::now();
    let product = (0..count).fold(matrix.clone(), |product, _| product.matmul(matrix.clone()));
    product.slice([0..1, 0..1]).try_into_data().ok()?;
    Some(begun.elapsed().as_secs_f64())
}

/// Bytes per second of a copy within host memory, which is what a CPU's blocks move by. Larger than its caches.
fn host_copy() -> f64 {
    const BYTES: usize = 64 << 20;
    let from = vec![1_u8; BYTES];
    let mut to = vec![0_u8; BYTES];
    let mut best = f64::INFINITY;
    // The first copy waits for the system to find pages, which blocks that move over and over do not.
    for _ in 0..3 {
        let begun = Instant::now();
        to.copy_from_slice(&from);
        std::hint::black_box(&to);
        best = best.min(begun.elapsed().as_secs_f64());
    }
    BYTES as f64 / best
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
