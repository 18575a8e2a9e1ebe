//! One step's host numbers, which Burn moves to another thread.

use std::time::Duration;

use backend_offload::Stats;
use burn_train::metric::{Adaptor, ItemLazy};
use serde::Serialize;

use crate::ranks::Spent;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) step: u64,
    pub(crate) steps: u64,
    pub(crate) loss: f32,
    pub(crate) lr: f64,
    pub(crate) gnorm: f32,
    pub(crate) ms: f64,
    /// Wait for the step's data; part of `ms`.
    pub(crate) data_ms: f64,
    pub(crate) tokens: u64,
    pub(crate) tokens_per_second: f64,
    /// Share of the highest FLOP/s measured on this device.
    pub(crate) mfu: Option<f64>,
    pub(crate) device_bytes: u64,
    pub(crate) device_budget: Option<u64>,
    /// Spilled tensors and host optimizer, at the step's peak.
    pub(crate) host_bytes: u64,
    /// Inputs of recomputed blocks at the end of the forward pass, on both tiers.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) kept_inputs: u64,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    /// The trainer's own reads, mainly gradients.
    pub(crate) bytes_read: u64,
    /// The trainer's own writes, mainly weights.
    pub(crate) bytes_written: u64,
    /// Whether gradients or activations are read, for a host optimizer or other ranks.
    #[serde(skip)]
    pub(crate) gradients_leave: bool,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) disk_written: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) disk_read: u64,
    /// Bytes to the disk, by all processes of the run.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) drive_wear: u64,
    pub(crate) evictions: u64,
    pub(crate) restores: u64,
    pub(crate) stall_ms: f64,
    /// Host updates ended since the last report; they overlap the forward pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host_step_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host_step_wait_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks_sent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks_heard: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks_ms: Option<f64>,
    /// Wait for other ranks; part of `ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks_stall_ms: Option<f64>,
    /// Peak bytes of gradients outside the host optimizer on this rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gradients_held: Option<u64>,
    /// Since step 1, without interruptions.
    pub(crate) seconds: f64,
    /// Steps before those of `seconds`, taken in another directory.
    #[serde(skip)]
    pub(crate) untimed: u64,
    #[serde(skip)]
    pub(crate) failure: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Validation {
    /// Sum of negative log-likelihoods over counted targets.
    pub(crate) sum: f64,
    pub(crate) counted: f64,
    pub(crate) failure: Option<String>,
}

impl Report {
    pub(crate) fn is_usable(&self) -> bool {
        self.loss.is_finite() && self.gnorm.is_finite()
    }

    /// Bytes in and out. The trainer's own count only with gradients; tokens and losses are negligible.
    pub(crate) fn over_the_link(&self) -> [u64; 2] {
        let own = if self.gradients_leave { [self.bytes_written, self.bytes_read] } else { [0; 2] };
        [self.bytes_in + own[0], self.bytes_out + own[1]]
    }

    pub(crate) fn time(&mut self, step: Duration, data: Duration) {
        self.ms = step.as_secs_f64() * 1e3;
        self.data_ms = data.as_secs_f64() * 1e3;
    }

    pub(crate) fn host_step(&mut self, times: Option<[Duration; 2]>) {
        let [stepping, waiting] = [0, 1].map(|which: usize| Some(times?[which].as_secs_f64() * 1e3));
        (self.host_step_ms, self.host_step_wait_ms) = (stepping, waiting);
    }

    pub(crate) fn ranks(&mut self, before: Spent, after: Spent) {
        let since = |time: fn(&Spent) -> Duration| {
            Some(time(&after).saturating_sub(time(&before)).as_secs_f64() * 1e3)
        };
        self.ranks_sent = Some(after.costs.sent - before.costs.sent);
        self.ranks_heard = Some(after.costs.received - before.costs.received);
        self.ranks_ms = since(|spent| spent.costs.time);
        self.ranks_stall_ms = since(|spent| spent.stood);
    }

    /// Sets bytes held and moved from two readings of the counters and the host tier's peak. The first reading reset
    /// the peaks.
    pub(crate) fn memory(&mut self, before: &Stats, after: &Stats, host: u64) {
        self.host_bytes = host;
        self.device_bytes = after.device.peak;
        self.device_budget = after.device.budget;
        self.bytes_out = after.bytes_out - before.bytes_out;
        self.bytes_in = after.bytes_in - before.bytes_in;
        self.bytes_read = after.bytes_read - before.bytes_read;
        self.bytes_written = after.bytes_written - before.bytes_written;
        self.disk_written = after.bytes_to_disk - before.bytes_to_disk;
        self.disk_read = after.bytes_from_disk - before.bytes_from_disk;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_names_every_field_of_a_step_and_no_other() {
        let some = Some(1.0);
        let report = Report {
            mfu: some,
            device_budget: Some(1),
            disk_written: 1,
            disk_read: 1,
            drive_wear: 1,
            kept_inputs: 1,
            host_step_ms: some,
            host_step_wait_ms: some,
            ranks_sent: Some(1),
            ranks_heard: Some(1),
            ranks_ms: some,
            ranks_stall_ms: some,
            gradients_held: Some(1),
            ..Report::default()
        };
        let record = serde_json::to_value(report).expect("JSON");
        let mut fields: Vec<_> = record.as_object().expect("fields").keys().map(String::as_str).collect();
        fields.retain(|field| *field != "step");
        let page = include_str!("../../../docs/reference/metrics.md");
        let table =
            page.split("## `step`").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("a section");
        let cells =
            table.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split(" | ").next());
        let mut named: Vec<_> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        named.sort_unstable();
        assert_eq!(named, fields);
    }
}
