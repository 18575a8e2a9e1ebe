//! Host time of one launch: on the plain runtime, offloaded, and offloaded with a clean operand, which the kernel may
//! write to.
//!
//! ```sh
//! cargo bench -p on-vulkan --bench launch_overhead
//! cargo xtask stand-in cargo bench -p on-vulkan --features cuda --bench launch_overhead
//! ```
//!
//! On Vulkan, and on CUDA if there is a driver; the second command brings the stand-in. All three variants run in one
//! process, in short turns, to share the machine's load. The kernel over 64 KiB does next to nothing.

use backend_offload::{Budget, InnerRuntime, OffloadRuntime, set_device_budget, stats};
use burn::tensor::backend::DeviceOps;
use burn_cubecl::CubeBackend;
use criterion::{Criterion, criterion_group, criterion_main};
use cubecl_common::future::block_on;
use cubecl_core as cubecl;
use cubecl_core::prelude::*;
use cubecl_core::server::Handle;
use cubecl_wgpu::{WgpuDevice, WgpuRuntime};
use std::cell::RefCell;
use std::time::{Duration, Instant};

const BATCH: u64 = 256;

#[cube(launch)]
fn touch(input: &Array<f32>, output: &mut Array<f32>) {
    if ABSOLUTE_POS == 0 {
        output[0] = input[0] + 1.0;
    }
}

/// Buffers read; as many are written.
const READ: usize = 4;

struct Rig<R: Runtime> {
    client: ComputeClient<R>,
    buffers: Vec<Handle>,
}

impl<R: Runtime> Rig<R> {
    fn new(device: &R::Device) -> Self {
        let client = R::client(device);
        let zeros = vec![0; 64 << 10];
        let buffers = (0..2 * READ).map(|_| client.create_from_slice(&zeros)).collect();
        let rig = Self { client, buffers };
        rig.batch();
        rig
    }

    fn launch(&self, n: usize) {
        let argument = |n: usize| {
            let handle = self.buffers[n].clone();
            // SAFETY: the handle covers 64 KiB, which is this many floats.
            unsafe { ArrayArg::from_raw_parts(handle, 16 << 10) }
        };
        touch::launch::<R>(
            &self.client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_single(),
            argument(n % READ),
            argument(READ + n % READ),
        );
    }

    fn batch(&self) -> Duration {
        let start = Instant::now();
        for n in 0..BATCH {
            self.launch(n as usize);
        }
        block_on(self.client.sync()).expect("the kernels run");
        start.elapsed()
    }
}

/// Evicts every buffer. True if some were clean.
fn evict_all<R: InnerRuntime<Device: DeviceOps>>(device: &R::Device) -> bool {
    let clean_drops = || stats::<CubeBackend<R, f32, i32, u32>>(device).clean_drops;
    let before = clean_drops();
    for budget in [Budget::Bytes(0), Budget::Unlimited] {
        set_device_budget::<CubeBackend<R, f32, i32, u32>>(device, budget).expect("a budget");
    }
    clean_drops() > before
}

const NAMES: [&str; 3] = ["plain", "offloaded", "offloaded, clean"];

fn launches_on<R: InnerRuntime<Device: DeviceOps>>(
    criterion: &mut Criterion,
    runtime: &str,
    device: &R::Device,
) {
    let plain = Rig::<R>::new(device);
    let clean = Rig::<OffloadRuntime<R>>::new(device);
    assert!(!evict_all::<R>(device));
    clean.batch();
    let offloaded = Rig::<OffloadRuntime<R>>::new(device);
    let rigs: [&dyn Fn() -> Duration; 3] = [&|| plain.batch(), &|| offloaded.batch(), &|| clean.batch()];

    let rounds = RefCell::new(Vec::new());
    // Each variant's sample comes with one of each other.
    let round = || {
        let times = rigs.map(|batch| batch());
        rounds.borrow_mut().push(times);
        times
    };

    let mut group = criterion.benchmark_group(format!("launch on {runtime}"));
    group.throughput(criterion::Throughput::Elements(1));
    for (own, name) in NAMES.iter().enumerate() {
        let time = |count: u64| (0..count.div_ceil(BATCH)).map(|_| round()[own]).sum();
        group.bench_function(*name, |bencher| bencher.iter_custom(time));
    }
    group.finish();
    assert!(evict_all::<R>(device), "what was to be clean was");

    let rounds = rounds.into_inner();
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / BATCH as f64;
    for (own, name) in NAMES.iter().enumerate() {
        // On a shared machine, the fastest batch says more than an average.
        let fastest = rounds.iter().map(|times| micros(times[own])).fold(f64::INFINITY, f64::min);
        let mut above: Vec<f64> = rounds.iter().map(|times| micros(times[own]) - micros(times[0])).collect();
        above.sort_by(f64::total_cmp);
        println!(
            "{name} on {runtime}: {fastest:.2} µs a launch in the fastest batch, {:+.2} µs beside the plain batch of the \
             same turn in the middle of {}",
            above[above.len() / 2],
            above.len()
        );
    }
}

fn launches(criterion: &mut Criterion) {
    launches_on::<WgpuRuntime>(criterion, "Vulkan", &WgpuDevice::default());
    #[cfg(feature = "cuda")]
    if backend_offload::cuda_driver_found() {
        launches_on::<cubecl_cuda::CudaRuntime>(criterion, "CUDA", &cubecl_cuda::CudaDevice::default());
    }
}

criterion_group!(benches, launches);
criterion_main!(benches);
