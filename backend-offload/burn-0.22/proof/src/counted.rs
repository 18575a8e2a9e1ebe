//! A server that counts its calls and passes them on, or ends kernels and allocations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cubecl_common::bytes::Bytes;
use cubecl_common::device::{DeviceId, DeviceService, DeviceServiceStage, ServerUtilitiesHandle};
use cubecl_common::profile::ProfileDuration;
use cubecl_environment::future::DynFut;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport};
use cubecl_runtime::server::{
    BufferBinding, CopyDescriptor, CubeCount, KernelArguments, ProfileError, ProfilingToken, Server,
    ServerCommunication, ServerError, ServerStorage, ServerUtilities,
};
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use offload_burn_22::LaunchMode;

/// Calls counted at one place, over all servers.
#[derive(Debug)]
pub struct Counts {
    /// Launched kernels.
    pub launches: AtomicU64,
    /// Allocated buffers.
    pub allocations: AtomicU64,
    /// Bytes requested by reads.
    pub bytes_read: AtomicU64,
    /// Bytes given to writes.
    pub bytes_written: AtomicU64,
}

impl Counts {
    const fn none() -> Self {
        Self {
            launches: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        }
    }

    /// Launches, allocations, bytes read and written so far.
    pub fn list(&self) -> [u64; 4] {
        [&self.launches, &self.allocations, &self.bytes_read, &self.bytes_written]
            .map(|count| count.load(Relaxed))
    }
}

/// Between clients and the wrapper.
pub const OUTSIDE: usize = 0;
/// Between the wrapper and the runtime's own server.
pub const INSIDE: usize = 1;
/// Kernels and allocations end here.
pub const END: usize = 2;

/// Calls so far, by place.
pub static COUNTS: [Counts; 3] = [const { Counts::none() }; 3];

/// `S`, counted at a place.
#[derive(Debug)]
pub struct Counted<S, const AT: usize>(pub S);

impl<S: ServerStorage, const AT: usize> DeviceService for Counted<S, AT> {
    fn init(device: DeviceId) -> Self {
        Self(S::init(device))
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        DeviceService::utilities(&self.0)
    }

    fn stage() -> DeviceServiceStage {
        S::stage()
    }
}

impl<S: ServerStorage, const AT: usize> ServerCommunication for Counted<S, AT> {}

impl<S: ServerStorage, const AT: usize> Server for Counted<S, AT> {
    fn initialize_memory(
        &mut self,
        memory: ManagedMemoryHandle,
        size: u64,
        stream: StreamId,
    ) -> Result<(), ServerError> {
        COUNTS[AT].allocations.fetch_add(1, Relaxed);
        if AT == END { Ok(()) } else { self.0.initialize_memory(memory, size, stream) }
    }

    fn staging(&mut self, sizes: &[usize], stream: StreamId) -> Result<Vec<Bytes>, ServerError> {
        self.0.staging(sizes, stream)
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.0.logger()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        Server::utilities(&self.0)
    }

    fn read(
        &mut self,
        descriptors: Vec<CopyDescriptor>,
        stream: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        let bytes = |read: &CopyDescriptor| (read.shape.iter().product::<usize>() * read.elem_size) as u64;
        COUNTS[AT].bytes_read.fetch_add(descriptors.iter().map(bytes).sum(), Relaxed);
        self.0.read(descriptors, stream)
    }

    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, stream: StreamId) {
        let bytes = descriptors.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        COUNTS[AT].bytes_written.fetch_add(bytes, Relaxed);
        self.0.write(descriptors, stream);
    }

    fn sync(&mut self, handles: Vec<BufferBinding>, stream: StreamId) -> DynFut<Result<(), ServerError>> {
        self.0.sync(handles, stream)
    }

    fn check(&mut self, handles: Vec<BufferBinding>, stream: StreamId) -> Result<(), ServerError> {
        self.0.check(handles, stream)
    }

    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        count: CubeCount,
        arguments: KernelArguments,
        stream: StreamId,
        mode: LaunchMode,
    ) {
        COUNTS[AT].launches.fetch_add(1, Relaxed);
        if AT != END {
            // SAFETY: the caller's own arguments.
            unsafe { self.0.launch(kernel, count, arguments, stream, mode) }
        }
    }

    fn flush(&mut self, stream: StreamId) -> Result<(), ServerError> {
        self.0.flush(stream)
    }

    fn memory_report(&mut self, stream: StreamId) -> Option<StreamMemoryReport> {
        self.0.memory_report(stream)
    }

    fn stream_ids(&self) -> Vec<StreamId> {
        self.0.stream_ids()
    }

    fn memory_cleanup(&mut self, stream: StreamId) -> Result<(), ServerError> {
        self.0.memory_cleanup(stream)
    }

    fn start_profile(&mut self, stream: StreamId) -> Result<ProfilingToken, ServerError> {
        self.0.start_profile(stream)
    }

    fn end_profile(
        &mut self,
        stream: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        self.0.end_profile(stream, token)
    }

    fn abandon_profile(&mut self, stream: StreamId, token: ProfilingToken) {
        self.0.abandon_profile(stream, token);
    }

    fn allocation_mode(&mut self, mode: MemoryAllocationMode, stream: StreamId) {
        self.0.allocation_mode(mode, stream);
    }
}

impl<S: ServerStorage, const AT: usize> ServerStorage for Counted<S, AT> {
    type Storage = S::Storage;

    fn get_resource(
        &mut self,
        binding: BufferBinding,
        stream: StreamId,
    ) -> Result<ManagedResource<<S::Storage as ComputeStorage>::Resource>, ServerError> {
        self.0.get_resource(binding, stream)
    }
}
