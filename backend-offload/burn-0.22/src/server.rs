//! The server that Burn calls: makes an operation's buffers resident, rewrites its bindings, and passes it on.

use std::sync::Arc;

use backend_offload::adapter::pager::{BlockId, Limit};
use backend_offload::adapter::{self, Paging, SlabSource};
use backend_offload::{OffloadError, Stats};
use cubecl_common::bytes::Bytes;
use cubecl_common::device::{DeviceId, DeviceService, DeviceServiceStage, ServerUtilitiesHandle, ServiceId};
use cubecl_common::profile::ProfileDuration;
use cubecl_environment::future::DynFut;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport};
use cubecl_runtime::server::{
    BufferBinding, CopyDescriptor, CubeCount, Handle, KernelArguments, MemoryLayout, MemoryLayoutDescriptor,
    MemoryLayoutPolicy, ProfileError, ProfilingToken, Server, ServerCommunication, ServerError,
    ServerStorage, ServerUtilities,
};
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};

use crate::device::{Buffer, Wrapped};
use crate::failures::server_error;
use crate::launch::Operands;
use crate::passed::{Passed, requested};
use crate::release::LaunchMode;
use crate::wgpu::{facts, key};

/// Buffers per fused kernel. Fusion's cuts decide rounding: no budget may change it.
const FUSED_OPERANDS: u32 = 8;

const READ: &str = "reading a tensor";
const WRITE: &str = "writing a tensor";

/// The server of a device whose buffers spill, over the runtime's own server `S`.
pub struct OffloadServer<S> {
    utilities: Arc<ServerUtilities>,
    pub(crate) paging: Paging,
    pub(crate) device: Wrapped<S>,
    pub(crate) operands: Operands,
}

impl<S: ServerStorage> std::fmt::Debug for OffloadServer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Offload({:?})", self.device.inner)
    }
}

struct InnerLayout(Arc<ServerUtilities>);

impl MemoryLayoutPolicy for InnerLayout {
    fn apply(
        &self,
        service: ServiceId,
        stream: StreamId,
        descriptors: &[MemoryLayoutDescriptor],
    ) -> (Handle, Vec<MemoryLayout>) {
        self.0.layout_policy.apply(service, stream, descriptors)
    }
}

impl<S: ServerStorage> DeviceService for OffloadServer<S> {
    fn init(device: DeviceId) -> Self {
        let start = || {
            adapter::prepare(key::<S>(device), || Ok(facts(device)))?;
            Ok::<_, OffloadError>(
                adapter::start(key::<S>(device)).expect("prepared, and a device starts once"),
            )
        };
        match start() {
            Ok(settings) => Self::new(S::init(device), device, settings),
            Err(error) => panic!("{error}"),
        }
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }

    fn stage() -> DeviceServiceStage {
        S::stage()
    }
}

impl<S: ServerStorage> OffloadServer<S> {
    fn new(inner: S, device: DeviceId, settings: adapter::Settings) -> Self {
        let theirs = Server::utilities(&inner);
        let mut properties = (*theirs.properties).clone();
        let bindings = &mut properties.hardware.max_bindings;
        *bindings = (*bindings).min(settings.max_bindings.unwrap_or(FUSED_OPERANDS));

        let service = ServiceId::of::<Self>(device);
        let (mut utilities, _) = ServerUtilities::init(
            service,
            theirs.name,
            properties,
            (*theirs.target_properties).clone(),
            theirs.logger.clone(),
            InnerLayout(theirs.clone()),
        );
        utilities.captures = theirs.captures.clone();
        // Keys of the caches of kernels and autotune, shared with the plain runtime.
        utilities.properties_hash = theirs.properties_hash;

        let paging = Paging::new(&settings.paging, SlabSource::Heap);
        let device = Wrapped::new(inner, theirs.service, settings);
        Self { utilities: Arc::new(utilities), paging, device, operands: Operands::default() }
    }

