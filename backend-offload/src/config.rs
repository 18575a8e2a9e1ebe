//! Budgets and behaviour of an offloaded device, set before its start.

use crate::bytes::Budget;
use crate::error::OffloadError;
use pager::{Oversized, Policy};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Share of the free device memory for managed blocks.
pub const DEFAULT_DEVICE_SHARE: Budget = Budget::Share(0.9);

/// Share of the available host memory for spilled blocks.
pub const DEFAULT_HOST_SHARE: Budget = Budget::Share(0.8);

/// The machine cannot reclaim page-locked memory.
pub(crate) const DEFAULT_PINNED_SHARE: Budget = Budget::Share(0.4);

const DRY_RUN: &str = "OFFLOAD_DRY_RUN";

/// Whether `OFFLOAD_DRY_RUN=1` asks for a [dry run](OffloadConfig::dry_run).
pub fn dry_run_requested() -> bool {
    std::env::var_os(DRY_RUN).is_some_and(|value| value == "1")
}

/// Configures one device. [`install`](Self::install) it before the device's first tensor.
///
/// Unset budgets come from `OFFLOAD_DEVICE_BUDGET`, `OFFLOAD_HOST_BUDGET` and `OFFLOAD_PINNED_BUDGET`. The device
/// budget defaults to 90 % of the memory free at the start on CUDA, and to no limit on devices that do not report their
/// memory. The host budget defaults to 80 % of the memory that machine and control group leave. Only Linux reports it:
/// elsewhere, host and page-locked memory have no default limit.
#[derive(Debug, Clone, Default)]
pub struct OffloadConfig {
    pub(crate) device_budget: Option<Budget>,
    pub(crate) host_budget: Option<Budget>,
    pub(crate) pinned_budget: Option<Budget>,
    pub(crate) disk_folder: Option<PathBuf>,
    pub(crate) disk_budget: Option<Budget>,
    pub(crate) processes: Option<NonZeroUsize>,
    pub(crate) policy: Policy,
    pub(crate) oversized: Oversized,
    pub(crate) max_bindings: Option<u32>,
    pub(crate) smallest_block: Option<u64>,
    pub(crate) paranoid: Option<bool>,
    pub(crate) exact_f32: bool,
    pub(crate) overlap: Option<bool>,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) dry_run: Option<bool>,
    #[cfg(feature = "test-util")]
    pub(crate) faults: crate::faults::Faults,
    #[cfg(feature = "test-util")]
    pub(crate) watch_runtime: bool,
}

