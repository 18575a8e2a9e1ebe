//! Errors with action, sizes and remedy.

use crate::bytes::{BudgetError, Bytes, OrUnlimited};
use pager::Tier;
use std::fmt;

/// One of the largest live blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Size in the allocator.
    pub bytes: u64,
    /// Where the block is.
    pub tier: Tier,
    /// Operations since the last use.
    pub age: u64,
}

/// Memory use at a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Situation {
    /// The kernel or backend call.
    pub operation: String,
    /// Bytes needed at once on the device, or by a buffer without room.
    pub wanted: u64,
    /// Device budget; `None` is no limit.
    pub device_budget: Option<u64>,
    /// Bytes of blocks on the device.
    pub device_in_use: u64,
    /// Host budget; `None` is no limit.
    pub host_budget: Option<u64>,
    /// Bytes of copies on the host.
    pub host_in_use: u64,
    /// Disk budget; `None` without a disk.
    pub disk_budget: Option<u64>,
    /// Bytes of blocks on the disk.
    pub disk_in_use: u64,
    /// At most five of the largest blocks, largest first.
    pub holders: Vec<Holder>,
}

/// Every error of this crate. Cloneable, as one failure can surface at several reads.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// Installed after the device had started.
    #[error(
        "cannot install an offload configuration on {device}: the device has already started; install before the first tensor is made on it"
    )]
    AlreadyStarted {
        /// The device.
        device: String,
    },
    /// An invalid budget.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// An unusable value of an environment variable.
    #[error("the environment variable {name} is set to {value:?}: {reason}")]
    Environment {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// The reason.
        reason: String,
    },
    /// A device budget below the smallest managed block.
    #[error("a device budget of {} leaves no room for a single managed block: blocks start at {}; the floor is the operands of the largest operation, for a language model its embedding's optimizer step (about ten times the embedding's bytes)", Bytes(*budget), Bytes(*smallest))]
    BudgetTooSmall {
        /// In bytes.
        budget: u64,
        /// The smallest block.
        smallest: u64,
    },
    /// A device budget above the device's memory.
    #[error("a device budget of {} exceeds {device}, which has {} in total and {} free; lower the budget or use a share such as \"90%\"", Bytes(*budget), Bytes(*total), Bytes(*free))]
    BudgetAboveDevice {
        /// The device.
        device: String,
        /// In bytes.
        budget: u64,
        /// The device's memory.
        total: u64,
        /// The device's free memory.
        free: u64,
    },
    /// A share of unknown memory.
    #[error(
        "a budget of {share} cannot be resolved: {tier} does not tell how much memory is free; give bytes (\"6GiB\") or \"unlimited\""
    )]
    UnknownShare {
        /// As written.
        share: String,
        /// The tier whose memory is unknown.
        tier: String,
    },
    /// Different host budgets for one process.
    #[error(
        "a host budget of {wanted} conflicts with the {installed} installed for another device: all devices of a process share one host budget"
    )]
    HostBudgetConflict {
        /// The requested budget.
        wanted: String,
        /// The budget in force.
        installed: String,
    },
    /// One operation's operands do not fit the device budget.
    #[error("{0} needs more device memory at once than the budget allows; raise the device budget above {wanted}, or make the operation smaller (micro-batch, sequence length, chunked loss, fewer fused operands through max_bindings)", wanted = Bytes(.0.wanted))]
    WorkingSet(Box<Situation>),
    /// An eviction without room on host or disk.
    #[error("{situation} would push blocks to the host, whose budget is used up{way_out}, or hold less (recomputation, smaller optimizer state)", situation = .0, way_out = .0.way_out_of_full_tiers())]
    HostFull(Box<Situation>),
    /// The program asked for host memory beyond the budget.
    #[error("{operation}: {} of host memory are wanted and {} of {} are in use; raise the host budget, or hold less", Bytes(*wanted), Bytes(*in_use), OrUnlimited(*budget))]
    HostRefused {
        /// Purpose of the memory.
        operation: String,
        /// Bytes requested.
        wanted: u64,
        /// Bytes of spilled blocks and of the program's buffers.
        in_use: u64,
        /// `None` is no limit.
        budget: Option<u64>,
    },
    /// An evicted block's copy failed.
    #[error("{0} would push blocks to the host, and copying them out failed ({reason}); they stay on the device, unharmed", reason = .1)]
    CopyOut(Box<Situation>, String),
    /// The driver refused memory within the budget.
    #[error(
        "{0} was refused device memory by the driver although the budget allows it; another process probably took it: free it, or lower the device budget"
    )]
    DeviceRefused(Box<Situation>),
    /// A buffer larger than the device can bind.
    #[error("cannot allocate one buffer of {}: the device binds at most {} at once; split the tensor", Bytes(*wanted), Bytes(*limit))]
    BufferTooLarge {
        /// Its size.
        wanted: u64,
        /// The device's limit.
        limit: u64,
    },
    /// The device runtime panicked during an operation.
    #[error(
        "{operation} did not run: the device runtime panicked ({message}); its outputs are lost, everything else is intact"
    )]
    RuntimePanic {
        /// The operation.
        operation: String,
        /// The panic's message.
        message: String,
    },
    /// The device runtime refused an operation.
    #[error(
        "{operation} did not run: the device runtime refused it ({message}); its outputs are lost, everything else is intact"
    )]
    LaunchFailed {
        /// The operation.
        operation: String,
        /// The runtime's message.
        message: String,
    },
    /// An operation uses a buffer that was never allocated.
    #[error("{operation} uses a buffer that this device never allocated")]
    UnknownBuffer {
        /// The operation.
        operation: String,
    },
    /// The trace file cannot be created.
    #[error("cannot record to {path}: {reason}")]
    Trace {
        /// The file.
        path: String,
        /// The system's message.
        reason: String,
    },
    /// A host copy changed after its block's eviction (paranoid mode).
    #[error("the host copy of a block of {} changed while it was on the host: expected checksum {expected:016x}, found {found:016x}", Bytes(*bytes))]
    HostCopyDamaged {
        /// The block's size.
        bytes: u64,
        /// Checksum at the eviction.
        expected: u64,
        /// Checksum at the return.
        found: u64,
    },
    /// A disk transfer failed. Only unreadable contents are lost.
    #[error(
        "{attempted} on the disk at {folder} failed: {reason}; name another folder for the disk or a smaller budget there, or raise the host budget"
    )]
    Disk {
        /// The action, with its bytes.
        attempted: String,
        /// The configured folder.
        folder: String,
        /// The system's message.
        reason: String,
    },
    /// Contradictory records of block positions: a defect of this crate.
    #[error("{operation} did not run: {fault}; this is a defect of backend-offload, please report it")]
    Bookkeeping {
        /// The operation.
        operation: String,
        /// The contradiction.
        fault: String,
    },
    /// A component of the device is not installed.
    #[error("{device} cannot start: {missing}; {remedy}")]
    MissingRuntime {
        /// The device.
        device: String,
        /// The component.
        missing: String,
        /// How to install or set it.
        remedy: &'static str,
    },
    /// The adapter does not support the operation.
    #[error("{operation} is not supported on {backend} under offloading: {reason}")]
    Unsupported {
        /// The operation.
        operation: String,
        /// The backend.
        backend: &'static str,
        /// The reason.
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
