//! The public functions, answered by the server of a device.

use super::runtime::{InnerRuntime, OffloadRuntime};
use super::server::OffloadServer;
use crate::backend::{Door, Offloadable};
use crate::config::OffloadConfig;
use crate::error::{Holder, OffloadError};
use crate::registry::{self, DeviceKey};
use crate::stats::{Stats, TierStats};
use burn_cubecl::{BoolElement, CubeBackend, FloatElement, IntElement};
use burn_fusion::Fusion;
use cubecl_common::device::{Device, DeviceId};
use cubecl_core::Runtime;
use std::any::TypeId;
use std::marker::PhantomData;

impl<R, F, I, B> Offloadable for CubeBackend<R, F, I, B>
where
    R: InnerRuntime,
    R::Device: burn_backend::DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    type Offloaded = CubeBackend<OffloadRuntime<R>, F, I, B>;
    type Door = CubeDoor<R>;
}

impl<R, F, I, B> Offloadable for Fusion<CubeBackend<R, F, I, B>>
where
    R: InnerRuntime,
    R::Device: burn_backend::DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    type Offloaded = Fusion<CubeBackend<OffloadRuntime<R>, F, I, B>>;
    type Door = CubeDoor<R>;
}

/// The door to devices of the CubeCL runtime `R`.
pub struct CubeDoor<R>(PhantomData<R>);

pub(super) fn key<R: InnerRuntime>(device: DeviceId) -> DeviceKey {
    let DeviceId { type_id, index_id } = device;
    (TypeId::of::<OffloadServer<R>>(), DeviceId::new(type_id, index_id))
}

/// Makes sure the device has settings before it starts, on the thread that wants it.
pub(super) fn prepare<R: InnerRuntime>(device: &R::Device) -> Result<(), OffloadError> {
    registry::prepare(key::<R>(device.to_id()), || R::facts(device))
}

/// Runs `task` on the device's own thread, after everything submitted before.
fn on_server<R: InnerRuntime, T: Send>(
    device: &R::Device,
    task: impl FnOnce(&mut OffloadServer<R>) -> T + Send,
) -> T {
    let _started = OffloadRuntime::<R>::client(device);
    cubecl_common::device_handle::DeviceHandle::<OffloadServer<R>>::new(device.to_id())
        .submit_blocking(task)
        .expect("the device's thread lives as long as the process")
}

impl<R: InnerRuntime> Door for CubeDoor<R> {
    type Device = R::Device;

    fn install(device: &R::Device, config: OffloadConfig) -> Result<(), OffloadError> {
        registry::install(key::<R>(device.to_id()), config, &R::facts(device)?)
    }

    fn stats(device: &R::Device) -> Stats {
        on_server::<R, _>(device, |server| server.stats())
    }

    fn largest_holders(device: &R::Device, count: usize) -> Vec<Holder> {
        on_server::<R, _>(device, move |server| server.largest_holders(count))
    }

    fn trim(device: &R::Device) {
        on_server::<R, _>(device, |server| {
            server.sweep();
            server.trim_device();
            server.settings.host.trim();
        });
    }

    fn mark_step(device: &R::Device) {
        on_server::<R, _>(device, |server| server.steps += 1);
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

impl<R: InnerRuntime> OffloadServer<R> {
    fn stats(&mut self) -> Stats {
        self.sweep();
        let (ledger, counters) = (self.pager.ledger(), self.pager.counters());
        let host = self.settings.host.usage();
        let budget = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
        Stats {
            device: TierStats {
                in_use: ledger.resident(),
                reserved: ledger.resident() + ledger.spare(),
                peak: ledger.resident_peak(),
                peak_reserved: ledger.reserved_peak(),
                budget: budget(ledger.budget()),
            },
            host: TierStats {
                in_use: ledger.host(),
                reserved: host.reserved,
                peak: ledger.host_peak(),
                peak_reserved: host.peak,
                budget: budget(host.limit),
            },
            launches: self.launches,
            steps: self.steps,
            allocations: self.allocations,
            evictions: counters.evictions,
            clean_drops: counters.clean_drops,
            restores: counters.restores,
            bytes_out: counters.bytes_out,
            bytes_in: counters.bytes_in,
            stall: self.stall,
            largest_launch: counters.largest_operation,
            over_budget: counters.over_budget,
            trims: counters.trims,
            device_refusals: counters.device_refusals,
            pageable_fallbacks: host.pageable_fallbacks,
            autotune_discards: self.profile.discards,
            failures: self.failures.count,
        }
    }
}