impl OffloadConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Device memory for managed blocks, allocator slack included.
    #[must_use]
    pub fn device_budget(mut self, budget: Budget) -> Self {
        self.device_budget = Some(budget);
        self
    }

    /// Host memory for spilled blocks of all devices of the process.
    #[must_use]
    pub fn host_budget(mut self, budget: Budget) -> Self {
        self.host_budget = Some(budget);
        self
    }

    /// Divides host, page-locked and disk budgets, wherever set, among the processes on this host. All need equal
    /// configurations.
    #[must_use]
    pub fn among(mut self, processes: NonZeroUsize) -> Self {
        self.processes = Some(processes);
        self
    }

    /// Page-locked host memory for all devices of the process; by default 40 % of the memory that machine and control
    /// group leave. It copies several times faster, but cannot be paged out. Ordinary memory serves beyond the limit,
    /// and on runtimes without it.
    #[must_use]
    pub fn pinned_budget(mut self, budget: Budget) -> Self {
        self.pinned_budget = Some(budget);
        self
    }

    /// Lets blocks spill to the disk of `folder` once the host budget is used up, in one unnamed file for all devices
    /// of the process. `budget` bytes are allocated at once: a full disk is an error at the start. Off by default. Also
    /// `OFFLOAD_DISK_DIR` with `OFFLOAD_DISK_BUDGET`. Linux only.
    #[must_use]
    pub fn disk(mut self, folder: impl Into<PathBuf>, budget: Budget) -> Self {
        (self.disk_folder, self.disk_budget) = (Some(folder.into()), Some(budget));
        self
    }

    /// The rule for evictions.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Treatment of an operation whose operands exceed the device budget; refused by default.
    #[must_use]
    pub fn oversized(mut self, oversized: Oversized) -> Self {
        self.oversized = oversized;
        self
    }

    /// Limits the buffers of one fused kernel: 8 by default. Without a limit, one kernel may need whole optimizer
    /// states. Fusion's cuts decide rounding: only equal limits give equal bits.
    #[must_use]
    pub fn max_bindings(mut self, bindings: u32) -> Self {
        self.max_bindings = Some(bindings);
        self
    }

    /// Fuses kernels as the plain backend does, for its bits. A kernel may then name as many buffers as the device
    /// binds, which raises the device budget's floor.
    #[must_use]
    pub fn plain_fusion(self) -> Self {
        self.max_bindings(u32::MAX)
    }

    /// Buffers below this many bytes (64 KiB by default) never move or count: a move costs more than they hold.
    #[must_use]
    pub fn smallest_block(mut self, bytes: u64) -> Self {
        self.smallest_block = Some(bytes.max(1));
        self
    }

    /// Multiplies f32 matrices in true f32. By default, as in the plain backend, CUDA may round the factors to TF32
    /// (ten bits of mantissa), several times faster.
    #[must_use]
    pub fn exact_f32(mut self, exact: bool) -> Self {
        self.exact_f32 = exact;
        self
    }

    /// Runs copies in parallel with the device's work, and ahead of it in repeated programs. CUDA only. On by default;
    /// also `OFFLOAD_OVERLAP=0`.
    #[must_use]
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.overlap = Some(overlap);
        self
    }

    /// Overwrites evicted device memory, and verifies a checksum of every returning block. Slow; for tests. Also
    /// `OFFLOAD_PARANOID=1`.
    #[must_use]
    pub fn paranoid(mut self, paranoid: bool) -> Self {
        self.paranoid = Some(paranoid);
        self
    }

    /// Records the program's memory requests, without contents, in a file for `cargo xtask bench-vram --simulate`. Also
    /// `OFFLOAD_TRACE=FILE`.
    #[must_use]
    pub fn trace(mut self, file: impl Into<PathBuf>) -> Self {
        self.trace = Some(file.into());
        self
    }

    /// Computes nothing: tensors read as zeros, and their memory is never touched. With [`trace`](Self::trace) and no
    /// budget, this records a program for another machine. CPU adapter only, or the stand-in for CUDA. Also
    /// `OFFLOAD_DRY_RUN=1`.
    #[must_use]
    pub fn dry_run(mut self, dry: bool) -> Self {
        self.dry_run = Some(dry);
        self
    }

    /// Injects faults into the device.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn faults(mut self, faults: crate::faults::Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Asks the runtime for its memory use after each launch; see [`runtime_peaks`](crate::runtime_peaks). Slow.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn watch_runtime(mut self) -> Self {
        self.watch_runtime = true;
        self
    }

    pub(crate) fn or_environment(mut self) -> Result<Self, OffloadError> {
        self.device_budget = or_variable(self.device_budget, "OFFLOAD_DEVICE_BUDGET")?;
        self.host_budget = or_variable(self.host_budget, "OFFLOAD_HOST_BUDGET")?;
        self.pinned_budget = or_variable(self.pinned_budget, "OFFLOAD_PINNED_BUDGET")?;

        if self.disk_folder.is_none() {
            self.disk_folder =
                variable("OFFLOAD_DISK_DIR")?.filter(|path| !path.is_empty()).map(PathBuf::from);
            self.disk_budget = or_variable(self.disk_budget, "OFFLOAD_DISK_BUDGET")?;
            if let (None, Some(budget)) = (&self.disk_folder, self.disk_budget) {
                return Err(OffloadError::Environment {
                    name: "OFFLOAD_DISK_BUDGET",
                    value: budget.to_string(),
                    reason: "it does nothing without a disk; name a folder there by OFFLOAD_DISK_DIR"
                        .to_owned(),
                });
            }
        }

        self.share_host();
        self.overlap = or_switch(self.overlap, "OFFLOAD_OVERLAP", true)?;
        self.paranoid = or_switch(self.paranoid, "OFFLOAD_PARANOID", false)?;
        self.dry_run = or_switch(self.dry_run, DRY_RUN, false)?;
        if self.trace.is_none() {
            self.trace = variable("OFFLOAD_TRACE")?.filter(|path| !path.is_empty()).map(PathBuf::from);
        }
        Ok(self)
    }

    fn share_host(&mut self) {
        let Some(processes) = self.processes.filter(|processes| processes.get() > 1) else { return };
        let own = |all: Option<Budget>, default| Some(all.unwrap_or(default).divided(processes));
        self.host_budget = own(self.host_budget, DEFAULT_HOST_SHARE);
        self.pinned_budget = own(self.pinned_budget, DEFAULT_PINNED_SHARE);
        self.disk_budget = self.disk_budget.map(|all| all.divided(processes));
    }
}

fn or_switch(set: Option<bool>, name: &'static str, default: bool) -> Result<Option<bool>, OffloadError> {
    if set.is_some() {
        return Ok(set);
    }
    match variable(name)?.as_deref() {
        None | Some("") => Ok(Some(default)),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(other) => Err(OffloadError::Environment {
            name,
            value: other.to_owned(),
            reason: "write 1 or 0".to_owned(),
        }),
    }
}

fn or_variable(set: Option<Budget>, name: &'static str) -> Result<Option<Budget>, OffloadError> {
    match (set, variable(name)?) {
        (None, Some(value)) => {
            let budget = value.parse().map_err(|error: crate::BudgetError| OffloadError::Environment {
                name,
                value,
                reason: error.to_string(),
            })?;
            Ok(Some(budget))
        }
        (set, _) => Ok(set),
    }
}

fn variable(name: &'static str) -> Result<Option<String>, OffloadError> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(value)) => Err(OffloadError::Environment {
            name,
            value: value.to_string_lossy().into_owned(),
            reason: "it is not Unicode".to_owned(),
        }),
    }
}
