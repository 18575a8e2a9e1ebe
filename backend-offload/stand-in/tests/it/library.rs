//! The shared object, as cudarc loads it.

use std::{ffi::CString, path::PathBuf};

/// Symbols that cudarc looks up for CubeCL 0.10 or that Spillway needs.
const CALLED: [&str; 60] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAllocAsync",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuDeviceGetDefaultMemPool",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpy2DAsync_v2",
    "cuMemsetD8Async",
    "cuMemsetD8_v2",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuEventSynchronize",
    "cuEventQuery",
    "cuEventElapsedTime",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuFuncGetAttribute",
    "cuLaunchKernel",
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetProgramLog",
    "nvrtcGetPTX",
];

fn shared_object() -> PathBuf {
    let binary = std::env::current_exe().unwrap();
    let folders = binary.ancestors().skip(1).take(2);
    let mut found = folders.map(|folder| folder.join("libstand_in.so")).filter(|path| path.exists());
    found.next().expect("cargo builds the cdylib before the tests of its package")
}

#[test]
fn the_shared_object_has_every_function_that_cubecl_calls() {
    let path = CString::new(shared_object().to_str().unwrap()).unwrap();
    // SAFETY: loading it runs nothing.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    let missing = |name: &&str| {
        let name = CString::new(*name).unwrap();
        // SAFETY: a loaded library and a zero-terminated string.
        unsafe { libc::dlsym(library, name.as_ptr()) }.is_null()
    };
    let missing: Vec<&str> = CALLED.into_iter().filter(missing).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn the_shared_object_is_never_called_libcuda() {
    let name = shared_object();
    assert!(!name.with_file_name("libcuda.so").exists() && !name.with_file_name("libnvrtc.so").exists());
}
