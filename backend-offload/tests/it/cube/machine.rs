//! The machines this suite runs on: a Vulkan device, and the stand-in for the CUDA driver under one of its
//! schedules.

use super::children;
use crate::child::{Child, Facts, Report};
use backend_offload::{InnerRuntime, Offloadable};
use burn::tensor::backend::{Backend, DeviceOps};
use burn_cubecl::CubeBackend;
use burn_fusion::Fusion;
use cubecl_core::Runtime;
use std::fmt;
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "wgpu")]
use cubecl_wgpu::{WgpuDevice, WgpuRuntime};

#[cfg(feature = "cuda")]
use crate::stand_in::{self, Schedule};
#[cfg(feature = "cuda")]
use cubecl_cuda::{CudaDevice, CudaRuntime};
#[cfg(feature = "cuda")]
use std::path::PathBuf;

/// The types of one runtime, as a child process names them.
pub trait Target: 'static {
    type Device: DeviceOps;
    type Runtime: InnerRuntime + Runtime<Device = Self::Device>;
    type Plain: Offloadable<Device = Self::Device, Offloaded: Backend<Device = Self::Device>>;
    /// Two devices with a server each.
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
        // Two names for the one software device.
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

/// Where child processes run, and how.
#[derive(Debug, Clone)]
pub enum Machine {
    Vulkan,
    #[cfg(feature = "cuda")]
    StandIn {
        schedule: Schedule,
        folder: PathBuf,
    },
}

/// Name of the machine, in a form that can be part of a file name.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vulkan => f.write_str("vulkan"),
            #[cfg(feature = "cuda")]
            Self::StandIn { schedule, .. } => {
                write!(f, "stand-in-{}", schedule.to_string().replace(' ', "-"))
            }
        }
    }
}

impl Machine {
    /// The Vulkan device. Without one, tests that need it say so and pass, unless `OFFLOAD_REQUIRE_VULKAN=1`
    /// makes its absence a failure.
    pub fn vulkan(test: &str) -> Option<Self> {
        static PRESENT: Mutex<Option<bool>> = Mutex::new(None);
        let mut present = PRESENT.lock().unwrap_or_else(PoisonError::into_inner);
        let present = *present.get_or_insert_with(|| {
            Self::Vulkan.run(Self::Vulkan.child("cube/present")).text("found") == "Vulkan"
        });
        let why = "this machine has no Vulkan device (mesa-vulkan-drivers brings one for the CPU)";
        crate::present_or_not_run(present, test, "OFFLOAD_REQUIRE_VULKAN", why).then_some(Self::Vulkan)
    }

    /// The stand-in, once for each schedule of the gate. Each test has a folder of its own, so that autotune
    /// results are shared by its runs and by no other test's.
    #[cfg(feature = "cuda")]
    pub fn stand_in(test: &str) -> Vec<Self> {
        let present = stand_in::installation().is_ok();
        let why = stand_in::installation().as_ref().err().map_or("", String::as_str);
        if !crate::present_or_not_run(present, test, "OFFLOAD_REQUIRE_STAND_IN", why) {
            return Vec::new();
        }
        let folder = stand_in::folder_of(test);
        let schedules = stand_in::schedules().into_iter();
        schedules.map(|schedule| Self::StandIn { schedule, folder: folder.clone() }).collect()
    }

    /// Whether blocks move while kernels run.
    pub fn copies_beside_its_work(&self) -> bool {
        !matches!(self, Self::Vulkan)
    }

    /// Whether tests run everything they have here; elsewhere they run what is most telling. A process on Vulkan
    /// compiles all its kernels anew, and schedules other than the first have the same kernels to run.
    pub fn is_thorough(&self) -> bool {
        match self {
            Self::Vulkan => false,
            #[cfg(feature = "cuda")]
            Self::StandIn { schedule, .. } => matches!(schedule, Schedule::Eager),
        }
    }

    /// Whether this is the first time a test runs here. Some promises depend on no schedule.
    pub fn is_first(&self) -> bool {
        matches!(self, Self::Vulkan) || self.is_thorough()
    }

    /// Whether this is a further seed in the gate, which long tests leave to the nightly run.
    pub fn is_repetition(&self) -> bool {
        match self {
            Self::Vulkan => false,
            #[cfg(feature = "cuda")]
            Self::StandIn { schedule, .. } => {
                matches!(schedule, Schedule::Random(2..)) && self.follows_in_the_gate()
            }
        }
    }

    /// Whether this is a schedule of the gate other than the first. The nightly run takes each for itself.
    pub fn follows_in_the_gate(&self) -> bool {
        match self {
            Self::Vulkan => false,
            #[cfg(feature = "cuda")]
            Self::StandIn { .. } => !self.is_first() && std::env::var_os(stand_in::SEEDS).is_none(),
        }
    }

    pub fn child(&self, scenario: &'static str) -> Child {
        let child = Child::new(scenario);
        match self {
            Self::Vulkan => child.with("machine", "vulkan"),
            #[cfg(feature = "cuda")]
            Self::StandIn { schedule, folder } => {
                schedule.apply(child.with("machine", "stand-in").directory(folder.clone()))
            }
        }
    }

    /// Runs the child to its end. On Vulkan alone: kernels on a software driver use all cores.
    pub fn run(&self, child: Child) -> Report {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        match self {
            Self::Vulkan => {
                let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
                child.run()
            }
            #[cfg(feature = "cuda")]
            Self::StandIn { .. } => stand_in::run(child),
        }
    }
}
