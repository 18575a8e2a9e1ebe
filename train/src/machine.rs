//! The machine of a run: memory, disk, and measured speeds.
//!
//! Speeds change predicted times only; placements and refusals follow from bytes
//! (`measured_speeds_change_times_but_no_placement`).

mod key;
mod speed_cache;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Context;
use backend_offload::{
    Bytes, Offload, Offloadable, available_host_memory, disk_speed, dry_run_requested, reset_peaks, stats,
    trim,
};
use burn::tensor::{FloatDType, Tensor, TensorData, backend::Backend};
use durable::free_bytes;
use models::Compute;
use runs::BadInput;
use runs::config::{Config, DiskPart};
use runs::device::Place;

use crate::plan::Machine;
use key::{Key, Work};
use speed_cache::Speeds;

pub(crate) use speed_cache::{Measuring, cache_folder};

/// Seconds: one wait and the clock's resolution are negligible.
const MEASURED: f64 = 0.05;
const QUEUED: f64 = 64.0;
/// The best counts: other programs disturb some.
const ATTEMPTS: usize = 5;

/// Speeds are measured or cached. Of `ranks`, `ranks_here` are on this host.
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
        0 => disk_share(config, ranks_here)?,
        taken => taken,
    };

    let work = Work::new(place, config);
    let measure = || measured::<I>(device, place, config, &work);
    let (speeds, measurement) = if dry_run_requested() {
        (Speeds::default(), None)
    } else {
        speed_cache::speeds(speed_cache::file().as_deref(), Key::new(place, work.clone()), measuring, measure)
    };

    let speeds = speeds.of_one(ranks_here as f64, place.shares_host);
    Ok(Machine {
        device: place.name.clone(),
        device_total: place.memory.map(|memory| memory.total),
        device_free: place.memory.map(|memory| memory.free),
        link_bytes_per_second: speeds.link_bytes_per_second,
        flops_per_second: speeds.flops_per_second,
        host_free: available_host_memory().map(|free| free / ranks_here as u64),
        disk_budget,
        disk_bytes_per_second: speeds.disk_bytes_per_second,
        disk_free: free_disk(run, unreserved(config, &budgets, disk_budget * ranks_here as u64)),
        measurement,
        ..budgets
    })
}

fn measured<I: Offloadable>(device: &I::Device, place: &Place, config: &Config, work: &Work) -> Speeds {
    let link_bytes_per_second =
        if place.shares_host { Some(host_copy()) } else { link::<Offload<I>>(device, work.copied) };
    let flops_per_second = arithmetic::<Offload<I>>(device, &work.sides, work.compute);
    // Takes a failed measurement's error from the device.
    let _failed = Offload::<I>::sync(device);
    // The plan is compared with the run's own peaks.
    trim::<I>(device);
    reset_peaks::<I>(device);
    Speeds { flops_per_second, link_bytes_per_second, disk_bytes_per_second: disk_speeds(config) }
}

/// Decides a run's placement; equal in all calls.
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

/// Enough for large blocks' speed, too little to wear out a drive.
const WRITTEN_ONCE: usize = 64 << 20;

/// `None` without a disk or without room.
fn disk_speeds(config: &Config) -> Option<[f64; 2]> {
    let speed = disk_speed(config.memory.disk.as_deref()?, WRITTEN_ONCE).ok()?;
    Some([speed.write, speed.read])
}

fn disk_share(config: &Config, ranks_here: usize) -> anyhow::Result<u64> {
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

/// The folder and bytes of a disk tier that a run will reserve first.
fn unreserved<'c>(config: &'c Config, budgets: &Machine, bytes: u64) -> Option<(&'c Path, u64)> {
    config.memory.disk.as_deref().filter(|_| budgets.disk_budget == 0).map(|disk| (disk, bytes))
}

fn free_disk(path: &Path, unreserved: Option<(&Path, u64)>) -> Option<u64> {
    let there = existing(path)?;
    let free = free_bytes(&there).ok()?;
    let reserves =
        unreserved.filter(|(disk, _)| existing(disk).is_some_and(|disk| share_a_device(&there, &disk)));
    Some(free.saturating_sub(reserves.map_or(0, |(_, bytes)| bytes)))
}

fn existing(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find(|folder| folder.exists()).map(Path::to_owned)
}

#[cfg(unix)]
fn share_a_device(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| path.metadata().map(|file| file.dev()).ok();
    device(one).is_some_and(|number| device(other) == Some(number))
}

#[cfg(not(unix))]
fn share_a_device(_: &Path, _: &Path) -> bool {
    false
}

/// The best FLOP/s over all `sides`. Queues many matmuls and waits once.
fn arithmetic<B: Backend>(device: &B::Device, sides: &[usize], compute: Compute) -> Option<f64> {
    let mut reached: Option<f64> = None;
    let mut smaller = None;
    for side in sides.iter().copied() {
        let expected = smaller.map_or(0.0, |(smaller, seconds)| seconds * work(side) / work(smaller));
        if expected > MEASURED {
            break;
        }
        // The first matmul of a shape waits for its kernel.
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

fn work(side: usize) -> f64 {
    2.0 * (side as f64).powi(3)
}

/// Seconds of `count` dependent matmuls.
fn products<B: Backend>(device: &B::Device, side: usize, compute: Compute, count: usize) -> Option<f64> {
    // Its square is the same matrix: no number overflows.
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

/// Bytes per second of a copy larger than the caches: the CPU's block speed.
fn host_copy() -> f64 {
    const BYTES: usize = 64 << 20;
    let from = vec![1_u8; BYTES];
    let mut to = vec![0_u8; BYTES];
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let begun = Instant::now();
        to.copy_from_slice(&from);
        std::hint::black_box(&to);
        best = best.min(begun.elapsed().as_secs_f64());
    }
    BYTES as f64 / best
}

/// Bytes per second each way, from a copy there and back.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_that_a_disk_tier_will_reserve_is_not_free_for_checkpoints() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("runs/new");
        let all = free_disk(&run, None).expect("known");
        let less = free_disk(&run, Some((folder.path(), all / 2))).expect("known");
        assert!(less < all - all / 4, "{less} of {all}");
        assert_eq!(free_disk(&run, Some((folder.path(), u64::MAX))), Some(0));
    }
}
