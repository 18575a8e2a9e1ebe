//! The runtime that Burn sees: the inner one with this crate's server and compiler.

use super::inner::{InnerRuntime, prepare};
use super::precision::has_tf32;
use super::server::{InnerInfo, OffloadServer};
use super::visibility::RecordingCompiler;
use cubecl_common::device::DeviceId;
use cubecl_core::Runtime;
use cubecl_core::client::ComputeClient;
use cubecl_core::ir::TargetProperties;
use cubecl_core::zspace::{Shape, Strides};
use std::marker::PhantomData;

/// Runtime `R` whose memory spills to the host.
#[derive(Debug, Clone)]
pub struct OffloadRuntime<R>(PhantomData<R>);

impl<R: InnerRuntime> Runtime for OffloadRuntime<R> {
    type Compiler = RecordingCompiler<R::Compiler>;
    type Server = OffloadServer<R>;
    type Device = R::Device;

    fn client(device: &Self::Device) -> ComputeClient<Self> {
        if let Err(error) = prepare::<R>(device) {
            // Burn's signatures allow no `Result`; `ready` reports the error earlier. This is the user's thread.
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
