//! A machine in bytes and units per second. `None` is unknown; for a budget, no limit.

use std::fmt;

use serde::Serialize;

use crate::figures::date;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub(crate) device: String,
    pub(crate) device_total: Option<u64>,
    pub(crate) device_free: Option<u64>,
    pub(crate) device_budget: Option<u64>,
    pub(crate) shares_host: bool,
    /// Speed in one direction while the other is idle.
    pub(crate) link_bytes_per_second: Option<f64>,
    /// FLOP/s of a dense matmul.
    pub(crate) flops_per_second: Option<f64>,
    /// Free bytes per process.
    pub(crate) host_free: Option<u64>,
    pub(crate) host_budget: Option<u64>,
    /// 0 without a disk.
    pub(crate) disk_budget: u64,
    /// Writing, then reading.
    pub(crate) disk_bytes_per_second: Option<[f64; 2]>,
    pub(crate) measurement: Option<Measurement>,
    pub(crate) disk_free: Option<u64>,
    pub(crate) other_ranks: usize,
    /// Speed between any two of them, in each direction.
    pub(crate) network_bytes_per_second: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Measurement {
    /// Seconds since 1970.
    pub(crate) at: u64,
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
    pub(crate) fn ranks(&self) -> usize {
        self.other_ranks + 1
    }

    pub(super) fn send_seconds(&self, bytes: u64) -> Option<f64> {
        self.network_bytes_per_second.map(|speed| bytes as f64 / speed)
    }

    /// Only the CPU does not.
    pub(crate) fn fuses(&self) -> bool {
        !self.shares_host
    }
}
