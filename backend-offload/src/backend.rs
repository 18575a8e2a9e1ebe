//! The public face: one type, and a few functions about a device.

use crate::bytes::Budget;
use crate::config::OffloadConfig;
use crate::error::{Holder, OffloadError};
use crate::host_memory::HostMemory;
use crate::registry::DeviceFacts;
use crate::stats::Stats;
use crate::timeline::Stretch;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_backend::{Backend, DType, Shape};
use pager::{Limit, Preference};

/// Backend `B` with its memory spilling to the host: `type B = Autodiff<Offload<Cuda>>`.
pub type Offload<B> = <B as Offloadable>::Offloaded;

/// A backend this crate has a door for.
///
/// Implemented for `CubeBackend` over any supported CubeCL runtime, with and without fusion (`Cuda`, `Wgpu`),
/// and with feature `router` for `Flex`.
pub trait Offloadable: Managed {
    /// The offloaded backend: same devices, same element types, same numbers.
    type Offloaded: Spilling<Device = Self::Device>;
}

/// A backend whose devices the functions of this crate reach: one that can be offloaded, named for its devices, the
/// offloaded one, or either with automatic differentiation. `stats::<Cuda>`, `stats::<Offload<Cuda>>` and
/// `stats::<Autodiff<Offload<Cuda>>>` are the same.
pub trait Managed: Backend + sealed::Sealed {
    #[doc(hidden)]
    type Door: Door<Device = Self::Device>;

    /// See [`works_in_place`].
    #[doc(hidden)]
    const IN_PLACE: bool = false;

    /// See [`in_place`].
    #[doc(hidden)]
    fn in_place(
        tensors: Vec<FloatTensor<Self>>,
        work: &mut dyn FnMut(&mut [&mut [f32]]),
    ) -> Result<Vec<FloatTensor<Self>>, Vec<FloatTensor<Self>>> {
        _ = work;
        Err(tensors)
    }

    /// The numbers that tiles of bytes stand for, by one kernel; `None` on a backend that has none for it.
    #[doc(hidden)]
    fn decode_tiles(
        _codes: IntTensor<Self>,
        _scales: FloatTensor<Self>,
        _decoding: &Decoding,
    ) -> Option<FloatTensor<Self>> {
        None
    }
}

/// How tiles of bytes become numbers. Codes are a byte each, in whole tiles; each tile has one scale in f32.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct Decoding {
    /// Numbers that share a scale, a multiple of four.
    pub tile: usize,
    /// Whether codes are floating-point numbers (e4m3) and not whole ones.
    pub floating: bool,
    /// Shape of the numbers.
    pub shape: Shape,
    /// Type of the numbers.
    pub kind: DType,
}

impl Decoding {
    /// Whether so many bytes of codes and so many scales are those of this shape.
    #[cfg(feature = "cube")]
    pub(crate) fn fits(&self, code_bytes: usize, scales: usize) -> bool {
        let tiles = self.shape.num_elements().div_ceil(self.tile);
        tiles > 0 && code_bytes == tiles * self.tile && scales == tiles
    }
}

/// An offloaded backend, with or without automatic differentiation: one whose tensors take hints.
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
    /// Keeps traits to this crate's own implementations, so that they can grow.
    pub trait Sealed {}
}

/// How this crate reaches into a running device. Not for use outside it.
#[doc(hidden)]
pub trait Door: sealed::Sealed {
    /// The device type.
    type Device;
    /// See [`probe`].
    fn facts(device: &Self::Device) -> Result<DeviceFacts, OffloadError>;
    /// See [`OffloadConfig::install`].
    fn install(device: &Self::Device, config: OffloadConfig) -> Result<(), OffloadError>;
    /// See [`ready`].
    fn ready(device: &Self::Device) -> Result<(), OffloadError>;
    /// See [`stats`].
    fn stats(device: &Self::Device) -> Stats;
    /// See [`largest_holders`].
    fn largest_holders(device: &Self::Device, count: usize) -> Vec<Holder>;
    /// See [`reset_peaks`].
    fn reset_peaks(device: &Self::Device);
    /// See [`set_device_budget`]. Returns the budget before.
    fn set_device_budget(device: &Self::Device, budget: Limit) -> Limit;
    /// See [`trim`].
    fn trim(device: &Self::Device);
    /// See [`host_memory`].
    fn host_memory(device: &Self::Device) -> HostMemory;
    /// See [`mark_step`].
    fn mark_step(device: &Self::Device);
    /// See [`watch_step`].
    fn watch_step(device: &Self::Device);
    /// See [`watched_step`].
    fn watched_step(device: &Self::Device) -> Option<Vec<Stretch>>;
    /// See [`events`].
    #[cfg(feature = "test-util")]
    fn events(_device: &Self::Device) -> Vec<crate::Event> {
        Vec::new()
    }
    /// See [`runtime_peaks`].
    #[cfg(feature = "test-util")]
    fn runtime_peaks(_device: &Self::Device) -> crate::RuntimePeaks {
        crate::RuntimePeaks::default()
    }
}

