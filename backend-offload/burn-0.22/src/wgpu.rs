//! The program's calls, for devices of the wgpu runtime: Vulkan, Metal, WebGPU.

use std::any::TypeId;
use std::sync::OnceLock;

use backend_offload::adapter::{self, DeviceKey, pager::Limit};
use backend_offload::{DeviceFacts, OffloadConfig, OffloadError, Stats};
use cubecl::client::Client;
use cubecl::device::{AlreadyStarted, set_client_provider};
use cubecl::wgpu::{AutoCompiler, WgpuServer};
use cubecl_common::device::{Device as _, DeviceId};
use cubecl_common::device_handle::DeviceHandle;
use cubecl_runtime::device::WgpuDevice;
use cubecl_runtime::server::ServerStorage;

use crate::server::OffloadServer;

type Server = OffloadServer<WgpuServer<AutoCompiler>>;

/// Gives `device` a budget. Call it before the process's first tensor on any device of CubeCL.
///
/// All wgpu devices of the process are then wrapped; those without a configuration read `OFFLOAD_DEVICE_BUDGET` and its
/// neighbours.
///
/// # Errors
/// If a device has started, or a budget is invalid. wgpu reports no free memory, so a share is refused.
pub fn install(device: &WgpuDevice, config: OffloadConfig) -> Result<(), OffloadError> {
    static PROVIDED: OnceLock<Result<(), AlreadyStarted>> = OnceLock::new();
    let id = device.to_id();
    PROVIDED
        .get_or_init(|| set_client_provider(provide))
        .map_err(|AlreadyStarted| OffloadError::AlreadyStarted { device: facts(id).name })?;
    configure::<WgpuServer<AutoCompiler>>(id, config)
}

/// Gives a budget to the server `S` of a device, for a program that provides its clients itself.
///
/// # Errors
/// As [`install`].
pub fn configure<S: ServerStorage>(device: DeviceId, config: OffloadConfig) -> Result<(), OffloadError> {
    adapter::install(key::<S>(device), config, &facts(device))
}

fn provide(device: &cubecl::Device) -> Option<Client> {
    match device {
        cubecl::Device::Wgpu(device) => Some(Client::load::<Server>(device.to_id())),
        _ => None,
    }
}

/// Counters of `device` after the release of dropped buffers. Starts the device if needed.
pub fn stats(device: &WgpuDevice) -> Stats {
    on_server(device, Server::stats)
}

/// Marks the end of a training step: a hint for planning, never for results.
pub fn mark_step(device: &WgpuDevice) {
    on_server(device, Server::mark_step);
}

/// Changes the device budget during a run. `None` is no limit.
pub fn set_device_budget(device: &WgpuDevice, bytes: Option<u64>) {
    let limit = bytes.map_or(Limit::NONE, Limit::bytes);
    on_server(device, move |server| server.set_device_budget(limit));
}

/// Runs after all work submitted before.
fn on_server<T: Send>(device: &WgpuDevice, task: impl FnOnce(&mut Server) -> T + Send) -> T {
    DeviceHandle::<Server>::new(device.to_id())
        .submit_blocking(task)
        .unwrap_or_else(|error| panic!("the device's thread ended: {error:?}"))
}

pub(crate) fn key<S: 'static>(device: DeviceId) -> DeviceKey {
    (TypeId::of::<S>(), [device.type_id, device.index_id])
}

pub(crate) fn facts(device: DeviceId) -> DeviceFacts {
    DeviceFacts::unmeasured(format!("the wgpu device {device}"))
}