    pub(crate) fn make_resident(&mut self, blocks: &[BlockId], operation: &str) -> Result<(), OffloadError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let resident = self.paging.make_resident(&mut self.device, blocks, &|| operation.to_owned());
        resident.inspect_err(|error| self.paging.count_failure(error))
    }

    pub(crate) fn wrote(&mut self, block: BlockId) {
        if let Err(fault) = self.paging.wrote(block) {
            tracing::error!(target: "backend_offload", "writing a buffer: {fault}");
        }
    }

    /// Counters after the release of dropped buffers.
    pub fn stats(&mut self) -> Stats {
        self.paging.sweep(&mut self.device);
        self.paging.stats()
    }

    /// Calls to the runtime's own server after the release of dropped buffers.
    pub fn passed(&mut self) -> Passed {
        self.paging.sweep(&mut self.device);
        self.device.passed
    }

    /// As [`mark_step`](crate::mark_step).
    pub fn mark_step(&mut self) {
        self.paging.mark_step();
    }

    pub(crate) fn set_device_budget(&mut self, budget: Limit) {
        self.paging.change_budget(&mut self.device, budget);
    }

    /// CubeCL does not report drops.
    fn sweep_if_due(&mut self) {
        if self.paging.pager().sweep_pays() {
            self.paging.sweep(&mut self.device);
            if self.paging.pager().keeps_spare_memory() {
                self.paging.trim(&mut self.device);
            }
        }
    }

    fn bring_in(
        &mut self,
        binding: &mut BufferBinding,
        operation: &str,
        stream: StreamId,
    ) -> Result<Option<BlockId>, ServerError> {
        let block = self.device.name(binding);
        if let Some(block) = block {
            self.make_resident(&[block], operation).map_err(|error| server_error(&error))?;
            self.device.order(block, stream);
        }
        self.device.make_physical(binding, block);
        Ok(block)
    }

    /// Bindings whose marks only the inner server knows.
    fn on_device(&self, bindings: Vec<BufferBinding>) -> Vec<BufferBinding> {
        let physical = |mut binding: BufferBinding| {
            let block = self.device.name(&binding);
            if block.is_some_and(|block| self.device.get(block).memory.is_none()) {
                return None;
            }
            self.device.make_physical(&mut binding, block);
            Some(binding)
        };
        bindings.into_iter().filter_map(physical).collect()
    }

    fn initialize_small(
        &mut self,
        memory: ManagedMemoryHandle,
        size: u64,
        stream: StreamId,
    ) -> Result<(), ServerError> {
        if self.device.allocate_inner(memory.clone(), size, stream, |passed| &mut passed.small).is_ok() {
            return Ok(());
        }
        // Spare slices of a full device may suffice.
        self.paging.sweep(&mut self.device);
        self.paging.trim(&mut self.device);
        self.device.allocate_inner(memory, size, stream, |passed| &mut passed.small)
    }
}

impl<S: ServerStorage> ServerCommunication for OffloadServer<S> {}

impl<S: ServerStorage> Server for OffloadServer<S> {
    fn initialize_memory(
        &mut self,
        memory: ManagedMemoryHandle,
        size: u64,
        stream: StreamId,
    ) -> Result<(), ServerError> {
        self.device.enter(stream);
        self.paging.counts().allocations += 1;
        if !self.device.manages(size) {
            return self.initialize_small(memory, size, stream);
        }

        self.sweep_if_due();
        let limits = &self.utilities.properties.memory;
        let too_large = (size > limits.max_page_size)
            .then_some(OffloadError::BufferTooLarge { wanted: size, limit: limits.max_page_size });
        let bytes = size.next_multiple_of(limits.alignment.max(1));
        let block = self.paging.insert(bytes, self.device.arena(stream));
        let binding = Handle::from_memory(memory.clone(), self.device.service, stream, size).binding();
        let id = binding.memory.id();
        self.device.insert(Buffer {
            user: memory,
            id,
            block,
            size,
            owner: stream,
            memory: None,
            used: false,
            last: stream,
        });
        let Some(error) = too_large else { return Ok(()) };
        self.paging.count_failure(&error);
        self.device.failures.mark(&binding, &server_error(&error));
        Err(server_error(&error))
    }

