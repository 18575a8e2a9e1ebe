//! The CUDA parts that every kernel needs: driver, run-time compiler, headers.
//!
//! [`CudaInstallation::missing`] decides for [`probe`](crate::probe) and reports. A library without a symbol causes no
//! panic. Only [`cuda_capabilities`] starts the driver.

use cudarc::driver::{result, sys};
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};

/// A library of CUDA, as loaded by this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaLibrary {
    /// Its file, if the system reports it.
    pub file: Option<PathBuf>,
    /// CUDA release, as `(12, 8)`. `None` if the library is not NVIDIA's.
    pub release: Option<(u32, u32)>,
}

/// A part of a CUDA installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaPart {
    /// `libcuda`.
    Driver,
    /// `libnvrtc`.
    Compiler,
    /// `cuda_runtime.h`.
    Headers,
}

impl CudaPart {
    /// A statement that the part is missing.
    pub fn missing(self) -> &'static str {
        match self {
            Self::Driver => "the driver library libcuda is not found",
            Self::Compiler => "the run-time compiler libnvrtc is not found",
            Self::Headers => "the CUDA headers (cuda_runtime.h) are not found",
        }
    }

    /// Advice for installation.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Driver => "install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH",
            Self::Compiler => {
                "install CUDA's NVRTC (`apt-get install cuda-nvrtc-12-8` from NVIDIA's repository, or `conda install -c \
                 nvidia cuda-nvrtc`), or add its folder to LD_LIBRARY_PATH"
            }
            Self::Headers => {
                "install them (`apt-get install cuda-cudart-dev-12-8 cuda-crt-12-8` from NVIDIA's repository, or `conda \
                 install -c nvidia cuda-cudart-dev cuda-crt`) and set CUDA_PATH to the folder that has include/"
            }
        }
    }
}

/// The CUDA installation of this process.
#[derive(Debug, Clone)]
pub struct CudaInstallation {
    root: Option<PathBuf>,
}

impl CudaInstallation {
    /// Looks in `CUDA_PATH`, then in the system's usual places.
    pub fn find() -> Self {
        Self { root: cubecl_cuda::install::cuda_path() }
    }

    /// The folder that should hold `include/`.
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// The first missing part, in the order of a start.
    pub fn missing(&self) -> Option<CudaPart> {
        [CudaPart::Driver, CudaPart::Compiler, CudaPart::Headers].into_iter().find(|part| !self.has(*part))
    }

    /// Whether the part is found.
    pub fn has(&self, part: CudaPart) -> bool {
        match part {
            CudaPart::Driver => super::cuda_driver_found(),
            // SAFETY: calls nothing in the library.
            CudaPart::Compiler => unsafe { cudarc::nvrtc::sys::is_culib_present() },
            CudaPart::Headers => {
                self.root.as_ref().is_some_and(|root| root.join("include/cuda_runtime.h").exists())
            }
        }
    }

    /// The driver's library, with the newest CUDA release that it supports.
    pub fn driver(&self) -> Option<CudaLibrary> {
        type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
        if !self.has(CudaPart::Driver) {
            return None;
        }
        // SAFETY: the library is present; NVIDIA's `cuda.h` declares `cuDriverGetVersion` with this type.
        let version = unsafe { sys::culib().get::<Version>(b"cuDriverGetVersion") };
        Some(version.map_or(CudaLibrary { file: None, release: None }, |version| {
            let mut number = 0;
            // SAFETY: `number` is writable.
            let code = unsafe { version(&raw mut number) };
            let release = (code == 0).then_some((number as u32 / 1000, number as u32 % 1000 / 10));
            CudaLibrary { file: file_of(*version as *const c_void), release }
        }))
    }

    /// The run-time compiler's library.
    pub fn compiler(&self) -> Option<CudaLibrary> {
        type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        if !self.has(CudaPart::Compiler) {
            return None;
        }
        // SAFETY: the library is present; NVIDIA's `nvrtc.h` declares `nvrtcVersion` with this type.
        let version = unsafe { cudarc::nvrtc::sys::culib().get::<Version>(b"nvrtcVersion") };
        Some(version.map_or(CudaLibrary { file: None, release: None }, |version| {
            let (mut major, mut minor) = (0, 0);
            // SAFETY: both are writable.
            let code = unsafe { version(&raw mut major, &raw mut minor) };
            let release = (code == 0).then_some((major as u32, minor as u32));
            CudaLibrary { file: file_of(*version as *const c_void), release }
        }))
    }
}

#[cfg(target_os = "linux")]
fn file_of(function: *const c_void) -> Option<PathBuf> {
    use std::ffi::{CStr, OsStr};
    use std::mem::MaybeUninit;
    use std::os::unix::ffi::OsStrExt;

    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `found` is writable, and `dladdr` accepts every address.
    let found = unsafe { (libc::dladdr(function, found.as_mut_ptr()) != 0).then(|| found.assume_init()) }?;
    if found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's string lives as long as the library.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(OsStr::from_bytes(name.to_bytes()).into())
}

#[cfg(not(target_os = "linux"))]
fn file_of(_: *const c_void) -> Option<PathBuf> {
    None
}

/// Compute capabilities of all cards, in the driver's order; empty if the driver does not start.
///
/// Requires that [`CudaInstallation::missing`] is `None`.
pub fn cuda_capabilities() -> Vec<(u32, u32)> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let count = result::init().and_then(|()| result::device::get_count()).unwrap_or_default();
    let capability = |index| -> Option<(u32, u32)> {
        let device = result::device::get(index).ok()?;
        // SAFETY: `device` was returned by the driver.
        let of = |attribute| unsafe { result::device::get_attribute(device, attribute) };
        Some((of(MAJOR).ok()? as u32, of(MINOR).ok()? as u32))
    };
    (0..count).map(|index| capability(index).unwrap_or_default()).collect()
}
