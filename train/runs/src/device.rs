//! Which device a run works on. The one place that names backends; everything else is generic over them.

use std::{fmt, num::NonZeroUsize, str::FromStr};

use anyhow::{Context, bail};
use backend_offload::{Bytes, DeviceFacts, DeviceMemory, OffloadConfig, Offloadable, probe, stats};
use burn::backend::{Flex, flex::FlexDevice};

use crate::BadInput;
use crate::config::{Config, MemorySection};
use crate::{pages, threads};

/// The device that the user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// CUDA where it is complete, else the CPU.
    #[default]
    Auto,
    /// An NVIDIA GPU: the one of this number, or the first. Processes that share a host take one each.
    Cuda(Option<usize>),
    /// The default device of the system's Vulkan driver.
    Vulkan,
    /// The CPU, whose heap plays the device.
    Cpu,
}

/// A device that is ready.
#[derive(Debug, Clone)]
pub struct Place {
    /// The device's own name, its number included.
    pub name: String,
    /// The runtime and the memory in all, equal on devices of a kind.
    pub kind: String,
    /// The hardware's name, where its driver tells it.
    pub model: Option<String>,
    /// Device memory in all and free, where the runtime can tell.
    pub memory: Option<DeviceMemory>,
    /// Bytes that tensors may take on the device; `None` is no limit.
    pub budget: Option<u64>,
    /// Whether the device's bytes are the host's too.
    pub shares_host: bool,
}

/// Settings of a device, before it starts.
#[derive(Debug, Clone)]
pub struct Setup {
    memory: MemorySection,
    tf32: bool,
    /// Number of processes that share the host's memory, and this one's number among them.
    processes: NonZeroUsize,
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
    /// These settings for one of several processes that share this host: its number, from 0, and how many they are.
    #[must_use]
    pub fn among(mut self, process: usize, processes: usize) -> Self {
        self.process = process;
        self.processes = NonZeroUsize::new(processes).unwrap_or(NonZeroUsize::MIN);
        self
    }

    /// These settings without the disk that a run sinks to: a program that only reads weights takes no space there.
    #[must_use]
    pub fn without_disk(mut self) -> Self {
        self.memory.disk = None;
        self
    }

    /// Settings with the device's own budgets.
    pub fn unlimited() -> Self {
        Self { memory: MemorySection::default(), tf32: true, processes: NonZeroUsize::MIN, process: 0 }
    }
}

/// Something to do on a device, whichever it is.
pub trait Work {
    /// The result of the work.
    type Output;

    /// Does it on `device`.
    fn on<I: Offloadable>(self, device: &I::Device, place: &Place) -> anyhow::Result<Self::Output>;
}

/// Opens the device and does the work there.
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
    pages::keep();
    threads::join_pool();
    open::<Flex, W>(&FlexDevice, probe::<Flex>(&FlexDevice)?, CPU, setup, work)
}

/// Many machines have NVIDIA's driver and nothing to compile kernels with. That is said and no reason to stop.
#[cfg(feature = "cuda")]
fn auto<W: Work>(setup: &Setup, work: W) -> anyhow::Result<W::Output> {
    use burn::backend::{Cuda, cuda::CudaDevice};
    if !backend_offload::cuda_driver_found() {
        return cpu(setup, work);
    }
    let device = CudaDevice::new(setup.process);
    match probe::<Cuda>(&device) {
        Ok(facts) => open::<Cuda, W>(&device, facts, "CUDA", setup, work),
        Err(error) => {
            eprintln!("working on the CPU, because {error}");
            cpu(setup, work)
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn auto<W: Work>(setup: &Setup, work: W) -> anyhow::Result<W::Output> {
    cpu(setup, work)
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
    BadInput(format!(
        "--device {feature}: this program was built without the feature `{feature}`; build it with \
         `cargo build -p train --release --features {feature}`"
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
