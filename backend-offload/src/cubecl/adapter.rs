//! The CubeCL adapter's public functions, run on the device's thread.

use super::inner::{InnerRuntime, key, prepare};
use super::runtime::OffloadRuntime;
use super::server::OffloadServer;
use crate::backend::{Door, Pages, sealed};
use crate::config::OffloadConfig;
use crate::error::OffloadError;
use crate::host_memory::{HostMemory, Site};
use crate::registry::{self, DeviceFacts};
use crate::stats::Stats;
use crate::tiers::{Draft, HostPool};
use cubecl_common::device::Device;
use cubecl_common::device_handle::DeviceHandle;
use cubecl_core::Runtime;
use cubecl_core::server::Binding;
use pager::{Limit, Preference};
use std::marker::PhantomData;
use std::sync::Arc;

/// The adapter to devices of the CubeCL runtime `R`.
pub struct CubeDoor<R>(PhantomData<R>);

/// Runs after all work submitted before.
fn on_server<R: InnerRuntime, T: Send>(
    device: &R::Device,
    task: impl FnOnce(&mut OffloadServer<R>) -> T + Send,
) -> T {
    let _started = OffloadRuntime::<R>::client(device);
    DeviceHandle::<OffloadServer<R>>::new(device.to_id())
        .submit_blocking(task)
        .expect("the device's thread lives as long as the process")
}

/// Small buffers ignore the hint.
pub(super) fn prefer<R: InnerRuntime>(device: &R::Device, binding: &Binding, preference: Preference) {
    on_server::<R, _>(device, |server| {
        if let Some(id) = server.device.buffers.name(binding).block()
            && let Err(fault) = server.paging.prefer(id, preference)
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

    fn with_paging<T: Send>(device: &R::Device, work: impl FnOnce(Pages<'_>) -> T + Send) -> T {
        on_server::<R, _>(device, |server| work(Pages(&mut server.paging)))
    }

    fn stats(device: &R::Device) -> Stats {
        on_server::<R, _>(device, OffloadServer::stats)
    }

    fn set_device_budget(device: &R::Device, budget: Limit) -> Limit {
        on_server::<R, _>(device, move |server| {
            R::keep_memory(server.device.id, budget);
            server.paging.change_budget(&mut server.device, budget)
        })
    }

    fn trim(device: &R::Device) {
        on_server::<R, _>(device, |server| {
            server.finish_copies();
            server.sweep();
            server.trim_device();
            R::give_memory_back(server.device.id);
            server.paging.tiers().pool().trim();
        });
    }

    fn host_memory(device: &R::Device) -> HostMemory {
        let below = on_server::<R, _>(device, |server| server.paging.tiers().below());
        HostMemory::new(below, CubeSite::<R>(device.clone()))
    }

    #[cfg(feature = "test-util")]
    fn runtime_peaks(device: &R::Device) -> crate::RuntimePeaks {
        on_server::<R, _>(device, |server| server.runtime_peaks)
    }
}

struct CubeSite<R: InnerRuntime>(R::Device);

impl<R: InnerRuntime> Site for CubeSite<R> {
    /// Idle memory needs no turn of the device's thread, which may wait for a copy. Locking new memory needs its
    /// context.
    fn draft(&self, pool: &Arc<HostPool>, len: usize) -> Result<Option<Draft>, OffloadError> {
        match pool.idle(len, R::slabs()) {
            Some(draft) => Ok(Some(draft)),
            None => on_server::<R, _>(&self.0, |server| server.paging.draft(&mut server.device, len)),
        }
    }

    fn prefer_for_new(&self, preference: Preference) {
        DeviceHandle::<OffloadServer<R>>::new(self.0.to_id())
            .submit(move |server| server.paging.prefer_for_new(preference));
    }
}

impl<R: InnerRuntime> OffloadServer<R> {
    fn stats(&mut self) -> Stats {
        self.sweep();
        self.paging.complete_ended(&mut self.device);
        Stats {
            autotune_discards: self.device.profile.discards(),
            autotune_unmeasured: self.device.profile.unmeasured(),
            ..self.paging.stats()
        }
    }
}
