//! The public functions of the CubeCL adapter, run by the device's server.

use super::runtime::{InnerRuntime, OffloadRuntime};
use super::server::OffloadServer;
use crate::backend::{Door, sealed};
use crate::config::OffloadConfig;
use crate::drive;
use crate::error::{Holder, OffloadError};
use crate::host_memory::{HostMemory, Site};
use crate::registry::{self, DeviceFacts, DeviceKey};
use crate::report;
use crate::stats::Stats;
use crate::tiers::{Draft, HostPool};
use crate::timeline::Stretch;
use cubecl_common::device::{Device, DeviceId};
use cubecl_core::Runtime;
use cubecl_core::server::Binding;
use pager::{Limit, Preference};
use std::any::TypeId;
use std::marker::PhantomData;
use std::sync::Arc;

/// The adapter to devices of the CubeCL runtime `R`.
pub struct CubeDoor<R>(PhantomData<R>);

pub(super) fn key<R: InnerRuntime>(device: DeviceId) -> DeviceKey {
    let DeviceId { type_id, index_id } = device;
    (TypeId::of::<OffloadServer<R>>(), DeviceId::new(type_id, index_id))
}

/// Ensures that the device has settings before it starts, on the calling thread.
pub(super) fn prepare<R: InnerRuntime>(device: &R::Device) -> Result<(), OffloadError> {
    registry::prepare(key::<R>(device.to_id()), || R::facts(device))
}

/// Runs `task` on the device's own thread, after all work submitted before.
fn on_server<R: InnerRuntime, T: Send>(
    device: &R::Device,
    task: impl FnOnce(&mut OffloadServer<R>) -> T + Send,
) -> T {
    let _started = OffloadRuntime::<R>::client(device);
    cubecl_common::device_handle::DeviceHandle::<OffloadServer<R>>::new(device.to_id())
        .submit_blocking(task)
        .expect("the device's thread lives as long as the process")
}

/// Records the hint for the memory behind `binding`. Small buffers ignore it.
pub(super) fn prefer<R: InnerRuntime>(device: &R::Device, binding: &Binding, preference: Preference) {
    on_server::<R, _>(device, |server| {
        if let Some(id) = server.table.name(binding).block()
            && let Err(fault) = server.pager.prefer(id, preference)
        {
            server.report_fault(id, fault, "noting a hint");
        }
    });
}

impl<R: InnerRuntime> sealed::Sealed for CubeDoor<R> {}

impl<R: InnerRuntime> Door for CubeDoor<R> {
    type Device = R::Device;

    fn facts(device: &R::Device) -> Result<DeviceFacts, OffloadError> {
        R::facts(device)
    }

    fn install(device: &R::Device, config: OffloadConfig) -> Result<(), OffloadError> {
        registry::install(key::<R>(device.to_id()), config, &R::facts(device)?)
    }

    fn ready(device: &R::Device) -> Result<(), OffloadError> {
        prepare::<R>(device)
    }

    fn stats(device: &R::Device) -> Stats {
        on_server::<R, _>(device, OffloadServer::stats)
    }

    fn largest_holders(device: &R::Device, count: usize) -> Vec<Holder> {
        on_server::<R, _>(device, move |server| report::largest_holders(&server.pager, count))
    }

    fn reset_peaks(device: &R::Device) {
        on_server::<R, _>(device, |server| {
            server.pager.reset_peaks();
            server.tiers.pool().reset_peaks();
        });
    }

    fn set_device_budget(device: &R::Device, budget: Limit) -> Limit {
        on_server::<R, _>(device, move |server| {
            R::keep_memory(server.device, budget);
            drive::change_budget(server, budget)
        })
    }

    fn trim(device: &R::Device) {
        on_server::<R, _>(device, |server| {
            server.finish_copies();
            server.sweep();
            server.trim_device();
            R::give_memory_back(server.device);
            server.tiers.pool().trim();
        });
    }

    fn host_memory(device: &R::Device) -> HostMemory {
        let below = on_server::<R, _>(device, |server| server.tiers.below());
        HostMemory::new(below, CubeSite::<R>(device.clone()))
    }

    fn mark_step(device: &R::Device) {
        on_server::<R, _>(device, drive::mark_step);
    }

    fn watch_step(device: &R::Device) {
        on_server::<R, _>(device, drive::watch_step);
    }

    fn watched_step(device: &R::Device) -> Option<Vec<Stretch>> {
        on_server::<R, _>(device, drive::watched_step)
    }

    #[cfg(feature = "test-util")]
    fn events(device: &R::Device) -> Vec<crate::Event> {
        on_server::<R, _>(device, |server| server.journal.drain())
    }

    #[cfg(feature = "test-util")]
    fn runtime_peaks(device: &R::Device) -> crate::RuntimePeaks {
        on_server::<R, _>(device, |server| server.runtime_peaks)
    }
}

/// Runs on the device's own thread, where its context is current.
struct CubeSite<R: InnerRuntime>(R::Device);

impl<R: InnerRuntime> Site for CubeSite<R> {
    fn draft(&self, _: &Arc<HostPool>, len: usize) -> Result<Option<Draft>, OffloadError> {
        on_server::<R, _>(&self.0, |server| drive::draft(server, len))
    }

    fn give_back(&self, draft: Draft) {
        on_server::<R, _>(&self.0, |_| drop(draft));
    }

    fn prefer_for_new(&self, preference: Preference) {
        on_server::<R, _>(&self.0, |server| server.new_data = preference);
    }
}

impl<R: InnerRuntime> OffloadServer<R> {
    fn stats(&mut self) -> Stats {
        self.sweep();
        drive::complete_ended(self);
        Stats {
            autotune_discards: self.profile.discards,
            autotune_unmeasured: self.profile.unmeasured,
            ..report::stats(&self.pager, &self.tiers.below(), &self.counts)
        }
    }
}
