//! The server that Burn calls: makes operands resident, rewrites bindings, and passes operations on.

use super::device::CubeDevice;
use super::failures::together;
use super::inner::{InnerRuntime, key, prepare};
use super::operands::Operands;
use super::precision::forget_tf32;
use super::table::Buffer;
use super::visibility::{RecordingCompiler, Visibility};
use crate::error::OffloadError;
use crate::paging::Paging;
use crate::registry::{self, Settings};
use cubecl_common::bytes::Bytes;
use cubecl_common::device::{Device, DeviceId, DeviceService, DeviceServiceStage, ServerUtilitiesHandle};
use cubecl_common::future::DynFut;
use cubecl_common::profile::ProfileDuration;
use cubecl_common::stream_id::StreamId;
use cubecl_core::prelude::CubeCount;
use cubecl_core::server::{
    Binding, ComputeServer, CopyDescriptor, Handle, KernelArguments, MemoryLayout, MemoryLayoutDescriptor,
    MemoryLayoutPolicy, ProfileError, ProfilingToken, ServerError, ServerUtilities,
};
use cubecl_core::{CubeTask, ExecutionMode, MemoryUsage};
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{ManagedMemoryHandle, MemoryAllocationMode};
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use pager::BlockId;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

pub struct OffloadServer<R: InnerRuntime> {
    pub(super) utilities: Arc<ServerUtilities<Self>>,
    pub(super) paging: Paging,
    pub(super) device: CubeDevice<R>,
    pub(super) visibility: Visibility,
    pub(super) operands: Operands,
    #[cfg(feature = "test-util")]
    pub(super) runtime_peaks: crate::RuntimePeaks,
}

impl<R: InnerRuntime> std::fmt::Debug for OffloadServer<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Offload({:?})", self.device.inner)
    }
}

/// Utilities are shared, since `Info` cannot be cloned.
pub struct InnerInfo<S: ComputeServer>(pub(super) Arc<ServerUtilities<S>>);

impl<S: ComputeServer> std::fmt::Debug for InnerInfo<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.info.fmt(f)
    }
}

pub struct InnerLayout<S: ComputeServer>(Arc<ServerUtilities<S>>);

impl<S: ComputeServer> MemoryLayoutPolicy for InnerLayout<S> {
    fn apply(&self, stream: StreamId, descriptors: &[MemoryLayoutDescriptor]) -> (Handle, Vec<MemoryLayout>) {
        self.0.layout_policy.apply(stream, descriptors)
    }
}

impl<R: InnerRuntime> DeviceService for OffloadServer<R> {
    fn init(device: DeviceId) -> Self {
        let start = || {
            // `OffloadRuntime::client`, which prepares, is not the only way to a client.
            prepare::<R>(&R::Device::from_id(device))?;
            let settings = registry::start(key::<R>(device));
            Ok::<_, OffloadError>(settings.expect("prepared just before, and a device starts once"))
        };
        match start() {
            Ok(settings) => Self::new(<R::Server as DeviceService>::init(device), device, settings),
            Err(error) => panic!("{error}"),
        }
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }

    fn stage() -> DeviceServiceStage {
        <R::Server as DeviceService>::stage()
    }
}

impl<R: InnerRuntime> OffloadServer<R> {
    fn new(inner: R::Server, device: DeviceId, settings: Settings) -> Self {
        let theirs = ComputeServer::utilities(&inner);
        let mut properties = theirs.properties.clone();
        let bindings = &mut properties.hardware.max_bindings;
        *bindings = (*bindings).min(settings.max_bindings.unwrap_or(R::FUSED_OPERANDS));
        if settings.exact_f32 {
            forget_tf32(&mut properties.features);
        }

        let utilities = Arc::new(ServerUtilities::new(
            properties,
            theirs.logger.clone(),
            InnerInfo(theirs.clone()),
            InnerLayout(theirs.clone()),
        ));

        let paging = Paging::new(&settings.paging, R::slabs());
        R::keep_memory(device, settings.paging.device_budget);
        let device = CubeDevice::new(inner, device, settings);
        device.remove_unmeasured();
        Self {
            utilities,
            paging,
            device,
            visibility: Visibility::default(),
            operands: Operands::default(),
            #[cfg(feature = "test-util")]
            runtime_peaks: crate::RuntimePeaks::default(),
        }
    }

    pub(super) fn make_resident(
        &mut self,
        operands: &[BlockId],
        operation: &str,
    ) -> Result<(), OffloadError> {
        if operands.is_empty() {
            return Ok(());
        }
        self.device.profile.used(operands);
        let stall = self.paging.counts().stall;
        let resident = self.paging.make_resident(&mut self.device, operands, &|| operation.to_owned());
        if self.paging.counts().stall != stall {
            self.device.profile.moved();
        }
        resident
    }

    pub(super) fn sweep(&mut self) {
        self.paging.sweep(&mut self.device);
    }

    pub(super) fn finish_copies(&mut self) {
        self.device.copies.wait_for_all();
        self.paging.complete_ended(&mut self.device);
    }

    pub(super) fn trim_device(&mut self) {
        self.paging.trim(&mut self.device);
    }

    /// CubeCL does not report drops.
    fn sweep_if_due(&mut self) {
        if self.paging.pager().sweep_pays() {
            self.sweep();
            if self.paging.pager().keeps_spare_memory() {
                self.trim_device();
            }
        }
    }

