//! The adapter for Flex, Burn's CPU backend, as a client of Burn's router (feature `router`).
//!
//! A *simulated device*: Flex computes in ordinary memory, which plays the device's. Storages are counted to the byte,
//! evicted, and loaded before their next use. It serves machines without a GPU, toy runs, and portable tests.
//!
//! # What moves
//!
//! The unit is the backend's *storage*. A Flex tensor is a view (shape, strides, offset) of an allocation that several
//! may share. Both decide bits of later results: strided matrices take other paths through products, and unshared
//! storages are updated in place. So a storage moves with all its tensors, and each keeps its view.
//!
//! # How an operation runs
//!
//! An operation holds the device's one lock throughout. The pager makes operands and room for outputs resident. Handles
//! enter a scratch runner, consumed ones moved, others cloned: reference counts are plain Flex's. After the run, the
//! outputs' addresses tell known storages from written ones.
//!
//! Operations run one at a time, never inside tasks of the backend's thread pool.
//!
//! Each operation has its own Burn `Runner`: its private handle table allows no eviction, and a panic poisons its lock
//! with every tensor inside. Element-wise operations and products in f32 bypass it (`loops`).
//!
//! Decisions never vary between runs (`decisions_under_every_budget_match_the_record`).
//!
//! # Counting
//!
//! Storages of at least `smallest_block` bytes count. Outputs' shapes and types give their bytes, so room is made
//! *before* an operation. Known views need none; updates in place request slightly too much. Memory beyond the shapes
//! gets room afterwards. Temporary memory does not count.
//!
//! # Refused operations
//!
//! Quantized data, custom operations and scatters other than additions are refused by name. Burn's router panics on
//! `q_*` methods and Fourier transforms, on the caller's thread, without harm to the device.

mod adoption;
mod channel;
mod client;
mod execution;
mod failures;
mod heap;
mod loops;
mod movement;
mod operation;
mod reading;
mod scratch;
mod state;
mod storage;
mod table;

use crate::backend::{Door, Managed, Offloadable, Pages, Spilling, sealed};
use crate::config::OffloadConfig;
use crate::error::OffloadError;
use crate::host_memory::{HostMemory, Site};
use crate::registry::{self, DeviceFacts, DeviceKey};
use crate::stats::Stats;
use crate::tiers::{Draft, HostPool};
use burn_backend::DeviceOps;
use burn_backend::tensor::FloatTensor;
use burn_flex::Flex;
use burn_router::{BackendRouter, get_client};
use channel::OffloadChannel;
use client::OffloadClient;
use pager::{Limit, Preference};
use state::State;
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

    fn with_paging<T: Send>(device: &B::Device, work: impl FnOnce(Pages<'_>) -> T + Send) -> T {
        work(Pages(&mut get_client::<OffloadChannel<B>>(device).state().paging))
    }

    fn stats(device: &B::Device) -> Stats {
        get_client::<OffloadChannel<B>>(device).state().paging.stats()
    }

    fn set_device_budget(device: &B::Device, budget: Limit) -> Limit {
        let client = get_client::<OffloadChannel<B>>(device);
        let State { paging, heap, .. } = &mut *client.state();
        paging.change_budget(heap, budget)
    }

    fn trim(device: &B::Device) {
        get_client::<OffloadChannel<B>>(device).state().paging.tiers().pool().trim();
    }

    fn host_memory(device: &B::Device) -> HostMemory {
        let client = get_client::<OffloadChannel<B>>(device);
        let below = client.state().paging.tiers().below();
        HostMemory::new(below, RouterSite(client))
    }

    #[cfg(feature = "test-util")]
    fn runtime_peaks(device: &B::Device) -> crate::RuntimePeaks {
        let found = get_client::<OffloadChannel<B>>(device).state().peak_found.unwrap_or(0);
        crate::RuntimePeaks { in_use: found, reserved: found }
    }
}

struct RouterSite<B: SharedStorage>(OffloadClient<B>);

impl<B: SharedStorage> Site for RouterSite<B> {
    fn draft(&self, _: &Arc<HostPool>, len: usize) -> Result<Option<Draft>, OffloadError> {
        // Locked until the memory is taken.
        let State { paging, heap, .. } = &mut *self.0.state();
        paging.draft(heap, len)
    }

    fn prefer_for_new(&self, preference: Preference) {
        self.0.state().paging.prefer_for_new(preference);
    }
}

fn key<D: 'static, T: DeviceOps>(device: &T) -> DeviceKey {
    let id = device.id();
    (TypeId::of::<D>(), [id.type_id, id.index_id])
}

fn facts<B: SharedStorage>(device: &B::Device) -> DeviceFacts {
    let name = format!("the CPU (simulated device {} of {})", device.id().index_id, B::name(device));
    DeviceFacts { simulated: true, ..DeviceFacts::unmeasured(name) }
}
