//! CUDA: required components, free memory, and page-locked host memory.

mod copies;
mod installation;
mod pool;
mod staging;
mod stream;
mod worker;

use super::failures::Address;
use super::inner::{InnerRuntime, Reaches, Resource};
use crate::backend::sealed;
use crate::config::DEFAULT_DEVICE_SHARE;
use crate::error::OffloadError;
use crate::registry::{DeviceFacts, DeviceMemory, Settings};
use crate::tiers::{PinnedMemory, SlabSource};
use cubecl_common::backtrace::BackTrace;
use cubecl_common::device::DeviceId;
use cubecl_common::future::block_on;
use cubecl_common::stream_id::StreamId;
use cubecl_core::ir::MemoryDeviceProperties;
use cubecl_core::server::{ComputeServer, Handle, ServerError};
use cubecl_cuda::{CudaDevice, CudaRuntime};
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use cudarc::driver::{result, sys};
use pager::Limit;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Once;

pub use installation::{CudaInstallation, CudaLibrary, CudaPart, cuda_capabilities};

/// The smallest buffer the pool makes.
const MARKER_BYTES: u64 = 32;

impl sealed::Sealed for CudaRuntime {}

impl Reaches for CudaRuntime {
    type Inner = Self;
}

impl InnerRuntime for CudaRuntime {
    const READS_TAKE_ERRORS: bool = true;
    const FUSED_OPERANDS: u32 = 8;
    const WITHOUT_TF32: &'static str = "cuda<f32>";

    type CopyStreams = copies::CudaCopies;

    fn order(server: &mut Self::Server, waiting: StreamId, other: StreamId) -> Result<(), ServerError> {
        // A stream waits for work queued before a used buffer's allocation.
        let marker = ManagedMemoryHandle::new();
        server.initialize_memory(marker.clone(), MARKER_BYTES, other);
        let marker = Handle::from_memory(marker, other, MARKER_BYTES);
        server.get_resource(marker.binding(), waiting).map(drop)
    }

    fn address(resource: &Resource<Self>) -> Address {
        (resource.ptr, 0)
    }

    fn copy_out(
        server: &mut Self::Server,
        source: Handle,
        stream: StreamId,
        target: &mut [u8],
    ) -> Result<(), ServerError> {
        // CubeCL's reads pass page-locked memory that no budget counts.
        block_on(server.sync(stream))?;
        let source = server.get_resource(source.binding(), stream)?;
        // SAFETY: the buffer is live, idle and of the target's size; the server has just made its context current.
        unsafe { result::memcpy_dtoh_sync(target, source.resource().ptr) }.map_err(|error| {
            ServerError::Generic {
                reason: format!("copying {} bytes to the host: {error}", target.len()),
                backtrace: BackTrace::default(),
            }
        })
    }

    fn stream_error(server: &mut Self::Server, stream: StreamId) -> Option<ServerError> {
        // A usage query leaves a stream's errors there; a flush takes them.
        server.memory_usage(stream).err().and_then(|_| server.flush(stream).err())
    }

    fn launch_error(server: &mut Self::Server, stream: StreamId) -> Option<ServerError> {
        // A flush waits for the previous flush's work.
        Self::stream_error(server, stream)
    }

    fn keep_memory(device: DeviceId, budget: Limit) {
        // Failure costs only time: each wait maps memory again.
        if let Err(error) = pool::keep(device, budget.get().unwrap_or(u64::MAX)) {
            tracing::debug!(target: crate::journal::TARGET, "freed device memory is not kept: {error}");
        }
    }

    fn give_memory_back(device: DeviceId) {
        if let Err(error) = pool::give_back(device) {
            tracing::warn!(target: crate::journal::TARGET, "freed device memory stays with this process: {error}");
        }
    }

    fn largest_buffer(settings: &Settings, _limits: &MemoryDeviceProperties) -> u64 {
        settings.device_memory.unwrap_or(u64::MAX)
    }

