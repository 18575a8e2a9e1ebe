//! What a step tells: host numbers only, since Burn hands them to another thread.

use backend_offload::Stats;
use burn_train::metric::{Adaptor, ItemLazy};
use serde::Serialize;

/// One optimizer step.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) step: u64,
    pub(crate) steps: u64,
    pub(crate) loss: f32,
    pub(crate) lr: f64,
    pub(crate) gnorm: f32,
    pub(crate) ms: f64,
    /// Learned from since step 1.
    pub(crate) tokens: u64,
    pub(crate) tokens_per_second: f64,
    /// Share of the arithmetic that this device showed in a plain matrix product.
    pub(crate) mfu: Option<f64>,
    /// The most bytes in use on the device so far.
    pub(crate) device_bytes: u64,
    pub(crate) device_budget: Option<u64>,
    /// Bytes of spilled tensors.
    pub(crate) host_bytes: u64,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    pub(crate) evictions: u64,
    pub(crate) restores: u64,
    pub(crate) stall_ms: f64,
    /// Since step 1, interruptions left out.
    pub(crate) seconds: f64,
    /// Why there are no numbers.
    #[serde(skip)]
    pub(crate) failure: Option<String>,
}

/// Some validation sequences.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Validation {
    /// Of the negative log-likelihoods.
    pub(crate) sum: f64,
    pub(crate) counted: f64,
    pub(crate) failure: Option<String>,
}

impl Report {
    /// What moved between two readings of the counters.
    pub(crate) fn memory(&mut self, before: &Stats, after: &Stats) {
        self.device_bytes = after.device.peak;
        self.device_budget = after.device.budget;
        self.host_bytes = after.host.in_use;
        self.bytes_out = after.bytes_out - before.bytes_out;
        self.bytes_in = after.bytes_in - before.bytes_in;
        self.evictions = after.evictions - before.evictions;
        self.restores = after.restores - before.restores;
        self.stall_ms = after.stall.saturating_sub(before.stall).as_secs_f64() * 1e3;
    }
}

impl ItemLazy for Report {
    type ItemSync = Self;

    fn sync(self) -> Self {
        self
    }
}

impl ItemLazy for Validation {
    type ItemSync = Self;

    fn sync(self) -> Self {
        self
    }
}

impl Adaptor<Self> for Report {
    fn adapt(&self) -> Self {
        self.clone()
    }
}

impl Adaptor<Self> for Validation {
    fn adapt(&self) -> Self {
        self.clone()
    }
}
