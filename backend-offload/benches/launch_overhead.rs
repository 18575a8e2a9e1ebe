//! Host time of one launch: plain runtime, offloaded without a budget, offloaded with every buffer managed.
//!
//! ```sh
//! cargo bench -p backend-offload --features wgpu
//! ```
//!
//! All three run in one process, one after the other in small turns, so that the machine's mood is shared. A
//! kernel over 64 KiB does next to nothing; what is timed is the road to it.

use backend_offload::OffloadRuntime;
use criterion::{Criterion, criterion_group, criterion_main};
use cubecl_common::future::block_on;
use cubecl_core as cubecl;
use cubecl_core::prelude::*;
use cubecl_core::server::Handle;
use cubecl_wgpu::{WgpuDevice, WgpuRuntime};
use std::time::{Duration, Instant};

/// Launches between two synchronisations: enough for a queue, not enough to fill it.
const BATCH: u64 = 256;

#[cube(launch)]
fn touch(input: &Array<f32>, output: &mut Array<f32>) {
    if ABSOLUTE_POS == 0 {
        output[0] = input[0] + 1.0;
    }
}

struct Rig<R: Runtime<Device = WgpuDevice>> {
    client: ComputeClient<R>,
    buffers: Vec<Handle>,
}

impl<R: Runtime<Device = WgpuDevice>> Rig<R> {
    fn new() -> Self {
        let client = R::client(&WgpuDevice::default());
        let zeros = vec![0; 64 << 10];
        let buffers = (0..8).map(|_| client.create_from_slice(&zeros)).collect();
        let rig = Self { client, buffers };
        rig.batch();
        rig
    }

    fn launch(&self, n: usize) {
        let argument = |n: usize| {
            let handle = self.buffers[n % self.buffers.len()].clone();
            // SAFETY: the handle covers 64 KiB, which is this many floats.
            unsafe { ArrayArg::from_raw_parts(handle, 16 << 10) }
        };
        touch::launch::<R>(
            &self.client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_single(),
            argument(n),
            argument(n + 1),
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

fn launches(criterion: &mut Criterion) {
    let plain = Rig::<WgpuRuntime>::new();
    let offloaded = Rig::<OffloadRuntime<WgpuRuntime>>::new();
    let mut group = criterion.benchmark_group("launch");
    group.throughput(criterion::Throughput::Elements(1));
    // Each sample of one is taken beside a sample of the other; only its own time counts.
    let turns = |rounds: u64, ours: &dyn Fn() -> Duration, theirs: &dyn Fn() -> Duration| {
        (0..rounds.div_ceil(BATCH)).map(|_| (theirs(), ours()).1).sum::<Duration>()
    };
    group.bench_function("plain", |bencher| {
        bencher.iter_custom(|rounds| turns(rounds, &|| plain.batch(), &|| offloaded.batch()));
    });
    group.bench_function("offloaded", |bencher| {
        bencher.iter_custom(|rounds| turns(rounds, &|| offloaded.batch(), &|| plain.batch()));
    });
    group.finish();
}

criterion_group!(benches, launches);
criterion_main!(benches);
