//! Opens a run's device. Only this file names backends.

use std::{fmt, num::NonZeroUsize, str::FromStr};

use anyhow::{Context, bail};
use backend_offload::{
    Bytes, DeviceFacts, DeviceMemory, OffloadConfig, OffloadError, Offloadable, probe, stats,
};
use burn::backend::{Flex, flex::FlexDevice};

use crate::BadInput;
use crate::config::{Config, MemorySection};
use crate::{pages, threads};

/// The argument of `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// CUDA if it is usable, else the CPU.
    #[default]
    Auto,
    /// An NVIDIA GPU by number, by default the process's on its host.
    Cuda(Option<usize>),
    /// The system's default Vulkan device.
    Vulkan,
    /// The CPU, whose heap counts as device memory.
    Cpu,
}

/// An open device.
#[derive(Debug, Clone)]
pub struct Place {
    /// Device name and number.
    pub name: String,
    /// Runtime and total memory, equal on devices of one kind.
    pub kind: String,
    /// Hardware name, if reported.
    pub model: Option<String>,
    /// Total and free memory, if reported.
    pub memory: Option<DeviceMemory>,
    /// Limit on bytes of tensors.
    pub budget: Option<u64>,
    /// Whether device memory is host memory.
    pub shares_host: bool,
}

/// Settings that open a device.
#[derive(Debug, Clone)]
pub struct Setup {
    memory: MemorySection,
    tf32: bool,
    processes: NonZeroUsize,
    /// From 0.
    process: usize,
}

impl From<&Config> for Setup {
    fn from(config: &Config) -> Self {
        Self {
            memory: config.memory.clone(),
            tf32: config.train.tf32,
            processes: NonZeroUsize::MIN,
            process: 0,
        }
    }
}

impl Setup {
    /// For process `process`, from 0, of `processes` on this host.
    #[must_use]
    pub fn among(mut self, process: usize, processes: usize) -> Self {
        self.process = process;
        self.processes = NonZeroUsize::new(processes).unwrap_or(NonZeroUsize::MIN);
        self
    }

    /// Without the disk, for programs that only read weights.
    #[must_use]
    pub fn without_disk(mut self) -> Self {
        self.memory.disk = None;
        self
    }

    /// Settings with automatic budgets.
    pub fn unlimited() -> Self {
        Self { memory: MemorySection::default(), tf32: true, processes: NonZeroUsize::MIN, process: 0 }
    }
}

/// Work on a device of any backend.
pub trait Work {
    /// Result.
    type Output;

    /// Runs on `device`.
    fn on<I: Offloadable>(self, device: &I::Device, place: &Place) -> anyhow::Result<Self::Output>;
}

/// Opens the device and runs `work` on it.
pub fn with<W: Work>(choice: DeviceChoice, setup: &Setup, work: W) -> anyhow::Result<W::Output> {
    match choice {
        DeviceChoice::Auto => auto(setup, work),
        DeviceChoice::Cpu => cpu(setup, work),
        DeviceChoice::Cuda(index) => cuda(index.unwrap_or(setup.process), setup, work),
        DeviceChoice::Vulkan => vulkan(setup, work),
    }
}

const CPU: &str = "the CPU";

fn cpu<W: Work>(setup: &Setup, work: W) -> anyhow::Result<W::Output> {
    pages::keep_freed_pages();
    threads::join_pool();
    open::<Flex, W>(&FlexDevice, probe::<Flex>(&FlexDevice)?, CPU, setup, work)
}

/// The device that [`DeviceChoice::Auto`] opens.
#[derive(Debug)]
pub enum Automatic {
    /// The NVIDIA GPU with this process's number.
    Cuda(DeviceFacts),
    /// The CPU. The reason, if this machine has NVIDIA's driver.
    Cpu(Option<OffloadError>),
}

/// Decides for this host's process `process`. Opens no device.
#[cfg(feature = "cuda")]
pub fn automatic(process: usize) -> Automatic {
    if !backend_offload::cuda_driver_found() {
        return Automatic::Cpu(None);
    }
    cuda_facts(process).map_or_else(|error| Automatic::Cpu(Some(error)), Automatic::Cuda)
}

/// Always the CPU: this build lacks CUDA.
#[cfg(not(feature = "cuda"))]
pub fn automatic(_: usize) -> Automatic {
    Automatic::Cpu(None)
}

