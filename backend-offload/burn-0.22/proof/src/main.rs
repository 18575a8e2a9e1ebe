//! Runs one program: `proof PROGRAM plain`, `proof PROGRAM spill BUDGET`, `proof PROGRAM counted`. `proof cost` times
//! the wrapper's launches.
//!
//! It prints `name=value` pairs: the digest of losses and weights, and the device's counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::tensor::Device;
use cubecl::client::Client;
use cubecl::device::{AlreadyStarted, set_client_provider};
use cubecl::wgpu::{WgpuServer, WgslCompiler};
use cubecl_common::device::{Device as _, DeviceService};
use cubecl_common::device_handle::DeviceHandle;
use cubecl_runtime::logging::{LaunchObservation, LaunchObserver};
use cubecl_runtime::server::ServerStorage;
use offload_burn_22::{OffloadConfig, OffloadServer, WgpuBackend, WgpuDevice, WgpuDeviceKind};
use proof::counted::{COUNTS, Counted};
use proof::programs;

/// WGSL: Debian 12's software driver crashes in kernels that CubeCL 0.11 compiles to SPIR-V.
type Plain = WgpuServer<WgslCompiler>;
type Spilling = OffloadServer<Plain>;
type Watched = OffloadServer<Counted<Plain>>;

/// Launches that clients issued, counted by CubeCL itself.
#[derive(Default)]
struct Issued(AtomicU64);

impl LaunchObserver for Issued {
    fn launched(&self, _: &'static str) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let gpu = WgpuDevice::new(WgpuDeviceKind::default()).on(WgpuBackend::Vulkan);
    let device = Device::from(gpu.clone()).autodiff();
    match arguments[..] {
        [program, "plain"] => {
            provide::<Plain>()?;
            println!("digest={:016x}", programs::run(program, &device, || ()));
        }
        [program, "spill", budget] => {
            // With the plain server's cuts of fused kernels, bits are comparable.
            let config = OffloadConfig::new().device_budget(budget.parse()?).plain_fusion();
            offload_burn_22::configure::<Plain>(gpu.to_id(), config)?;
            provide::<Spilling>()?;
            let server = DeviceHandle::<Spilling>::new(gpu.to_id());
            let digest = programs::run(program, &device, || server.submit(Spilling::mark_step));
            device.sync()?;
            let stats = server.submit_blocking(Spilling::stats).map_err(|error| format!("{error:?}"))?;
            println!(
                "digest={digest:016x} peak={} reserved={} evictions={} restores={} bytes_out={} bytes_in={} \
                 largest_launch={} launches={} failures={}",
                stats.device.peak,
                stats.device.peak_reserved,
                stats.evictions,
                stats.restores,
                stats.bytes_out,
                stats.bytes_in,
                stats.largest_launch,
                stats.launches,
                stats.failures
            );
        }
        ["cost"] => {
            let [median, slow] = proof::cost::of_a_launch(&gpu);
            println!("median_ns={median:.0} slow_ns={slow:.0}");
        }
        [program, "counted"] => counted(program, &gpu, &device)?,
        _ => return Err("usage: proof PROGRAM plain | PROGRAM spill BUDGET | PROGRAM counted | cost".into()),
    }
    Ok(())
}

fn provide<S: ServerStorage>() -> Result<(), AlreadyStarted> {
    set_client_provider(|device| match device {
        cubecl::Device::Wgpu(device) => Some(Client::load::<S>(device.to_id())),
        _ => None,
    })
}

fn list(counts: [u64; 4]) -> String {
    format!("{counts:?}").replace(' ', "")
}

fn counted(program: &str, gpu: &WgpuDevice, device: &Device) -> Result<(), Box<dyn std::error::Error>> {
    provide::<Watched>()?;
    let issued = Arc::new(Issued::default());
    let observation = LaunchObservation::new(issued.clone());
    let digest = programs::run(program, device, || ());
    device.sync()?;
    drop(observation);

    let wrapped = DeviceHandle::<Watched>::new(gpu.to_id())
        .submit_blocking(Watched::stats)
        .map_err(|error| format!("{error:?}"))?;
    let inner = [&COUNTS.launches, &COUNTS.allocations, &COUNTS.bytes_read, &COUNTS.bytes_written];
    let inner = inner.map(|count| count.load(Relaxed));
    // Succeeds only if no plain server has served the device.
    let plain = Client::try_init(gpu.to_id(), Plain::init(gpu.to_id())).is_err();
    println!(
        "digest={digest:016x} issued={} wrapped={} inner={} plain_server={plain} evictions={}",
        issued.0.load(Relaxed),
        list([wrapped.launches, wrapped.allocations, wrapped.bytes_read, wrapped.bytes_written]),
        list(inner),
        wrapped.evictions
    );
    Ok(())
}
