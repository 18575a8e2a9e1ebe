//! The runtime underneath: what differs between CUDA and wgpu.

use super::copy_streams::CopyStreams;
use super::failures::Address;
use super::transfer::read_in_pieces;
use crate::backend::sealed;
use crate::error::OffloadError;
use crate::registry::{self, DeviceFacts, DeviceKey, Settings};
use crate::tiers::SlabSource;
use cubecl_common::bytes::Bytes;
use cubecl_common::device::{Device, DeviceId};
use cubecl_common::stream_id::StreamId;
use cubecl_core::Runtime;
use cubecl_core::client::ComputeClient;
use cubecl_core::ir::MemoryDeviceProperties;
use cubecl_core::server::{ComputeServer, Handle, MemoryLayout, ServerError};
use cubecl_core::zspace::Shape;
use cubecl_runtime::storage::ComputeStorage;
use pager::Limit;
use std::any::TypeId;

pub(super) type Resource<R> =
    <<<R as Runtime>::Server as ComputeServer>::Storage as ComputeStorage>::Resource;

/// A CubeCL runtime that this crate supports.
pub trait InnerRuntime: Reaches<Inner = Self> {
    /// Whether reads return, and so take, earlier launches' errors on their stream.
    #[doc(hidden)]
    const READS_TAKE_ERRORS: bool;

    /// Default buffers per fused kernel. Fusion's cuts decide rounding: no budget may change it.
    #[doc(hidden)]
    const FUSED_OPERANDS: u32;

    #[doc(hidden)]
    type CopyStreams: CopyStreams<Self::Server>;

    /// Orders later work of `waiting` after queued work of `other`, without blocking the host.
    #[doc(hidden)]
    fn order(server: &mut Self::Server, waiting: StreamId, other: StreamId) -> Result<(), ServerError>;

    #[doc(hidden)]
    fn address(resource: &Resource<Self>) -> Address;

    /// Copies all of `source`, which lives on `stream`, and waits.
    #[doc(hidden)]
    fn copy_out(
        server: &mut Self::Server,
        source: Handle,
        stream: StreamId,
        target: &mut [u8],
    ) -> Result<(), ServerError> {
        read_in_pieces(server, &source, stream, target)
    }

    /// The error of queued work, if known without waiting.
    #[doc(hidden)]
    fn stream_error(_server: &mut Self::Server, _stream: StreamId) -> Option<ServerError> {
        None
    }

    /// The error of the last launch. Waits for work only if the runtime does not keep it.
    #[doc(hidden)]
    fn launch_error(server: &mut Self::Server, stream: StreamId) -> Option<ServerError> {
        server.flush(stream).err()
    }

    /// The driver keeps up to `budget` of freed memory mapped. Called on the device's thread.
    #[doc(hidden)]
    fn keep_memory(_device: DeviceId, _budget: Limit) {}

    #[doc(hidden)]
    fn give_memory_back(_device: DeviceId) {}

    #[doc(hidden)]
    fn largest_buffer(_settings: &Settings, limits: &MemoryDeviceProperties) -> u64 {
        limits.max_page_size
    }

    /// Part of the key of autotune's cache, shared with the plain runtime. `Runtime::name` would start a second server.
    #[doc(hidden)]
    fn runtime_name(info: &<Self::Server as ComputeServer>::Info) -> &'static str;

    /// Without TF32, another kernel is fastest.
    #[doc(hidden)]
    const WITHOUT_TF32: &'static str;

    #[doc(hidden)]
    fn facts(device: &Self::Device) -> Result<DeviceFacts, OffloadError>;

    #[doc(hidden)]
    fn slabs() -> SlabSource {
        SlabSource::Heap
    }
}

/// A plain supported runtime, or its offloaded form.
#[doc(hidden)]
pub trait Reaches: Runtime + sealed::Sealed {
    type Inner: InnerRuntime<Device = Self::Device>;

    /// New device memory with the contents of `bytes`, which the runtime's client would copy. Returns them to be copied.
    fn create(
        _client: &ComputeClient<Self>,
        _device: &Self::Device,
        bytes: Bytes,
        _shape: &Shape,
        _elem_size: usize,
    ) -> Result<MemoryLayout, Bytes> {
        Err(bytes)
    }
}

pub(super) fn key<R: InnerRuntime>(device: DeviceId) -> DeviceKey {
    (TypeId::of::<R>(), [device.type_id, device.index_id])
}

pub(super) fn prepare<R: InnerRuntime>(device: &R::Device) -> Result<(), OffloadError> {
    registry::prepare(key::<R>(device.to_id()), || R::facts(device))
}