/// Facts about an NVIDIA GPU. The error names a missing part.
#[cfg(feature = "cuda")]
pub fn cuda_facts(index: usize) -> Result<DeviceFacts, OffloadError> {
    use burn::backend::{Cuda, cuda::CudaDevice};
    probe::<Cuda>(&CudaDevice::new(index))
}

/// With NVIDIA's driver but no kernel compiler, reports it and uses the CPU.
fn auto<W: Work>(setup: &Setup, work: W) -> anyhow::Result<W::Output> {
    match automatic(setup.process) {
        #[cfg(feature = "cuda")]
        Automatic::Cuda(facts) => {
            use burn::backend::{Cuda, cuda::CudaDevice};
            open::<Cuda, W>(&CudaDevice::new(setup.process), facts, "CUDA", setup, work)
        }
        #[cfg(not(feature = "cuda"))]
        Automatic::Cuda(_) => cpu(setup, work),
        Automatic::Cpu(reason) => {
            if let Some(error) = reason {
                eprintln!("working on the CPU, because {error}");
            }
            cpu(setup, work)
        }
    }
}

#[cfg(feature = "cuda")]
fn cuda<W: Work>(index: usize, setup: &Setup, work: W) -> anyhow::Result<W::Output> {
    use burn::backend::{Cuda, cuda::CudaDevice};
    let device = CudaDevice::new(index);
    open::<Cuda, W>(&device, probe::<Cuda>(&device)?, "CUDA", setup, work)
}

#[cfg(not(feature = "cuda"))]
fn cuda<W: Work>(_: usize, _: &Setup, _: W) -> anyhow::Result<W::Output> {
    bail!(missing("cuda"))
}

#[cfg(feature = "vulkan")]
fn vulkan<W: Work>(setup: &Setup, work: W) -> anyhow::Result<W::Output> {
    use burn::backend::{Wgpu, wgpu::WgpuDevice};
    let device = WgpuDevice::DefaultDevice;
    open::<Wgpu, W>(&device, probe::<Wgpu>(&device)?, "Vulkan", setup, work)
}

#[cfg(not(feature = "vulkan"))]
fn vulkan<W: Work>(_: &Setup, _: W) -> anyhow::Result<W::Output> {
    bail!(missing("vulkan"))
}

#[cfg(any(not(feature = "cuda"), not(feature = "vulkan")))]
fn missing(feature: &str) -> BadInput {
    let own = std::env::current_exe().ok();
    let is_server = own.is_some_and(|program| program.file_stem().is_some_and(|name| name == "serve"));
    let package = if is_server { "serve" } else { "train" };
    BadInput(format!(
        "--device {feature}: this program was built without the feature `{feature}`; build it with \
         `cargo build -p {package} --release --features {feature}`"
    ))
}

fn open<I: Offloadable, W: Work>(
    device: &I::Device,
    facts: DeviceFacts,
    runtime: &str,
    setup: &Setup,
    work: W,
) -> anyhow::Result<W::Output> {
    let mut config = OffloadConfig::new().exact_f32(!setup.tf32).among(setup.processes);
    if let Some(budget) = setup.memory.device_budget.value() {
        config = config.device_budget(budget);
    }
    if let Some(budget) = setup.memory.host_budget.value() {
        config = config.host_budget(budget);
    }
    if let Some((folder, part)) = setup.memory.disk_part() {
        config = config.disk(folder, part.into());
    }

    config.install::<I>(device).with_context(|| match &setup.memory.disk {
        Some(disk) => format!("preparing {} with `memory.disk` = {}", facts.name, disk.display()),
        None => format!("preparing {}", facts.name),
    })?;

    let budget = stats::<I>(device).device.budget;
    let total = facts.memory.map(|memory| format!(" with {}", Bytes(memory.total)));
    let kind = format!("{runtime}{}", total.unwrap_or_default());
    let place = Place {
        name: facts.name,
        kind,
        model: facts.model,
        memory: facts.memory,
        budget,
        shares_host: runtime == CPU,
    };
    work.on::<I>(device, &place)
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "cuda" => Ok(Self::Cuda(None)),
            None if text == "vulkan" => Ok(Self::Vulkan),
            None if text == "cpu" => Ok(Self::Cpu),
            Some(("cuda", index)) => index
                .parse()
                .map(|index| Self::Cuda(Some(index)))
                .map_err(|_| format!("`{index}` is not a device's number; write cuda:0, cuda:1 and so on")),
            _ => Err("the devices are auto, cuda, cuda:N, vulkan and cpu".to_owned()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
            Self::Vulkan => f.write_str("vulkan"),
            Self::Cpu => f.write_str("cpu"),
        }
    }
}