    #[cfg(feature = "test-util")]
    fn watch_runtime(&mut self) {
        let (mut in_use, mut reserved) = (0, 0);
        let streams: Vec<_> = self.device.streams.entered().collect();
        for stream in streams {
            if let Ok(usage) = self.device.inner.memory_usage(stream) {
                in_use += usage.bytes_in_use;
                reserved += usage.bytes_reserved;
            }
        }
        let peaks = &mut self.runtime_peaks;
        peaks.in_use = peaks.in_use.max(in_use);
        peaks.reserved = peaks.reserved.max(reserved);
    }

    fn initialize_small(&mut self, memory: ManagedMemoryHandle, size: u64, stream: StreamId) {
        // CUDA refuses zero bytes; Burn makes tensors without elements.
        let size = size.max(1);
        let binding = Handle::from_memory(memory.clone(), stream, size).binding();
        let inner = &mut self.device.inner;
        let first = memory.clone();
        let tried = catch_unwind(AssertUnwindSafe(|| inner.initialize_memory(first, size, stream)));
        if let Err(panic) = tried {
            // Spare slices of a full device may suffice.
            self.sweep();
            self.trim_device();
            let inner = &mut self.device.inner;
            let again = catch_unwind(AssertUnwindSafe(|| inner.initialize_memory(memory, size, stream)));
            if again.is_err() {
                resume_unwind(panic);
            }
        }
        self.device.forget_failure_before(&binding);
    }
}

impl<R: InnerRuntime> ComputeServer for OffloadServer<R> {
    type Kernel = Box<dyn CubeTask<RecordingCompiler<R::Compiler>>>;
    type Info = InnerInfo<R::Server>;
    type MemoryLayoutPolicy = InnerLayout<R::Server>;
    type Storage = <R::Server as ComputeServer>::Storage;

    fn initialize_memory(&mut self, memory: ManagedMemoryHandle, size: u64, stream: StreamId) {
        self.enter(stream);
        self.paging.counts().allocations += 1;
        if !self.device.buffers.manages(size) {
            return self.initialize_small(memory, size, stream);
        }

        self.sweep_if_due();
        let limits = &self.utilities.properties.memory;
        // The pool of exact sizes accepts unbindable buffers.
        let limit = R::largest_buffer(&self.device.settings, limits);
        let failed = (size > limit).then(|| Arc::new(OffloadError::BufferTooLarge { wanted: size, limit }));
        let bytes = size.next_multiple_of(limits.alignment.max(1));
        if let Some(error) = &failed {
            self.paging.count_failure(error);
        }

        let block = self.paging.insert(bytes, self.device.streams.arena(stream));
        self.device.buffers.insert(Buffer {
            user: memory,
            block,
            size,
            stream,
            device: None,
            last_use: None,
            copy: None,
            failed,
        });
    }

    fn staging(&mut self, sizes: &[usize], stream: StreamId) -> Result<Vec<Bytes>, ServerError> {
        self.enter(stream);
        self.device.inner.staging(sizes, stream)
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.device.inner.logger()
    }

    fn utilities(&self) -> Arc<ServerUtilities<Self>> {
        self.utilities.clone()
    }

    fn read(
        &mut self,
        descriptors: Vec<CopyDescriptor>,
        stream: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        self.read_buffers(descriptors, stream).unwrap_or_else(|error| Box::pin(async move { Err(error) }))
    }

    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, stream: StreamId) {
        for (descriptor, bytes) in descriptors {
            self.write_buffer(descriptor, bytes, stream);
        }
    }

    fn sync(&mut self, stream: StreamId) -> DynFut<Result<(), ServerError>> {
        self.enter(stream);
        self.finish_copies();
        let done = self.device.inner.sync(stream);
        match self.device.errors_at_sync(stream, Ok(())) {
            Ok(()) => done,
            Err(error) => Box::pin(async move { together(vec![error], done.await) }),
        }
    }

    fn get_resource(
        &mut self,
        binding: Binding,
        stream: StreamId,
    ) -> Result<ManagedResource<<Self::Storage as ComputeStorage>::Resource>, ServerError> {
        self.hand_out(binding, stream)
    }

    unsafe fn launch(
        &mut self,
        kernel: Self::Kernel,
        count: CubeCount,
        arguments: KernelArguments,
        mode: ExecutionMode,
        stream: StreamId,
    ) {
        self.remove_unmeasured_times(stream);
        // SAFETY: the same kernel over the same buffers, as the caller promised.
        unsafe { self.launch_kernel(kernel, count, arguments, mode, stream) }
        #[cfg(feature = "test-util")]
        if self.device.settings.watch_runtime {
            self.watch_runtime();
        }
    }

    fn flush(&mut self, stream: StreamId) -> Result<(), ServerError> {
        self.enter(stream);
        self.device.profile.candidate_begins();
        let flushed = self.device.inner.flush(stream);
        self.device.errors_at_sync(stream, flushed)
    }

    fn memory_usage(&mut self, stream: StreamId) -> Result<MemoryUsage, ServerError> {
        self.enter(stream);
        self.sweep();
        self.device.inner.memory_usage(stream)
    }

    fn memory_cleanup(&mut self, stream: StreamId) {
        self.enter(stream);
        self.sweep();
        self.trim_device();
    }

    fn start_profile(&mut self, stream: StreamId) -> Result<ProfilingToken, ServerError> {
        self.enter(stream);
        self.begin_sample(stream)
    }

    fn end_profile(
        &mut self,
        stream: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        self.end_sample(stream, token)
    }

    /// Ignored: Burn changes the mode at each parameter, which flushes the stream on wgpu.
    fn allocation_mode(&mut self, _: MemoryAllocationMode, _: StreamId) {}
}
