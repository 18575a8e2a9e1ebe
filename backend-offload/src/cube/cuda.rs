//! CUDA: what must be there before it starts, how much memory is free, and page-locked host memory.

use super::runtime::InnerRuntime;
use crate::bytes::Budget;
use crate::error::OffloadError;
use crate::registry::{DeviceFacts, DeviceMemory, Settings};
use crate::tiers::{PinnedMemory, SlabSource};
use cubecl_common::backtrace::BackTrace;
use cubecl_common::future::block_on;
use cubecl_common::stream_id::StreamId;
use cubecl_core::ir::MemoryDeviceProperties;
use cubecl_core::server::{ComputeServer, Handle, ServerError};
use cubecl_cuda::{CudaDevice, CudaRuntime};
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use cudarc::driver::{result, sys};
use std::ptr::NonNull;

/// The smallest buffer the pool makes.
const MARKER_BYTES: u64 = 32;

#[expect(private_interfaces, reason = "the trait is sealed: its methods are for this crate")]
impl InnerRuntime for CudaRuntime {
    const READS_TAKE_ERRORS: bool = true;
    const FUSED_OPERANDS: u32 = 8;
    const WITHOUT_TF32: &'static str = "cuda<f32>";

    fn order(server: &mut Self::Server, waiting: StreamId, other: StreamId) -> Result<(), ServerError> {
        // A stream waits for the work that came before the allocation of what it uses: so allocate there, and use
        // it here.
        let marker = ManagedMemoryHandle::new();
        server.initialize_memory(marker.clone(), MARKER_BYTES, other);
        let marker = Handle::from_memory(marker, other, MARKER_BYTES);
        server.get_resource(marker.binding(), waiting).map(drop)
    }

    fn copy_out(
        server: &mut Self::Server,
        source: Handle,
        stream: StreamId,
        target: &mut [u8],
    ) -> Result<(), ServerError> {
        // Straight into the slab: CubeCL's reads land in page-locked memory of its own, which no budget counts.
        block_on(server.sync(stream))?;
        let source = server.get_resource(source.binding(), stream)?;
        // SAFETY: the buffer is live, has the target's size, and its stream's work is done; its context is current,
        // since the server has just used it.
        unsafe { result::memcpy_dtoh_sync(target, source.resource().ptr) }.map_err(|error| {
            ServerError::Generic {
                reason: format!("copying {} bytes to the host: {error}", target.len()),
                backtrace: BackTrace::default(),
            }
        })
    }

    fn write_error(server: &mut Self::Server, stream: StreamId) -> Option<ServerError> {
        // Asking for usage fails on a stream with errors and leaves them; only a flush takes them.
        server.memory_usage(stream).err().and_then(|_| server.flush(stream).err())
    }

    fn largest_buffer(settings: &Settings, _limits: &MemoryDeviceProperties) -> u64 {
        // The pool of exact sizes takes what the driver gives; CubeCL's limit is one of its other pools.
        settings.device_memory.unwrap_or(u64::MAX)
    }

    fn runtime_name((): &<Self::Server as ComputeServer>::Info) -> &'static str {
        "cuda"
    }

    fn facts(device: &CudaDevice) -> Result<DeviceFacts, OffloadError> {
        let name = format!("CUDA device {}", device.index);
        require_libraries(&name)?;
        let memory = memory(device.index).map_err(|error| OffloadError::MissingRuntime {
            device: name.clone(),
            missing: format!("the driver does not open it ({error})"),
            remedy: "check that `nvidia-smi` lists it and that no other process holds it exclusively",
        })?;
        Ok(DeviceFacts { name, memory: Some(memory), default_budget: Budget::Share(0.9) })
    }

    fn slabs() -> SlabSource {
        SlabSource::Pinned(page_locked)
    }
}

/// Whether there is an NVIDIA driver on this machine. What else a device needs, [`probe`](crate::probe) checks.
pub fn cuda_driver_found() -> bool {
    // SAFETY: loads the library if it is there and calls nothing in it.
    unsafe { sys::is_culib_present() }
}

/// Without these CubeCL panics at the first kernel, on a thread of its own.
fn require_libraries(device: &str) -> Result<(), OffloadError> {
    let missing = |missing: &str, remedy| {
        Err(OffloadError::MissingRuntime { device: device.to_owned(), missing: missing.to_owned(), remedy })
    };
    if !cuda_driver_found() {
        return missing(
            "the driver library libcuda is not found",
            "install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH",
        );
    }
    // SAFETY: loads the library if it is there and calls nothing in it.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return missing(
            "the run-time compiler libnvrtc is not found",
            "install CUDA's NVRTC (package cuda-nvrtc), or add its folder to LD_LIBRARY_PATH",
        );
    }
    let headers = cubecl_cuda::install::cuda_path().map(|path| path.join("include/cuda_runtime.h"));
    if !headers.is_some_and(|header| header.exists()) {
        return missing(
            "the CUDA headers (cuda_runtime.h) are not found",
            "install them (package cuda-cudart-dev) and set CUDA_PATH to the folder that has include/",
        );
    }
    Ok(())
}

fn memory(index: usize) -> Result<DeviceMemory, result::DriverError> {
    result::init()?;
    let device = result::device::get(index as i32)?;
    // SAFETY: `device` was returned by the driver. The primary context stays retained: CubeCL keeps it for
    // the life of the process too, and giving it up in between would set the device up twice.
    unsafe {
        let context = result::primary_ctx::retain(device)?;
        result::ctx::set_current(context)?;
    }
    let (free, total) = result::mem_get_info()?;
    Ok(DeviceMemory { free: free as u64, total: total as u64 })
}

/// Page-locked memory. Called on the device's own thread, where its context is current.
fn page_locked(len: usize) -> Option<PinnedMemory> {
    // SAFETY: plain allocation; the flag makes the memory usable from every context.
    let start = unsafe { result::malloc_host(len, sys::CU_MEMHOSTALLOC_PORTABLE) }.ok()?;
    let start = NonNull::new(start.cast::<u8>())?;
    // SAFETY: `len` bytes were just allocated for us; they are initialised here.
    unsafe {
        start.as_ptr().write_bytes(0, len);
        Some(PinnedMemory::new(start, len, release_page_locked))
    }
}

fn release_page_locked(start: NonNull<u8>) {
    // SAFETY: allocated by `malloc_host` above and released once, by the drop of its owner. A failure at
    // process exit, when the driver is gone already, leaves nothing to do.
    let _gone = unsafe { result::free_host(start.as_ptr().cast()) };
}
