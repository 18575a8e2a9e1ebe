//! Errors: each says what was attempted, the sizes, who holds the memory, and what to do.

use crate::bytes::{BudgetError, Bytes, OrUnlimited};
use pager::Tier;
use std::fmt;

/// One of the blocks that hold most memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its size as the allocator counts it.
    pub bytes: u64,
    /// Where it is.
    pub tier: Tier,
    /// How many operations ago it was last used.
    pub age: u64,
}

/// The memory situation in which an operation could not run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Situation {
    /// The operation, by its kernel's or call's name.
    pub operation: String,
    /// Bytes it needs on the device at once, or bytes of the one buffer that could not be placed.
    pub wanted: u64,
    /// The device budget; `None` is no limit.
    pub device_budget: Option<u64>,
    /// Bytes of blocks on the device.
    pub device_in_use: u64,
    /// The host budget; `None` is no limit.
    pub host_budget: Option<u64>,
    /// Bytes of copies on the host.
    pub host_in_use: u64,
    /// The disk budget; `None` where no disk is named.
    pub disk_budget: Option<u64>,
    /// Bytes of blocks on the disk.
    pub disk_in_use: u64,
    /// The largest blocks, largest first, five at most.
    pub holders: Vec<Holder>,
}

/// Everything this crate reports. Cloneable, since one failure can surface at several reads.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// [`install`](crate::OffloadConfig::install) came too late.
    #[error(
        "cannot install an offload configuration on {device}: the device has already started; install before the first tensor is made on it"
    )]
    AlreadyStarted {
        /// The device.
        device: String,
    },
    /// A budget that is not one.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// An environment variable that could not be used.
    #[error("the environment variable {name} is set to {value:?}: {reason}")]
    Environment {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// A device budget in which nothing can live.
    #[error("a device budget of {} leaves no room for a single managed block: blocks start at {}; the floor is the operands of the largest operation, for a language model its embedding's optimizer step (about ten times the embedding's bytes)", Bytes(*budget), Bytes(*smallest))]
    BudgetTooSmall {
        /// The budget in bytes.
        budget: u64,
        /// The smallest block that is managed.
        smallest: u64,
    },
    /// A device budget above what the device has.
    #[error("a device budget of {} exceeds {device}, which has {} in total and {} free; lower the budget or use a share such as \"90%\"", Bytes(*budget), Bytes(*total), Bytes(*free))]
    BudgetAboveDevice {
        /// The device.
        device: String,
        /// The budget in bytes.
        budget: u64,
        /// The device's memory.
        total: u64,
        /// Its free memory.
        free: u64,
    },
    /// A share of memory nobody can measure.
    #[error(
        "a budget of {share} cannot be resolved: {tier} does not tell how much memory is free; give bytes (\"6GiB\") or \"unlimited\""
    )]
    UnknownShare {
        /// The budget as written.
        share: String,
        /// The tier that was asked.
        tier: String,
    },
    /// Two configurations want different host budgets, and there is one host.
    #[error(
        "a host budget of {wanted} conflicts with the {installed} installed for another device: all devices of a process share one host budget"
    )]
    HostBudgetConflict {
        /// The budget asked for, as it was written.
        wanted: String,
        /// The budget already in force, as it was written.
        installed: String,
    },
    /// The operands of one operation do not fit the device budget.
    #[error("{0} needs more device memory at once than the budget allows; raise the device budget above {wanted}, or make the operation smaller (micro-batch, sequence length, chunked loss, fewer fused operands through max_bindings)", wanted = Bytes(.0.wanted))]
    WorkingSet(Box<Situation>),
    /// Something must leave the device and the host has no room for it.
    #[error("{situation} would push blocks to the host, whose budget is used up{way_out}, or hold less (recomputation, smaller optimizer state)", situation = .0, way_out = .0.way_out_of_full_tiers())]
    HostFull(Box<Situation>),
    /// The program wants host memory for itself and the host has no room for it.
    #[error("{operation}: {} of host memory are wanted and {} of {} are in use; raise the host budget, or hold less", Bytes(*wanted), Bytes(*in_use), OrUnlimited(*budget))]
    HostRefused {
        /// The purpose of the memory.
        operation: String,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes in use, spilled blocks and buffers of the program together.
        in_use: u64,
        /// The host budget; `None` is no limit.
        budget: Option<u64>,
    },
    /// Something must leave the device and could not be copied.
    #[error("{0} would push blocks to the host, and copying them out failed ({reason}); they stay on the device, unharmed", reason = .1)]
    CopyOut(Box<Situation>, String),
    /// The driver refuses memory within the budget.
    #[error(
        "{0} was refused device memory by the driver although the budget allows it; another process probably took it: free it, or lower the device budget"
    )]
    DeviceRefused(Box<Situation>),
    /// One buffer is larger than the device can bind.
    #[error("cannot allocate one buffer of {}: the device binds at most {} at once; split the tensor", Bytes(*wanted), Bytes(*limit))]
    BufferTooLarge {
        /// Its size.
        wanted: u64,
        /// The device's limit.
        limit: u64,
    },
    /// The runtime underneath panicked while it ran an operation for us.
    #[error(
        "{operation} did not run: the device runtime panicked ({message}); its outputs are lost, everything else is intact"
    )]
    RuntimePanic {
        /// The operation.
        operation: String,
        /// The panic's message.
        message: String,
    },
    /// The runtime underneath refused an operation.
    #[error(
        "{operation} did not run: the device runtime refused it ({message}); its outputs are lost, everything else is intact"
    )]
    LaunchFailed {
        /// The operation.
        operation: String,
        /// The runtime's own error.
        message: String,
    },
    /// A buffer that is used before it was ever allocated, or after its allocation failed.
    #[error("{operation} uses a buffer that this device never allocated")]
    UnknownBuffer {
        /// The operation.
        operation: String,
    },
    /// The file for the program's accesses cannot be made.
    #[error("cannot record to {path}: {reason}")]
    Trace {
        /// The file.
        path: String,
        /// The system's message.
        reason: String,
    },
    /// A copy on the host changed between leaving the device and coming back (paranoid mode).
    #[error("the host copy of a block of {} changed while it was on the host: expected checksum {expected:016x}, found {found:016x}", Bytes(*bytes))]
    HostCopyDamaged {
        /// The block's size.
        bytes: u64,
        /// Checksum when it left.
        expected: u64,
        /// Checksum when it was to come back.
        found: u64,
    },
    /// The disk below the host refuses. Nothing is lost but what could not be read back.
    #[error(
        "{attempted} on the disk at {folder} failed: {reason}; name another folder for the disk or a smaller budget there, or raise the host budget"
    )]
    Disk {
        /// The attempted action, with its bytes.
        attempted: String,
        /// The folder the program named.
        folder: String,
        /// The system's message.
        reason: String,
    },
    /// The books on where blocks are contradict themselves. A defect of this crate: please report it.
    #[error("{operation} did not run: {fault}; this is a defect of backend-offload, please report it")]
    Bookkeeping {
        /// The operation.
        operation: String,
        /// The contradiction.
        fault: String,
    },
    /// Something the device needs is not installed.
    #[error("{device} cannot start: {missing}; {remedy}")]
    MissingRuntime {
        /// The device.
        device: String,
        /// The missing part.
        missing: String,
        /// The way to install or set it.
        remedy: &'static str,
    },
    /// The door does not support the operation.
    #[error("{operation} is not supported on {backend} under offloading: {reason}")]
    Unsupported {
        /// The operation.
        operation: String,
        /// The backend.
        backend: &'static str,
        /// Why.
        reason: &'static str,
    },
}

impl Situation {
    fn way_out_of_full_tiers(&self) -> &'static str {
        if self.disk_budget.is_some() {
            ", as is the disk's below it; raise one of them"
        } else {
            "; raise the host budget"
        }
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (wants {}; device {} in use of {}; host {} in use of {}",
            self.operation,
            Bytes(self.wanted),
            Bytes(self.device_in_use),
            OrUnlimited(self.device_budget),
            Bytes(self.host_in_use),
            OrUnlimited(self.host_budget),
        )?;
        if let Some(budget) = self.disk_budget {
            write!(f, "; disk {} in use of {}", Bytes(self.disk_in_use), Bytes(budget))?;
        }
        for (n, holder) in self.holders.iter().enumerate() {
            let lead = if n == 0 { "; largest holders: " } else { ", " };
            write!(f, "{lead}{holder}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tier = match self.tier {
            Tier::Device => "on the device",
            Tier::Host => "on the host",
            Tier::Disk => "on the disk",
        };
        write!(f, "{} {tier}, used {} operations ago", Bytes(self.bytes), self.age)
    }
}
