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
    vec![Scenario { name: "cuda/probe", run: probe }]
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
