//! The router door: offloading for backends that run Burn's intermediate representation in this process.
//!
//! It is a *simulated device*. Flex computes in ordinary memory, so nothing here makes room on a graphics
//! card; what the door gives is the whole behaviour of one under a budget, anywhere: storages counted to the
//! byte, evicted for real (their bytes are copied to the host tier and freed), brought back before they are
//! used. It serves machines without a GPU, toy runs, and tests that must run everywhere.
//!
//! # What moves
//!
//! The unit is the backend's *storage*. A Flex tensor is a view (shape, strides, offset) of a counted
//! allocation that several tensors may share, and both matter for the bits of what is computed later: a
//! strided matrix takes another path through a matrix product than a contiguous one, and an operation updates
//! a storage in place if nobody else holds it. So a storage leaves with all its tensors at once, each keeping
//! its view, and comes back under all of them. Making tensors anew from data would be shorter, and would
//! change results.
//!
//! # How an operation runs
//!
//! Under the device's one lock, start to end, as in Burn's own runner: the pager makes its operands resident
//! and makes room for its outputs; their handles go into a scratch runner, consumed ones moved and others
//! cloned, which leaves reference counts as plain Flex sees them; the runner executes; outputs come out, and
//! their addresses tell whether they share a storage that lives on or are in one that was written.
//!
//! The lock is held while the backend computes, so operations of several threads take turns, and a program must
//! not run them from within tasks of the thread pool the backend computes on.
//!
//! Burn's `Runner` is not kept from one operation to the next. Its handle table is private: a storage could
//! not be evicted from it with its views, nor put back under the same tensor's name, and a panic in any
//! operation poisons its lock and with it every tensor on the device.
//!
//! Element-wise operations and products in f32 do not reach the runner: see `flex`.
//!
//! Decisions are equal to the last event in every run (`decisions_under_every_budget_match_the_record`).
//!
//! # What is counted
//!
//! Storages from `smallest_block` on. Room for outputs is made *before* an operation from the shapes and types
//! the representation gives, except where the output is known to be a view of the input; an update in place
//! therefore asks for a little more than it takes. Should a backend take memory its outputs' shapes do not
//! tell of, the room is made after the fact. Temporary memory within one operation of the backend is its own
//! and not counted.
//!
//! # What is refused
//!
//! Quantized data, custom operations and scattering other than by addition, by name, where they reach this
//! door. `q_*` methods and the Fourier transforms do not: Burn's router itself panics on them (`not
//! implemented`) before asking any client, on the caller's thread and without harm to the device.

mod adoption;
mod channel;
mod client;
mod execution;
mod failures;
mod flex;
mod movement;
mod operation;
mod reading;
mod report;
mod scratch;
mod state;
mod storage;
mod table;

use crate::backend::{Door, Managed, Offloadable, Spilling, sealed};
use crate::bytes::Budget;
use crate::config::OffloadConfig;
use crate::drive;
use crate::error::{Holder, OffloadError};
use crate::host_memory::{HostMemory, Site};
use crate::registry::{self, DeviceFacts, DeviceKey};
use crate::stats::Stats;
use crate::tiers::{Draft, HostPool};
use crate::timeline::Stretch;
use burn_backend::DeviceOps;
use burn_backend::tensor::FloatTensor;
use burn_flex::Flex;
use burn_router::{BackendRouter, get_client};
use channel::OffloadChannel;
use client::OffloadClient;
use pager::{Limit, Preference};
use std::any::TypeId;
use std::marker::PhantomData;
use std::sync::Arc;
use storage::SharedStorage;

impl Offloadable for Flex {
    type Offloaded = BackendRouter<OffloadChannel<Self>>;
}

impl sealed::Sealed for Flex {}
impl sealed::Sealed for BackendRouter<OffloadChannel<Flex>> {}
impl<B> sealed::Sealed for Simulated<B> {}

impl Managed for Flex {
    type Door = Simulated<Self>;
}

impl Managed for BackendRouter<OffloadChannel<Flex>> {
    type Door = Simulated<Flex>;

    const IN_PLACE: bool = true;

