//! The public interface: one backend type, and functions on a device.

use crate::bytes::Budget;
use crate::config::OffloadConfig;
use crate::error::{Holder, OffloadError};
use crate::host_memory::HostMemory;
use crate::paging::Paging;
use crate::registry::DeviceFacts;
use crate::stats::Stats;
use crate::timeline::Stretch;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_backend::tensor::{Device, FloatTensor, IntTensor};
use burn_backend::{Backend, DType, Shape, TensorData};
use pager::{Limit, Preference};

/// Backend `B` whose memory spills: `type B = Autodiff<Offload<Cuda>>`.
pub type Offload<B> = <B as Offloadable>::Offloaded;

/// A backend to offload: `CubeBackend` over a supported CubeCL runtime, with or without fusion (`Cuda`, `Wgpu`), and
/// `Flex` with feature `router`.
pub trait Offloadable: Managed {
    /// Same devices, types and numbers.
    type Offloaded: Spilling<Device = Self::Device>;
}

/// A backend whose device this crate's functions accept: plain, offloaded, or either with autodiff. `stats::<Cuda>`,
/// `stats::<Offload<Cuda>>` and `stats::<Autodiff<Offload<Cuda>>>` are equal.
pub trait Managed: Backend + sealed::Sealed {
    #[doc(hidden)]
    type Door: Door<Device = Self::Device>;

    #[doc(hidden)]
    const IN_PLACE: bool = false;

    #[doc(hidden)]
    fn in_place(
        tensors: Vec<FloatTensor<Self>>,
        work: &mut dyn FnMut(&mut [&mut [f32]]),
    ) -> Result<Vec<FloatTensor<Self>>, Vec<FloatTensor<Self>>> {
        _ = work;
        Err(tensors)
    }

    /// `float_from_data`; an offloaded CubeCL backend does not copy the bytes, as CubeCL's client would.
    #[doc(hidden)]
    fn float_without_copy(data: TensorData, device: &Device<Self>) -> FloatTensor<Self> {
        Self::float_from_data(data, device)
    }

    /// [`float_without_copy`](Self::float_without_copy) for integers.
    #[doc(hidden)]
    fn int_without_copy(data: TensorData, device: &Device<Self>) -> IntTensor<Self> {
        Self::int_from_data(data, device)
    }

    /// `None` without such a kernel.
    #[doc(hidden)]
    fn decode_tiles(
        _codes: IntTensor<Self>,
        _scales: FloatTensor<Self>,
        _decoding: &Decoding,
    ) -> Option<FloatTensor<Self>> {
        None
    }
}

/// The encoding of tiles: one byte per code, one f32 scale per whole tile.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct Decoding {
    /// Values per scale, a multiple of four.
    pub tile: usize,
    /// Whether codes are floats (e4m3) instead of integers.
    pub floating: bool,
    pub shape: Shape,
    pub kind: DType,
}

impl Decoding {
    #[cfg(feature = "cube")]
    pub(crate) fn fits(&self, code_bytes: usize, scales: usize) -> bool {
        let tiles = self.shape.num_elements().div_ceil(self.tile);
        tiles > 0 && code_bytes == tiles * self.tile && scales == tiles
    }
}

/// An offloaded backend, with or without autodiff. Its tensors take hints.
pub trait Spilling: Managed {
    #[doc(hidden)]
    fn prefer(tensor: FloatTensor<Self>, preference: Preference);
}

impl<B: Managed, C: CheckpointStrategy> sealed::Sealed for Autodiff<B, C> {}

impl<B: Managed, C: CheckpointStrategy> Managed for Autodiff<B, C> {
    type Door = B::Door;
}

impl<B: Spilling, C: CheckpointStrategy> Spilling for Autodiff<B, C> {
    fn prefer(tensor: FloatTensor<Self>, preference: Preference) {
        B::prefer(tensor.primitive, preference);
    }
}

pub(crate) mod sealed {
    /// Seals public traits, so that they can grow.
    pub trait Sealed {}
}

/// A device's paging, which is no part of the public interface.
#[doc(hidden)]
pub struct Pages<'p>(pub(crate) &'p mut Paging);