    fn runtime_name((): &<Self::Server as ComputeServer>::Info) -> &'static str {
        "cuda"
    }

    fn facts(device: &CudaDevice) -> Result<DeviceFacts, OffloadError> {
        let name = format!("CUDA device {}", device.index);
        let installation = CudaInstallation::find();
        require_parts(&name, &installation)?;
        let found = found(device.index).map_err(|error| OffloadError::MissingRuntime {
            device: name.clone(),
            missing: format!("the driver does not open it ({error})"),
            remedy: "check that `nvidia-smi` lists it and that no other process holds it exclusively",
        })?;

        let lacking = installation.root().filter(|_| found.tensor_cores).and_then(without_tensor_cores);
        if let Some(lacking) = &lacking {
            static SAID: Once = Once::new();
            SAID.call_once(|| tracing::warn!(target: crate::journal::TARGET, "{name}: {lacking}"));
        }

        Ok(DeviceFacts {
            simulated: found.model.as_deref() == Some(COMPUTES_NOTHING),
            name,
            model: found.model,
            memory: Some(found.memory),
            default_budget: DEFAULT_DEVICE_SHARE,
            lacking,
        })
    }

    fn slabs() -> SlabSource {
        SlabSource::Pinned(page_locked)
    }
}

/// How the stand-in for the driver names a device under `STAND_IN_COMPUTE=0`: a dry run needs no other.
const COMPUTES_NOTHING: &str = "CUDA stand-in that computes nothing";

/// Whether this machine has an NVIDIA driver; [`probe`](crate::probe) checks other components.
pub fn cuda_driver_found() -> bool {
    // SAFETY: calls nothing in the library.
    unsafe { sys::is_culib_present() }
}

/// Without them CubeCL panics at the first kernel, on its own thread.
fn require_parts(device: &str, installation: &CudaInstallation) -> Result<(), OffloadError> {
    installation.missing().map_or(Ok(()), |part| {
        Err(OffloadError::MissingRuntime {
            device: device.to_owned(),
            missing: part.missing().to_owned(),
            remedy: part.remedy(),
        })
    })
}

/// Headers missing below `root`. Autotune then silently skips tensor-core kernels.
fn without_tensor_cores(root: &Path) -> Option<String> {
    let needed = [
        ("include/mma.h", "cuda-cudart-dev-12-8"),
        ("include/crt/mma.h", "cuda-crt-12-8, in older releases cuda-nvcc"),
    ];
    let missing: Vec<_> = needed
        .into_iter()
        .filter(|(header, _)| !root.join(header).exists())
        .map(|(header, package)| format!("{} (package {package})", root.join(header).display()))
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "matrix products run without tensor cores, several times slower, because headers are missing: {}; install \
             them",
            missing.join(", ")
        )
    })
}

struct Found {
    model: Option<String>,
    memory: DeviceMemory,
    tensor_cores: bool,
}

fn found(index: usize) -> Result<Found, result::DriverError> {
    const MAJOR: sys::CUdevice_attribute =
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    result::init()?;
    let device = result::device::get(index as i32)?;
    // SAFETY: `device` was returned by the driver.
    let major = unsafe { result::device::get_attribute(device, MAJOR) }?;
    let _context = Visit::begin(device)?;
    let (free, total) = result::mem_get_info()?;
    Ok(Found {
        model: result::device::get_name(device).ok(),
        memory: DeviceMemory { free: free as u64, total: total as u64 },
        tensor_cores: major >= 7,
    })
}

/// The device's context, current for a moment: keeping one takes some hundred megabytes.
struct Visit {
    _within: Within,
    /// Dropped after `_within`.
    _retained: Retained,
}

impl Visit {
    fn begin(device: sys::CUdevice) -> Result<Self, result::DriverError> {
        // SAFETY: the driver returned `device`.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        let retained = Retained(device);
        // SAFETY: retained until `retained` is dropped.
        let within = unsafe { Within::begin(context) }?;
        Ok(Self { _within: within, _retained: retained })
    }
}