    fn in_place(
        tensors: Vec<FloatTensor<Self>>,
        work: &mut dyn FnMut(&mut [&mut [f32]]),
    ) -> Result<Vec<FloatTensor<Self>>, Vec<FloatTensor<Self>>> {
        client::in_place(tensors, work)
    }
}

impl Spilling for BackendRouter<OffloadChannel<Flex>> {
    fn prefer(tensor: FloatTensor<Self>, preference: Preference) {
        let client = tensor.client.clone();
        let tensor = tensor.into_ir();
        client.state().prefer(&tensor, preference);
    }
}

/// The door to the simulated devices of `B`.
pub struct Simulated<B>(PhantomData<fn() -> B>);

impl<B: SharedStorage> Door for Simulated<B> {
    type Device = B::Device;

    fn facts(device: &B::Device) -> Result<DeviceFacts, OffloadError> {
        Ok(facts::<B>(device))
    }

    fn install(device: &B::Device, config: OffloadConfig) -> Result<(), OffloadError> {
        registry::install(key::<Self, _>(device), config, &facts::<B>(device))
    }

    fn ready(device: &B::Device) -> Result<(), OffloadError> {
        registry::prepare(key::<Self, _>(device), || Ok(facts::<B>(device)))
    }

    fn stats(device: &B::Device) -> Stats {
        get_client::<OffloadChannel<B>>(device).state().stats()
    }

    fn largest_holders(device: &B::Device, count: usize) -> Vec<Holder> {
        get_client::<OffloadChannel<B>>(device).state().largest_holders(count)
    }

    fn reset_peaks(device: &B::Device) {
        let client = get_client::<OffloadChannel<B>>(device);
        let mut state = client.state();
        state.pager.reset_peaks();
        state.tiers.pool().reset_peaks();
    }

    fn set_device_budget(device: &B::Device, budget: Limit) -> Limit {
        drive::change_budget(&mut *get_client::<OffloadChannel<B>>(device).state(), budget)
    }

    fn trim(device: &B::Device) {
        get_client::<OffloadChannel<B>>(device).state().tiers.pool().trim();
    }

    fn host_memory(device: &B::Device) -> HostMemory {
        let client = get_client::<OffloadChannel<B>>(device);
        let below = client.state().tiers.below();
        HostMemory::new(below, RouterSite(client))
    }

    fn mark_step(device: &B::Device) {
        drive::mark_step(&mut *get_client::<OffloadChannel<B>>(device).state());
    }

    fn watch_step(device: &B::Device) {
        drive::watch_step(&mut *get_client::<OffloadChannel<B>>(device).state());
    }

    fn watched_step(device: &B::Device) -> Option<Vec<Stretch>> {
        drive::watched_step(&mut *get_client::<OffloadChannel<B>>(device).state())
    }

    #[cfg(feature = "test-util")]
    fn events(device: &B::Device) -> Vec<crate::Event> {
        get_client::<OffloadChannel<B>>(device).state().journal.drain()
    }

    #[cfg(feature = "test-util")]
    fn runtime_peaks(device: &B::Device) -> crate::RuntimePeaks {
        let found = get_client::<OffloadChannel<B>>(device).state().peak_found;
        crate::RuntimePeaks { in_use: found, reserved: found }
    }
}

/// A simulated device, whose memory is the heap's.
struct RouterSite<B: SharedStorage>(OffloadClient<B>);

impl<B: SharedStorage> Site for RouterSite<B> {
    fn draft(&self, _: &Arc<HostPool>, len: usize) -> Result<Option<Draft>, OffloadError> {
        // Locked until the room is taken: the program's operations would fill it again.
        drive::draft(&mut *self.0.state(), len)
    }

    fn prefer_for_new(&self, preference: Preference) {
        self.0.state().new_data = preference;
    }
}

fn key<D: 'static, T: DeviceOps>(device: &T) -> DeviceKey {
    (TypeId::of::<D>(), device.id())
}

fn facts<B: SharedStorage>(device: &B::Device) -> DeviceFacts {
    let name = format!("the CPU (simulated device {} of {})", device.id().index_id, B::name(device));
    DeviceFacts {
        name,
        model: None,
        memory: None,
        default_budget: Budget::Unlimited,
        lacking: None,
        simulated: true,
    }
}
