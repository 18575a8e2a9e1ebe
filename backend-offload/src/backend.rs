//! The public face: one type, and a few functions about a device.

use crate::config::OffloadConfig;
use crate::error::{Holder, OffloadError};
use crate::registry::DeviceFacts;
use crate::stats::Stats;
use burn_backend::Backend;

/// Backend `B` with its memory spilling to the host: `type B = Autodiff<Offload<Cuda>>`.
pub type Offload<B> = <B as Offloadable>::Offloaded;

/// A backend this crate has a door for.
///
/// Implemented for `CubeBackend` over any supported CubeCL runtime, with and without fusion (`Cuda`, `Wgpu`),
/// and with feature `router` for `Flex`.
pub trait Offloadable: Backend {
    /// The offloaded backend: same devices, same element types, same numbers.
    type Offloaded: Backend<Device = Self::Device>;
    #[doc(hidden)]
    type Door: Door<Device = Self::Device>;
}

/// How this crate reaches into a running device. Not for use outside it.
#[doc(hidden)]
pub trait Door {
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
    /// See [`trim`].
    fn trim(device: &Self::Device);
    /// See [`mark_step`].
    fn mark_step(device: &Self::Device);
    /// See [`events`].
    #[cfg(feature = "test-util")]
    fn events(device: &Self::Device) -> Vec<crate::Event>;
    /// See [`runtime_peaks`].
    #[cfg(feature = "test-util")]
    fn runtime_peaks(_device: &Self::Device) -> crate::RuntimePeaks {
        crate::RuntimePeaks::default()
    }
}

/// Name and memory of `device`, without starting it.
///
/// A CUDA driver tells free memory only to those that have opened the device. It is opened for the moment of the
/// question: some hundred megabytes of its memory are taken and given back, and the calling thread's own CUDA context
/// is current again afterwards.
///
/// # Errors
/// If something the device needs (driver, compiler, headers) is missing.
pub fn probe<B: Offloadable>(device: &B::Device) -> Result<DeviceFacts, OffloadError> {
    B::Door::facts(device)
}

/// Makes sure that `device` can start, without starting it: its budgets are settled, from the environment if no
/// [`OffloadConfig`] was installed, and the driver, libraries and headers it needs are there.
///
/// Burn's signatures leave no room for an error, so the first tensor on a device that cannot start panics. After
/// this, or a successful [`OffloadConfig::install`], it does not for anything that is missing.
///
/// # Errors
/// The one that the start would panic with.
pub fn ready<B: Offloadable>(device: &B::Device) -> Result<(), OffloadError> {
    B::Door::ready(device)
}

/// Counters of `device`, exact at the moment of the call: buffers nobody holds any more are released first.
/// Starts the device if nothing has.
pub fn stats<B: Offloadable>(device: &B::Device) -> Stats {
    B::Door::stats(device)
}

/// The `count` blocks of `device` that hold most memory, largest first.
pub fn largest_holders<B: Offloadable>(device: &B::Device, count: usize) -> Vec<Holder> {
    B::Door::largest_holders(device, count)
}

/// Gives everything unused back: spare device memory to the driver, idle host slabs to the machine.
pub fn trim<B: Offloadable>(device: &B::Device) {
    B::Door::trim(device);
}

/// Tells that a training step ends here. A hint for planning; never needed for correct results.
pub fn mark_step<B: Offloadable>(device: &B::Device) {
    B::Door::mark_step(device);
}

/// Takes the decisions recorded on `device` since the last call.
#[cfg(feature = "test-util")]
pub fn events<B: Offloadable>(device: &B::Device) -> Vec<crate::Event> {
    B::Door::events(device)
}

/// The most memory the runtime underneath reported after any launch, where
/// [`watch_runtime`](OffloadConfig::watch_runtime) asked it. Zero for a door without a runtime underneath.
#[cfg(feature = "test-util")]
pub fn runtime_peaks<B: Offloadable>(device: &B::Device) -> crate::RuntimePeaks {
    B::Door::runtime_peaks(device)
}
