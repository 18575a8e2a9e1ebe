//! CUDA without a GPU; `cargo xtask gpu-check` needs one.

use crate::child::{Child, Facts, Scenario};
use crate::stand_in;
use backend_offload::{OffloadConfig, OffloadError};
use burn_cubecl::CubeBackend;
use cubecl_cuda::{CudaDevice, CudaRuntime};
use suite::Need;

type Cuda = CubeBackend<CudaRuntime, f32, i32, u8>;

#[test]
fn a_missing_cuda_library_is_named_before_anything_starts() {
    match OffloadConfig::new().install::<Cuda>(&CudaDevice::default()) {
        Ok(()) => _ = Need::NoCuda.is_met(Some("this machine has CUDA")),
        Err(OffloadError::MissingRuntime { device, missing, remedy }) => {
            assert_eq!(device, "CUDA device 0");
            assert!(!missing.is_empty() && !remedy.is_empty());
        }
        Err(other) => panic!("not a missing library: {other}"),
    }
}

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "cuda/probe", run: probe },
        #[cfg(feature = "router")]
        Scenario { name: "cuda/shared pool", run: trim_on_the_cpu },
    ]
}

fn probe(_: &Facts) -> Facts {
    use cudarc::driver::result;
    let current = || result::ctx::get_current().expect("the driver is there");
    result::init().expect("the driver is there");
    let ask = || backend_offload::probe::<Cuda>(&CudaDevice::new(0)).expect("nothing is missing").memory;
    let memory = ask().expect("the driver tells");
    assert!(memory.free > 0 && memory.free <= memory.total);
    assert_eq!(current(), None, "no context stays behind");
    let other = result::device::get(1).expect("a second device");
    // SAFETY: the driver returned the device, and then the context.
    let context = unsafe { result::primary_ctx::retain(other) }.expect("a context");
    // SAFETY: as above.
    unsafe { result::ctx::set_current(context) }.expect("a context of this device");
    assert_eq!(ask(), Some(memory));
    assert_eq!(current(), Some(context), "the caller's context is current again");
    Facts::default()
}

#[test]
fn probing_a_device_keeps_the_callers_context() {
    if stand_in::is_available() {
        stand_in::run(Child::new("cuda/probe"));
    }
}

/// All devices share one pool of host memory.
#[cfg(feature = "router")]
fn trim_on_the_cpu(_: &Facts) -> Facts {
    use backend_offload::{Budget, Offload, stats, trim};
    use burn::tensor::Tensor;
    use burn_flex::{Flex, FlexDevice};

    type Spilling = Offload<Cuda>;
    let (device, cpu) = (CudaDevice::default(), FlexDevice);
    OffloadConfig::new().device_budget(Budget::Bytes(2 << 20)).install::<Cuda>(&device).expect("installs");
    OffloadConfig::new().install::<Flex>(&cpu).expect("installs");
    let spilled: Vec<_> =
        (0..8).map(|n| Tensor::<Spilling, 2>::full([512, 512], n as f32, &device) + 1.0).collect();
    for (n, tensor) in spilled.into_iter().enumerate() {
        assert_eq!(tensor.mean().into_scalar().to_bits(), (n as f32 + 1.0).to_bits());
    }
    let host = || stats::<Cuda>(&device).host;
    assert!(host().in_use == 0 && host().reserved > 0, "{:?}", host());
    trim::<Flex>(&cpu);
    assert_eq!(host().reserved, 0);
    Facts::default()
}

#[cfg(feature = "router")]
#[test]
fn page_locked_memory_is_freed_on_threads_without_a_context() {
    if stand_in::is_available() {
        let (_, report) = stand_in::run_and_report(Child::new("cuda/shared pool"));
        assert_eq!(report["findings"].to_string(), "{}");
        assert!(report["pinned_frees"].as_u64() > Some(0), "{report}");
    }
}
