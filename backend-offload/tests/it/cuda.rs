//! CUDA where there is none: what is missing is named before anything starts. Where there is a GPU,
//! `cargo xtask gpu-check` does the rest.

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