/// Name and memory of `device`, without starting it.
///
/// A CUDA driver tells free memory only to a process that has opened the device. The device is opened for the moment of the
/// question, which takes some hundred megabytes of its memory and gives them back; the calling thread's own CUDA context
/// is current again afterwards.
///
/// # Errors
/// If something the device needs (driver, compiler, headers) is missing.
pub fn probe<B: Managed>(device: &B::Device) -> Result<DeviceFacts, OffloadError> {
    B::Door::facts(device)
}

/// Makes sure that `device` can start, without starting it: its budgets are settled, from the environment if no
/// [`OffloadConfig`] was installed, and the driver, libraries and headers it needs are there.
///
/// Burn's signatures leave no room for an error, so the first tensor on a device that cannot start panics. After `ready`
/// or [`OffloadConfig::install`] has succeeded, it does not panic for anything that is missing.
///
/// # Errors
/// The error that the start would panic with.
pub fn ready<B: Managed>(device: &B::Device) -> Result<(), OffloadError> {
    B::Door::ready(device)
}

/// Counters of `device`, exact at the moment of the call: buffers that are not held any more are released first.
/// Starts the device if it has not started.
///
/// Fusion runs operations late, and drops tensors with them: synchronise first
/// ([`Backend::sync`](burn_backend::Backend::sync)) where the counters are to cover everything the program has asked for.
pub fn stats<B: Managed>(device: &B::Device) -> Stats {
    B::Door::stats(device)
}

/// The `count` blocks of `device` that hold most memory, largest first.
pub fn largest_holders<B: Managed>(device: &B::Device, count: usize) -> Vec<Holder> {
    B::Door::largest_holders(device, count)
}

/// Starts the peaks of [`Stats`] and its largest launch anew, from what is held at the moment.
pub fn reset_peaks<B: Managed>(device: &B::Device) {
    B::Door::reset_peaks(device);
}

/// Changes the device budget while the program runs. Blocks above a lower budget leave at once where they can, and at the
/// latest before the next operation that takes memory. A share is of the memory free at the moment.
///
/// # Errors
/// If the budget is invalid, or a share of memory whose size the device does not tell.
pub fn set_device_budget<B: Managed>(device: &B::Device, budget: Budget) -> Result<(), OffloadError> {
    replace_budget::<B>(device, budget).map(drop)
}

/// Runs `work` under another device budget, and restores the earlier budget afterwards, also if `work` panics.
///
/// # Errors
/// As [`set_device_budget`]; `work` has not run then.
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

/// Gives all unused memory back: spare device memory to the driver, idle host slabs to the machine.
pub fn trim<B: Managed>(device: &B::Device) {
    B::Door::trim(device);
}

/// The host tier of `device`, for memory of the program's own under the same budget. Starts the device if it has not started.
pub fn host_memory<B: Managed>(device: &B::Device) -> HostMemory {
    B::Door::host_memory(device)
}

/// Has `work` change the numbers of `tensors` where they lie, row by row as one slice each, and returns the tensors after it. An
/// operation like any other: all of them are on the device meanwhile, within its budget, and nothing else. One that somebody else
/// holds too, or whose numbers are not in rows, is copied before.
///
/// # Errors
/// The tensors as they were, where the device's memory is not this process's own, or one of them is not f32: an optimizer's many
/// passes are one on the CPU, and on a GPU are left to its kernels.
pub fn in_place<B: Managed>(
    tensors: Vec<FloatTensor<B>>,
    work: &mut dyn FnMut(&mut [&mut [f32]]),
) -> Result<Vec<FloatTensor<B>>, Vec<FloatTensor<B>>> {
    B::in_place(tensors, work)
}

/// Whether [`in_place`] does anything but return its tensors.
pub fn works_in_place<B: Managed>() -> bool {
    B::IN_PLACE
}

/// Tells that a training step ends here. A hint for planning; never needed for correct results.
pub fn mark_step<B: Managed>(device: &B::Device) {
    B::Door::mark_step(device);
}

/// Watches what `device` is asked for from here on, until [`watched_step`] takes it: its operations in at most 1,025 stretches,
/// however many they are. Each operation then looks at the clock once; where nothing is watched, none does.
pub fn watch_step<B: Managed>(device: &B::Device) {
    B::Door::watch_step(device);
}

/// The timeline since [`watch_step`], whose bytes are those by which the counters of [`stats`] have grown; `None` if nothing is
/// watched. Times are those at which the program asked for operations: on a GPU they run later.
pub fn watched_step<B: Managed>(device: &B::Device) -> Option<Vec<Stretch>> {
    B::Door::watched_step(device)
}

/// Takes the decisions recorded on `device` since the last call.
#[cfg(feature = "test-util")]
pub fn events<B: Managed>(device: &B::Device) -> Vec<crate::Event> {
    B::Door::events(device)
}

/// The most memory the runtime underneath reported after any launch, where
/// [`watch_runtime`](OffloadConfig::watch_runtime) asked it. Zero for a door without a runtime underneath.
#[cfg(feature = "test-util")]
pub fn runtime_peaks<B: Managed>(device: &B::Device) -> crate::RuntimePeaks {
    B::Door::runtime_peaks(device)
}