struct Retained(sys::CUdevice);

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: retained once. A failure leaves nothing to do.
        let _released = unsafe { result::primary_ctx::release(self.0) };
    }
}

/// A drop restores the thread's former context.
struct Within(sys::CUcontext);

impl Within {
    /// # Safety
    /// `context` lives until the drop.
    unsafe fn begin(context: sys::CUcontext) -> Result<Self, result::DriverError> {
        let before = result::ctx::get_current()?.unwrap_or(std::ptr::null_mut());
        // SAFETY: as the caller promises.
        unsafe { result::ctx::set_current(context) }?;
        Ok(Self(before))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        // SAFETY: the former context is valid, or null. A failure leaves nothing to do.
        let _restored = unsafe { result::ctx::set_current(self.0) };
    }
}

fn page_locked(len: usize, zeroed: bool) -> Option<PinnedMemory> {
    let context = result::ctx::get_current().ok()??;
    // SAFETY: plain allocation, usable from every context.
    let start = unsafe { result::malloc_host(len, sys::CU_MEMHOSTALLOC_PORTABLE) }.ok()?;
    let start = NonNull::new(start.cast::<u8>())?;
    // SAFETY: `len` bytes were just allocated.
    unsafe {
        if zeroed {
            start.as_ptr().write_bytes(0, len);
        }
        Some(PinnedMemory::new(start, len, release_page_locked, context.expose_provenance()))
    }
}

/// Any thread may drop page-locked memory, and has no context
/// (`page_locked_memory_is_freed_on_threads_without_a_context`).
fn release_page_locked(start: NonNull<u8>, context: usize) {
    // SAFETY: the runtime's context lives until the process exits.
    let _within = unsafe { Within::begin(std::ptr::with_exposed_provenance_mut(context)) };
    // SAFETY: allocated by `malloc_host` and released once. A failure at process exit leaves nothing to do.
    let _gone = unsafe { result::free_host(start.as_ptr().cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OffloadConfig;
    use crate::registry;
    use std::any::TypeId;
    use std::fs;

    #[test]
    fn missing_tensor_core_headers_are_named_with_their_package() {
        let root = std::env::temp_dir().join(format!("offload-headers-{}", std::process::id()));
        fs::create_dir_all(root.join("include/crt")).expect("our folder");
        let said = without_tensor_cores(&root).expect("both are missing");
        assert!(said.contains("cuda-cudart-dev") && said.contains("cuda-crt"), "{said}");
        fs::write(root.join("include/mma.h"), "").expect("our file");
        let said = without_tensor_cores(&root).expect("one is missing");
        assert!(said.contains("crt/mma.h") && !said.contains("cuda-cudart-dev"), "{said}");
        fs::write(root.join("include/crt/mma.h"), "").expect("our file");
        assert_eq!(without_tensor_cores(&root), None);
        fs::remove_dir_all(&root).expect("our folder");
    }

    #[test]
    fn one_buffer_may_take_the_whole_device() {
        const GIB: u64 = 1 << 30;
        let memory = Some(DeviceMemory { free: 6 * GIB, total: 8 * GIB });
        let facts = DeviceFacts {
            name: String::new(),
            model: None,
            memory,
            default_budget: DEFAULT_DEVICE_SHARE,
            lacking: None,
            simulated: false,
        };
        let key = (TypeId::of::<Found>(), [0, 0]);
        registry::install(key, OffloadConfig::new(), &facts).expect("a budget below what is free");
        let settings = registry::start(key).expect("installed");
        // CubeCL reports a quarter of the device.
        let limits = MemoryDeviceProperties { max_page_size: 2 * GIB, alignment: 512 };
        assert_eq!(CudaRuntime::largest_buffer(&settings, &limits), 8 * GIB);
    }
}
