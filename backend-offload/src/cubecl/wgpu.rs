//! Vulkan, Metal, WebGPU: facts that the `wgpu` runtime does not report.

use super::failures::Address;
use super::in_line::InLine;
use super::inner::{InnerRuntime, Reaches};
use crate::backend::sealed;
use crate::error::OffloadError;
use crate::registry::DeviceFacts;
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{ComputeServer, ServerError};
use cubecl_wgpu::{WgpuDevice, WgpuResource, WgpuRuntime};
use std::hash::{DefaultHasher, Hash, Hasher};

impl sealed::Sealed for WgpuRuntime {}

impl Reaches for WgpuRuntime {
    type Inner = Self;
}

impl InnerRuntime for WgpuRuntime {
    const READS_TAKE_ERRORS: bool = false;
    const FUSED_OPERANDS: u32 = 8;
    const WITHOUT_TF32: &'static str = "wgpu<f32>";

    type CopyStreams = InLine;

    fn order(server: &mut Self::Server, _waiting: StreamId, other: StreamId) -> Result<(), ServerError> {
        // One queue serves all streams, in flush order.
        server.flush(other)
    }

    fn address(resource: &WgpuResource) -> Address {
        let mut hasher = DefaultHasher::new();
        resource.buffer.hash(&mut hasher);
        (hasher.finish(), resource.offset)
    }

    fn runtime_name(info: &<Self::Server as ComputeServer>::Info) -> &'static str {
        // As `WgpuRuntime::name`, whose type would require wgpu.
        match format!("{info:?}").as_str() {
            "Vulkan" if cfg!(feature = "vulkan") => "wgpu<spirv>",
            "Metal" if cfg!(feature = "metal") => "wgpu<msl>",
            _ => "wgpu<wgsl>",
        }
    }

    fn facts(device: &WgpuDevice) -> Result<DeviceFacts, OffloadError> {
        Ok(DeviceFacts::unmeasured(format!("the wgpu device {device:?}")))
    }
}
