//! The CubeCL runtime that Burn sees: the inner runtime with this crate's server and compiler.

use super::adapter::prepare;
use super::backends::Reaches;
use super::copy_streams::CopyStreams;
use super::failures::Address;
use super::precision::has_tf32;
use super::server::{InnerInfo, OffloadServer};
use super::transfer::read_in_pieces;
use super::visibility::RecordingCompiler;
use crate::error::OffloadError;
use crate::registry::{DeviceFacts, Settings};
use crate::tiers::SlabSource;
use cubecl_common::device::DeviceId;
use cubecl_common::stream_id::StreamId;
use cubecl_core::Runtime;
use cubecl_core::client::ComputeClient;
use cubecl_core::ir::{MemoryDeviceProperties, TargetProperties};
use cubecl_core::server::{ComputeServer, Handle, ServerError};
use cubecl_core::zspace::{Shape, Strides};
use cubecl_runtime::storage::ComputeStorage;
use pager::Limit;
use std::marker::PhantomData;

pub(super) type Resource<R> =
    <<<R as Runtime>::Server as ComputeServer>::Storage as ComputeStorage>::Resource;

/// A CubeCL runtime that this crate supports.
#[expect(private_interfaces, reason = "the trait is sealed: its methods are for this crate")]
pub trait InnerRuntime: Reaches<Inner = Self> {
    /// Whether a read returns, and so takes, the errors of earlier launches on its stream.
    #[doc(hidden)]
    const READS_TAKE_ERRORS: bool;

    /// Default limit of buffers in one fused kernel. The places where fusion cuts decide how values round, so the limit
    /// depends only on the runtime, never on a budget.
    #[doc(hidden)]
    const FUSED_OPERANDS: u32;

    /// Copies in parallel with the device's work.
    #[doc(hidden)]
    type CopyStreams: CopyStreams<Self::Server>;

    /// Orders all later work of `waiting` after the present work of `other`, without blocking the host.
    #[doc(hidden)]
    fn order(server: &mut Self::Server, waiting: StreamId, other: StreamId) -> Result<(), ServerError>;

    /// A buffer's address.
    #[doc(hidden)]
    fn address(resource: &Resource<Self>) -> Address;

    /// Copies all of `source`, which lives on `stream`, into `target` and waits for the copy.
    #[doc(hidden)]
    fn copy_out(
        server: &mut Self::Server,
        source: Handle,
        stream: StreamId,
        target: &mut [u8],
    ) -> Result<(), ServerError> {
        read_in_pieces(server, &source, stream, target)
    }

    /// Takes the error of work queued on `stream`, if the runtime knows it without waiting.
    #[doc(hidden)]
    fn stream_error(_server: &mut Self::Server, _stream: StreamId) -> Option<ServerError> {
        None
    }

    /// Makes the driver keep up to `budget` of freed memory for this process, so that reuse needs no new mapping.
    /// Called on the device's own thread.
    #[doc(hidden)]
    fn keep_memory(_device: DeviceId, _budget: Limit) {}

    /// Makes the driver return unused memory to other processes, after all work has ended.
    #[doc(hidden)]
    fn give_memory_back(_device: DeviceId) {}

    /// Bytes of the largest buffer that the device can use.
    #[doc(hidden)]
    fn largest_buffer(_settings: &Settings, limits: &MemoryDeviceProperties) -> u64 {
        limits.max_page_size
    }

    /// The inner runtime's name. `Runtime::name` needs a client, which would start a second server. The name is part of
    /// the autotune cache's key, so that the cache is shared with the plain runtime.
    #[doc(hidden)]
    fn runtime_name(info: &<Self::Server as ComputeServer>::Info) -> &'static str;

    /// The runtime's name if TF32 is off: another kernel is fastest then.
    #[doc(hidden)]
    const WITHOUT_TF32: &'static str;

    /// Facts about a device before its start. An error names a missing component.
    #[doc(hidden)]
    fn facts(device: &Self::Device) -> Result<DeviceFacts, OffloadError>;

    /// The best memory for host copies.
    #[doc(hidden)]
    fn slabs() -> SlabSource {
        SlabSource::Heap
    }
}

/// The runtime `R` whose memory spills to the host.
#[derive(Debug, Clone)]
pub struct OffloadRuntime<R>(PhantomData<R>);

impl<R: InnerRuntime> Runtime for OffloadRuntime<R> {
    type Compiler = RecordingCompiler<R::Compiler>;
    type Server = OffloadServer<R>;
    type Device = R::Device;

    fn client(device: &Self::Device) -> ComputeClient<Self> {
        if let Err(error) = prepare::<R>(device) {
            // Burn's signatures allow no `Result` here, and this is the user's thread. `ready` reports the error in
            // advance.
            panic!("{error}");
        }
        ComputeClient::load(device)
    }

    fn name(client: &ComputeClient<Self>) -> &'static str {
        let theirs = &client.info().0;
        if has_tf32(&theirs.properties.features) && !has_tf32(&client.properties().features) {
            return R::WITHOUT_TF32;
        }
        R::runtime_name(&theirs.info)
    }

    fn require_array_lengths() -> bool {
        R::require_array_lengths()
    }

    fn max_cube_count() -> (u32, u32, u32) {
        R::max_cube_count()
    }

    fn can_read_tensor(shape: &Shape, strides: &Strides) -> bool {
        R::can_read_tensor(shape, strides)
    }

    fn target_properties() -> TargetProperties {
        R::target_properties()
    }

    fn enumerate_devices(type_id: u16, info: &InnerInfo<R::Server>) -> Vec<DeviceId> {
        R::enumerate_devices(type_id, &info.0.info)
    }

    fn enumerate_all_devices(info: &InnerInfo<R::Server>) -> Vec<DeviceId> {
        R::enumerate_all_devices(&info.0.info)
    }
}
