//! Host time of one launch: on the plain runtime, offloaded, and offloaded with an operand that is clean, of which has
//! to be known whether the kernel writes to it.
//!
//! ```sh
//! cargo bench -p backend-offload --features wgpu
//! ```
//!
//! All three run in one process, one after the other in small turns, so that the machine's mood is shared. A
//! kernel over 64 KiB does next to nothing; what is timed is the road to it.

use backend_offload::{Budget, OffloadRuntime, set_device_budget, stats};
use burn_cubecl::CubeBackend;
use criterion::{Criterion, criterion_group, criterion_main};
use cubecl_common::future::block_on;
use cubecl_core as cubecl;
use cubecl_core::prelude::*;
use cubecl_core::server::Handle;
use cubecl_wgpu::{WgpuDevice, WgpuRuntime};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Launches between two synchronisations: enough for a queue, not enough to fill it.
const BATCH: u64 = 256;

#[cube(launch)]
fn touch(input: &Array<f32>, output: &mut Array<f32>) {
    if ABSOLUTE_POS == 0 {
        output[0] = input[0] + 1.0;
    }
}

type Plain = CubeBackend<WgpuRuntime, f32, i32, u32>;

/// Buffers that are read, and as many that are written to.
const READ: usize = 4;

struct Rig<R: Runtime<Device = WgpuDevice>> {
    client: ComputeClient<R>,
    buffers: Vec<Handle>,
}

impl<R: Runtime<Device = WgpuDevice>> Rig<R> {
    fn new() -> Self {
        let client = R::client(&WgpuDevice::default());
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

    /// Time to hand over a batch and have it done.
    fn batch(&self) -> Duration {
        let start = Instant::now();
        for n in 0..BATCH {
            self.launch(n as usize);
        }
        block_on(self.client.sync()).expect("the kernels run");
        start.elapsed()
    }
}

/// Sends every buffer to the host. True if some of them had been there and were not written to since.
fn evict_all() -> bool {
    let device = WgpuDevice::default();
    let before = stats::<Plain>(&device).clean_drops;
    set_device_budget::<Plain>(&device, Budget::Bytes(0)).expect("a budget");
    set_device_budget::<Plain>(&device, Budget::Unlimited).expect("a budget");
    stats::<Plain>(&device).clean_drops > before
}

fn launches(criterion: &mut Criterion) {
    let plain = Rig::<WgpuRuntime>::new();
    let clean = Rig::<OffloadRuntime<WgpuRuntime>>::new();
    assert!(!evict_all());
    clean.batch();
    let offloaded = Rig::<OffloadRuntime<WgpuRuntime>>::new();
    let mut group = criterion.benchmark_group("launch");
    group.throughput(criterion::Throughput::Elements(1));
    // Each sample of one is taken beside a sample of each other; only its own time counts.
    let rigs: [(&str, &dyn Fn() -> Duration); 3] = [
        ("plain", &|| plain.batch()),
        ("offloaded", &|| offloaded.batch()),
        ("offloaded, clean", &|| clean.batch()),
    ];
    // On a machine that others use too, the fastest batch says more than any average.
    let fastest = Cell::new([Duration::MAX; 3]);
    let round = || {
        let times = rigs.map(|(_, batch)| batch());
        let kept = fastest.get();
        fastest.set(std::array::from_fn(|rig| kept[rig].min(times[rig])));
        times
    };
    for (own, (name, _)) in rigs.iter().enumerate() {
        let time = |rounds: u64| (0..rounds.div_ceil(BATCH)).map(|_| round()[own]).sum();
        group.bench_function(*name, |bencher| bencher.iter_custom(time));
    }
    group.finish();
    for ((name, _), time) in rigs.iter().zip(fastest.get()) {
        println!("{name}: {:?} a launch in the fastest batch", time / BATCH as u32);
    }
    assert!(evict_all(), "what was to be clean was");
}

criterion_group!(benches, launches);
criterion_main!(benches);
