//! The machine as a plan knows it: plain numbers, each `None` where it could not be asked.

use std::fmt;

use serde::Serialize;

use crate::figures::date;

/// The machine a run is planned for.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Machine {
    /// The device's name, for messages.
    pub(crate) device: String,
    pub(crate) device_total: Option<u64>,
    pub(crate) device_free: Option<u64>,
    /// The budget in bytes; `None` is no limit.
    pub(crate) device_budget: Option<u64>,
    /// Whether the device's bytes are the host's too, as on the CPU.
    pub(crate) shares_host: bool,
    /// Speed of the link in one direction, while nothing goes the other way.
    pub(crate) link_bytes_per_second: Option<f64>,
    /// Measured FLOP/s of matrix products.
    pub(crate) flops_per_second: Option<f64>,
    /// Free host memory, divided by the processes that share it.
    pub(crate) host_free: Option<u64>,
    /// Host memory for spilled tensors; `None` is no limit.
    pub(crate) host_budget: Option<u64>,
    /// Bytes of the disk below host memory that may be taken; 0 where no disk was named.
    pub(crate) disk_budget: u64,
    /// Speeds at which blocks are written to that disk and read from it.
    pub(crate) disk_bytes_per_second: Option<[f64; 2]>,
    /// The measurement that speeds come from; `None` where they were described, or not measured.
    pub(crate) measurement: Option<Measurement>,
    /// Free space where the run directory will be.
    pub(crate) disk_free: Option<u64>,
    /// Other processes that share a step's micro-batches, each with a device like this one.
    pub(crate) other_ranks: usize,
}

/// A measurement of a machine's speeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Measurement {
    /// Seconds since 1970.
    pub(crate) at: u64,
    /// Whether an earlier start of the program made it.
    pub(crate) kept: bool,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kept {
            write!(f, "measured on {} and kept; `train plan --measure` measures again", date(self.at))
        } else {
            f.write_str("measured just now")
        }
    }
}

impl Machine {
    /// Processes that share a step's micro-batches.
    pub(crate) fn ranks(&self) -> usize {
        self.other_ranks + 1
    }

    /// Whether the device makes one kernel of several operations, as all but the CPU do.
    pub(crate) fn fuses(&self) -> bool {
        !self.shares_host
    }
}