    fn staging(&mut self, sizes: &[usize], stream: StreamId) -> Result<Vec<Bytes>, ServerError> {
        self.device.inner.staging(sizes, stream)
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.device.inner.logger()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    /// One by one: together, the tensors might not fit.
    fn read(
        &mut self,
        descriptors: Vec<CopyDescriptor>,
        stream: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        self.device.enter(stream);
        let mut readings = Vec::with_capacity(descriptors.len());
        for mut descriptor in descriptors {
            let prepared = self.device.failures.check([&descriptor.handle]);
            let prepared = prepared.and_then(|()| self.bring_in(&mut descriptor.handle, READ, stream));
            if let Err(error) = prepared {
                return Box::pin(async move { Err(error) });
            }
            self.paging.counts().bytes_read += requested(&descriptor);
            readings.push(self.device.read_inner(descriptor, stream));
        }
        Box::pin(async move {
            let mut bytes = Vec::with_capacity(readings.len());
            for reading in readings {
                bytes.extend(reading.await?);
            }
            Ok(bytes)
        })
    }

    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, stream: StreamId) {
        self.device.enter(stream);
        for (mut descriptor, bytes) in descriptors {
            let user = descriptor.handle.clone();
            match self.bring_in(&mut descriptor.handle, WRITE, stream) {
                Ok(block) => {
                    self.paging.counts().bytes_written += bytes.len() as u64;
                    self.device.write_inner(descriptor, bytes, stream);
                    if user.size_in_used() == user.size {
                        self.device.failures.heal(&user);
                    }
                    if let Some(block) = block {
                        self.wrote(block);
                    }
                }
                Err(error) => self.device.failures.mark(&user, &error),
            }
        }
    }

    fn sync(&mut self, handles: Vec<BufferBinding>, stream: StreamId) -> DynFut<Result<(), ServerError>> {
        self.device.enter(stream);
        if let Err(error) = self.device.failures.check(&handles) {
            return Box::pin(async move { Err(error) });
        }
        let handles = self.on_device(handles);
        self.device.inner.sync(handles, stream)
    }

    fn check(&mut self, handles: Vec<BufferBinding>, stream: StreamId) -> Result<(), ServerError> {
        self.device.failures.check(&handles)?;
        let handles = self.on_device(handles);
        self.device.inner.check(handles, stream)
    }

    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        count: CubeCount,
        arguments: KernelArguments,
        stream: StreamId,
        mode: LaunchMode,
    ) {
        // SAFETY: the same kernel over the same buffers, as the caller promised.
        unsafe { self.launch_kernel(kernel, count, arguments, stream, mode) }
    }

    fn flush(&mut self, stream: StreamId) -> Result<(), ServerError> {
        self.device.enter(stream);
        self.device.inner.flush(stream)
    }

    #[cfg(cubecl_0_12)]
    fn compile_queued(&mut self) {
        self.device.inner.compile_queued();
    }

    fn memory_report(&mut self, stream: StreamId) -> Option<StreamMemoryReport> {
        self.paging.sweep(&mut self.device);
        self.device.inner.memory_report(stream)
    }

    fn stream_ids(&self) -> Vec<StreamId> {
        self.device.inner.stream_ids()
    }

    fn memory_cleanup(&mut self, _stream: StreamId) -> Result<(), ServerError> {
        self.paging.sweep(&mut self.device);
        self.paging.trim(&mut self.device);
        Ok(())
    }

    fn start_profile(&mut self, stream: StreamId) -> Result<ProfilingToken, ServerError> {
        self.device.enter(stream);
        self.device.inner.start_profile(stream)
    }

    #[cfg(cubecl_0_12)]
    fn start_profile_at_launch(&mut self, stream: StreamId) -> Result<ProfilingToken, ServerError> {
        self.device.enter(stream);
        self.device.inner.start_profile_at_launch(stream)
    }

    fn end_profile(
        &mut self,
        stream: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        self.device.inner.end_profile(stream, token)
    }

    fn abandon_profile(&mut self, stream: StreamId, token: ProfilingToken) {
        self.device.inner.abandon_profile(stream, token);
    }

    /// Ignored: the pools allocate exact sizes, and a change of mode flushes the stream.
    fn allocation_mode(&mut self, _: MemoryAllocationMode, _: StreamId) {}
}

impl<S: ServerStorage> ServerStorage for OffloadServer<S> {
    type Storage = S::Storage;

    /// Pins the block while the handle lives: the user may write to it.
    fn get_resource(
        &mut self,
        mut binding: BufferBinding,
        stream: StreamId,
    ) -> Result<ManagedResource<<S::Storage as ComputeStorage>::Resource>, ServerError> {
        self.device.enter(stream);
        self.device.failures.check([&binding])?;
        if let Some(block) = self.bring_in(&mut binding, "handing out a raw resource", stream)? {
            self.wrote(block);
            if let Err(fault) = self.paging.pin(block) {
                tracing::error!(target: "backend_offload", "pinning a buffer: {fault}");
            }
        }
        self.device.inner.get_resource(binding, stream)
    }
}
