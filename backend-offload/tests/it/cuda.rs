//! CUDA where there is none: what is missing is named before anything starts. Where there is a GPU,
//! `cargo xtask gpu-check` does the rest.

use crate::child::{Child, Facts, Scenario};
use backend_offload::{OffloadConfig, OffloadError};
use burn_cubecl::CubeBackend;
use cubecl_cuda::{CudaDevice, CudaRuntime};

type Cuda = CubeBackend<CudaRuntime, f32, i32, u8>;

#[test]
fn what_cuda_lacks_is_named_before_it_starts() {
    match OffloadConfig::new().install::<Cuda>(&CudaDevice::default()) {
        Ok(()) => {
            let why = "this machine has CUDA; use `cargo xtask gpu-check`";
            crate::present_or_not_run(false, "a missing CUDA", "OFFLOAD_REQUIRE_NO_CUDA", why);
        }
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

/// A caller with a context of its own, as a program has that uses CUDA besides, and one without any.
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
fn asking_a_device_leaves_the_callers_context_as_it_was() {
    use crate::stand_in;
    let name = "asking_a_device_leaves_the_callers_context_as_it_was";
    let missing = stand_in::installation().as_ref().err().cloned();
    let why = missing.as_deref().unwrap_or_default();
    if crate::present_or_not_run(missing.is_none(), name, "OFFLOAD_REQUIRE_STAND_IN", why) {
        stand_in::run(Child::new("cuda/probe"));
    }
}