#[doc(hidden)]
pub trait Door: sealed::Sealed {
    type Device;
    fn facts(device: &Self::Device) -> Result<DeviceFacts, OffloadError>;
    fn install(device: &Self::Device, config: OffloadConfig) -> Result<(), OffloadError>;
    fn ready(device: &Self::Device) -> Result<(), OffloadError>;
    /// Runs `work` after all operations submitted before.
    fn with_paging<T: Send>(device: &Self::Device, work: impl FnOnce(Pages<'_>) -> T + Send) -> T;
    fn stats(device: &Self::Device) -> Stats;
    /// Returns the previous budget.
    fn set_device_budget(device: &Self::Device, budget: Limit) -> Limit;
    fn trim(device: &Self::Device);
    fn host_memory(device: &Self::Device) -> HostMemory;
    #[cfg(feature = "test-util")]
    fn runtime_peaks(_device: &Self::Device) -> crate::RuntimePeaks {
        crate::RuntimePeaks::default()
    }
}

impl OffloadConfig {
    /// Applies the configuration to `device`.
    ///
    /// # Errors
    /// If the device has started, a budget is invalid or unresolved, or a component (driver, compiler, headers) is
    /// missing.
    pub fn install<B: Managed>(self, device: &B::Device) -> Result<(), OffloadError> {
        B::Door::install(device, self)
    }
}

/// Name and memory of `device`, without starting it.
///
/// A CUDA driver reports free memory only of an open device. The call opens it for a moment, which takes some hundred
/// megabytes, and restores the thread's CUDA context.
///
/// # Errors
/// If a component (driver, compiler, headers) is missing.
pub fn probe<B: Managed>(device: &B::Device) -> Result<DeviceFacts, OffloadError> {
    B::Door::facts(device)
}

/// Checks that `device` can start, without starting it: its budgets, driver, libraries and headers.
///
/// Burn's signatures return no error: the first tensor on a device that cannot start panics. Success rules out missing
/// components.
///
/// # Errors
/// The error of that panic.
pub fn ready<B: Managed>(device: &B::Device) -> Result<(), OffloadError> {
    B::Door::ready(device)
}

/// Counters of `device` after the release of dropped buffers. Starts the device if needed.
///
/// Fusion delays operations and drops: to count all, synchronise first
/// ([`Backend::sync`](burn_backend::Backend::sync)).
pub fn stats<B: Managed>(device: &B::Device) -> Stats {
    B::Door::stats(device)
}

/// The `count` largest blocks of `device`, largest first.
pub fn largest_holders<B: Managed>(device: &B::Device, count: usize) -> Vec<Holder> {
    B::Door::with_paging(device, |pages| pages.0.largest_holders(count))
}

/// Resets the peaks of [`Stats`] and its largest launch.
pub fn reset_peaks<B: Managed>(device: &B::Device) {
    B::Door::with_paging(device, |pages| pages.0.reset_peaks());
}

/// Changes the device budget during a run. Excess blocks are evicted at once if possible, else before an operation
/// takes memory. A share is of the memory free at the call.
///
/// # Errors
/// If the budget is invalid, or a share of unreported memory.
pub fn set_device_budget<B: Managed>(device: &B::Device, budget: Budget) -> Result<(), OffloadError> {
    replace_budget::<B>(device, budget).map(drop)
}

/// Runs `work` under another device budget, then restores the previous one, even after a panic.
///
/// # Errors
/// As [`set_device_budget`], before `work`.
pub fn with_device_budget<B: Managed, T>(
    device: &B::Device,
    budget: Budget,
    work: impl FnOnce() -> T,
) -> Result<T, OffloadError> {
    struct Before<'a, B: Managed>(&'a B::Device, Limit);
    impl<B: Managed> Drop for Before<'_, B> {
        fn drop(&mut self) {
            B::Door::set_device_budget(self.0, self.1);
        }
    }
    let _before = Before::<B>(device, replace_budget::<B>(device, budget)?);
    Ok(work())
}

fn replace_budget<B: Managed>(device: &B::Device, budget: Budget) -> Result<Limit, OffloadError> {
    let facts = B::Door::facts(device)?;
    let limit = crate::registry::resolved(budget, &facts)?;
    Ok(B::Door::set_device_budget(device, limit))
}

/// Returns spare device memory to the driver and idle host slabs to the machine.
pub fn trim<B: Managed>(device: &B::Device) {
    B::Door::trim(device);
}

/// The host tier of `device`, for the program's own buffers under its budget. Starts the device if needed.
pub fn host_memory<B: Managed>(device: &B::Device) -> HostMemory {
    B::Door::host_memory(device)
}

/// Lets `work` change `tensors` in place, each as one row-major slice. All must be on the device at once. A tensor that
/// shares memory or is not row-major is copied first. On the CPU, an optimizer's many passes become one.
///
/// # Errors
/// The unchanged tensors, if one is not f32 or the device's memory is not this process's.
pub fn in_place<B: Managed>(
    tensors: Vec<FloatTensor<B>>,
    work: &mut dyn FnMut(&mut [&mut [f32]]),
) -> Result<Vec<FloatTensor<B>>, Vec<FloatTensor<B>>> {
    B::in_place(tensors, work)
}

/// Whether [`in_place`] can change tensors of this backend.
pub fn works_in_place<B: Managed>() -> bool {
    B::IN_PLACE
}

/// Marks the end of a training step: a hint for planning, never for results.
pub fn mark_step<B: Managed>(device: &B::Device) {
    B::Door::with_paging(device, |pages| pages.0.mark_step());
}

/// Records operations until [`watched_step`], in at most 1,025 stretches. Each operation reads the clock once.
pub fn watch_step<B: Managed>(device: &B::Device) {
    B::Door::with_paging(device, |pages| pages.0.watch_step());
}

/// The timeline since [`watch_step`]; `None` without one. Its bytes are the growth of [`stats`]' counters. Times are of
/// requests; a GPU runs operations later.
pub fn watched_step<B: Managed>(device: &B::Device) -> Option<Vec<Stretch>> {
    B::Door::with_paging(device, |pages| pages.0.watched_step())
}

/// Takes the decisions recorded on `device` since the last call.
#[cfg(feature = "test-util")]
pub fn events<B: Managed>(device: &B::Device) -> Vec<crate::Event> {
    B::Door::with_paging(device, |pages| pages.0.events())
}

/// The inner runtime's maximum memory after a launch, with [`watch_runtime`](OffloadConfig::watch_runtime). Zero for an
/// adapter without an inner runtime.
#[cfg(feature = "test-util")]
pub fn runtime_peaks<B: Managed>(device: &B::Device) -> crate::RuntimePeaks {
    B::Door::runtime_peaks(device)
}
