//! Runs one program: `proof PROGRAM plain`, `proof PROGRAM spill BUDGET`, `proof PROGRAM counted BUDGET`. `proof cost` times
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
use proof::counted::{COUNTS, Counted, INSIDE, OUTSIDE};
use proof::programs;

/// By WGSL: the software driver of Debian 12 crashes in kernels that CubeCL 0.11 compiles to SPIR-V.
type Plain = WgpuServer<WgslCompiler>;
type Spilling = OffloadServer<Plain>;
type Inside = Counted<Plain, INSIDE>;
type Watched = Counted<OffloadServer<Inside>, OUTSIDE>;

/// Launches of clients, counted by CubeCL before any server sees them.
#[derive(Default)]
struct Observed(AtomicU64);

impl LaunchObserver for Observed {
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
            // The plain server's cuts of fused kernels, to compare bits with it.
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
        [program, "counted", budget] => counted(program, budget, &gpu, &device)?,
        _ => {
            return Err(
                "usage: proof PROGRAM plain | PROGRAM spill BUDGET | PROGRAM counted BUDGET | cost".into()
            );
        }
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

fn counted(
    program: &str,
    budget: &str,
    gpu: &WgpuDevice,
    device: &Device,
) -> Result<(), Box<dyn std::error::Error>> {
    offload_burn_22::configure::<Inside>(gpu.to_id(), OffloadConfig::new().device_budget(budget.parse()?))?;
    provide::<Watched>()?;
    let observed = Arc::new(Observed::default());
    let observation = LaunchObservation::new(observed.clone());
    programs::run(program, device, || ());
    device.sync()?;
    drop(observation);

    let (stats, passed) = DeviceHandle::<Watched>::new(gpu.to_id())
        .submit_blocking(|Counted(wrapper): &mut Watched| (wrapper.stats(), wrapper.passed()))
        .map_err(|error| format!("{error:?}"))?;
    // Succeeds only if no plain server has served the device.
    let plain = Client::try_init(gpu.to_id(), Plain::init(gpu.to_id())).is_err();
    println!(
        "observed={} asked={} received={} passed={} inside={} small={} first={} again={} refused={} unused={} \
         bytes_out={} bytes_in={} peak={} plain_server={plain}",
        observed.0.load(Relaxed),
        list(COUNTS[OUTSIDE].list()),
        list([stats.launches, stats.allocations, stats.bytes_read, stats.bytes_written]),
        list([passed.launches, passed.allocations(), passed.bytes_read, passed.bytes_written]),
        list(COUNTS[INSIDE].list()),
        passed.small,
        passed.first,
        passed.again,
        passed.refused,
        passed.unused,
        stats.bytes_out,
        stats.bytes_in,
        stats.device.peak,
    );
    Ok(())
}
