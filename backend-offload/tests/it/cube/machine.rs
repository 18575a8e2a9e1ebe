//! This suite's machines: a Vulkan device, and CUDA's stand-in under a schedule.

use super::children;
use crate::child::{Child, Facts, Report};
use crate::folders::{LockedFolder, SETTINGS};
use backend_offload::{InnerRuntime, Offloadable};
use burn::tensor::backend::{Backend, DeviceOps};
use burn_cubecl::CubeBackend;
use burn_fusion::Fusion;
use cubecl_core::Runtime;
use std::path::PathBuf;

#[cfg(feature = "wgpu")]
use cubecl_wgpu::{WgpuDevice, WgpuRuntime};
#[cfg(feature = "wgpu")]
use std::sync::{Mutex, OnceLock, PoisonError};
#[cfg(feature = "wgpu")]
use suite::Need;

#[cfg(feature = "cuda")]
use crate::stand_in::{self, Schedule, Schedules};
#[cfg(feature = "cuda")]
use cubecl_cuda::{CudaDevice, CudaRuntime};

pub trait Target: 'static {
    type Device: DeviceOps;
    type Runtime: InnerRuntime + Runtime<Device = Self::Device>;
    type Plain: Offloadable<Device = Self::Device, Offloaded: Backend<Device = Self::Device>>;
    fn devices() -> [Self::Device; 2];
    fn device() -> Self::Device {
        Self::devices()[0].clone()
    }
}

#[cfg(feature = "wgpu")]
pub struct Vulkan;

#[cfg(feature = "wgpu")]
impl Target for Vulkan {
    type Device = WgpuDevice;
    type Runtime = WgpuRuntime;
    type Plain = Fusion<CubeBackend<WgpuRuntime, f32, i32, u32>>;
    fn devices() -> [WgpuDevice; 2] {
        // Two names for the only software device.
        [WgpuDevice::default(), WgpuDevice::Cpu]
    }
}

#[cfg(feature = "cuda")]
pub struct Cuda;

#[cfg(feature = "cuda")]
impl Target for Cuda {
    type Device = CudaDevice;
    type Runtime = CudaRuntime;
    type Plain = Fusion<CubeBackend<CudaRuntime, f32, i32, u8>>;
    fn devices() -> [CudaDevice; 2] {
        [CudaDevice::new(0), CudaDevice::new(1)]
    }
}

children! { "cube/present" => present }

fn present<T: Target>(_: &Facts) -> Facts {
    let found = std::panic::catch_unwind(|| {
        let client = <T::Runtime as Runtime>::client(&T::device());
        format!("{:?}", client.info())
    });
    Facts::default().with("found", found.unwrap_or_default())
}

#[derive(Debug, Clone)]
pub enum Machine {
    #[cfg(feature = "wgpu")]
    Vulkan { folder: PathBuf, paranoid: bool },
    #[cfg(feature = "cuda")]
    StandIn { schedule: Schedule, folder: PathBuf },
}

impl Machine {
    /// Tests share a folder: one process runs at a time.
    #[cfg(feature = "wgpu")]
    pub fn vulkan() -> Vec<Self> {
        static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let folder = VULKAN.emptied("all", SETTINGS);
            let machine = Self::Vulkan { folder: folder.clone(), paranoid: false };
            let present = machine.run(machine.child("cube/present")).text("found") == "Vulkan";
            present.then_some(folder)
        });
        let found = Need::Vulkan.found(found.as_ref().ok_or("this machine has no Vulkan device"));
        let settings = suite::size().pick(&[false][..], &[false], &[false, true]);
        let machine = |folder: &PathBuf| {
            let folder = folder.clone();
            settings.iter().map(move |paranoid| Self::Vulkan { folder: folder.clone(), paranoid: *paranoid })
        };
        found.into_iter().flat_map(machine).collect()
    }

    #[cfg(feature = "cuda")]
    pub fn stand_in(test: &str, schedules: Schedules) -> Vec<Self> {
        if !stand_in::is_available() {
            return Vec::new();
        }
        let folder = STAND_IN.within(test, SETTINGS);
        let schedules = schedules.list().into_iter();
        schedules.map(|schedule| Self::StandIn { schedule, folder: folder.clone() }).collect()
    }

    #[cfg(feature = "cuda")]
    pub fn eager(test: &str) -> Option<Self> {
        Self::stand_in(test, Schedules::One).into_iter().next()
    }

    pub fn folder(&self, name: &str, settings: &str) -> PathBuf {
        match self {
            #[cfg(feature = "wgpu")]
            Self::Vulkan { .. } => VULKAN.within(name, settings),
            #[cfg(feature = "cuda")]
            Self::StandIn { .. } => STAND_IN.within(name, settings),
        }
    }

    pub fn overlaps_copies(&self) -> bool {
        !self.is_vulkan()
    }

    pub fn is_vulkan(&self) -> bool {
        match self {
            #[cfg(feature = "wgpu")]
            Self::Vulkan { .. } => true,
            #[cfg(feature = "cuda")]
            Self::StandIn { .. } => false,
        }
    }

    pub fn is_thorough(&self) -> bool {
        match self {
            #[cfg(feature = "wgpu")]
            Self::Vulkan { .. } => false,
            #[cfg(feature = "cuda")]
            Self::StandIn { schedule, .. } => matches!(schedule, Schedule::Eager),
        }
    }

    /// In the full suite each schedule runs all cases.
    pub fn follows_another(&self) -> bool {
        !self.is_vulkan() && !self.is_thorough() && suite::size() < suite::Size::Full
    }

    pub fn child(&self, scenario: &'static str) -> Child {
        let child = Child::new(scenario);
        match self {
            #[cfg(feature = "wgpu")]
            Self::Vulkan { folder, paranoid } => {
                let child = child.with("machine", "vulkan").directory(folder.clone());
                child.environment("OFFLOAD_PARANOID", u8::from(*paranoid))
            }
            #[cfg(feature = "cuda")]
            Self::StandIn { schedule, folder } => {
                schedule.apply(child.with("machine", "stand-in").directory(folder.clone()))
            }
        }
    }

    /// On Vulkan one at a time: software kernels use all cores.
    pub fn run(&self, child: Child) -> Report {
        match self {
            #[cfg(feature = "wgpu")]
            Self::Vulkan { .. } => {
                static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
                let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
                child.run()
            }
            #[cfg(feature = "cuda")]
            Self::StandIn { .. } => stand_in::run(child),
        }
    }
}

#[cfg(feature = "wgpu")]
static VULKAN: LockedFolder = LockedFolder::new("vulkan");

#[cfg(feature = "cuda")]
static STAND_IN: LockedFolder = LockedFolder::new("stand-in");
