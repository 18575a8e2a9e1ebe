//! The trainer's JSON summary; also a record's columns.

use anyhow::{Context, Result};
use serde::Deserialize;

macro_rules! summary {
    ($($(#[$attribute:meta])* $field:ident: $kind:ty,)*) => {
        /// Ignores other keys.
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        pub(super) struct Summary {
            $($(#[$attribute])* pub(super) $field: $kind,)*
        }

        impl Summary {
            pub(super) const COLUMNS: &'static [&'static str] = &[$(stringify!($field)),*];

            pub(super) fn to_columns(&self) -> Vec<String> {
                vec![$(self.$field.to_column()),*]
            }
        }
    };
}

summary! {
    device: String,
    parameters: u64,
    steps: u64,
    tokens: u64,
    seconds: f64,
    step_ms_median: Option<f64>,
    tokens_per_second: f64,
    /// `None` if NaN or infinite.
    loss: Option<f64>,
    losses_sha256: String,
    weights_sha256: String,
    peak_device_bytes: u64,
    peak_host_bytes: u64,
    #[serde(rename = "step_bytes_out")]
    bytes_out: u64,
    #[serde(rename = "step_bytes_in")]
    bytes_in: u64,
    evictions: u64,
    restores: u64,
    stall_seconds: f64,
    largest_launch: u64,
    /// Disk below host memory.
    #[serde(default)]
    bytes_to_disk: Option<u64>,
    #[serde(default)]
    bytes_from_disk: Option<u64>,
    /// Medians without the first step: over the link, and of spilled tensors.
    #[serde(default)]
    bytes_out_median: Option<u64>,
    #[serde(default)]
    bytes_in_median: Option<u64>,
    #[serde(default)]
    spilled_out_median: Option<u64>,
    #[serde(default)]
    spilled_in_median: Option<u64>,
    /// Of spilled tensors in the whole run, timed by `stall_seconds`.
    #[serde(default, rename = "bytes_out")]
    spilled_out: Option<u64>,
    #[serde(default, rename = "bytes_in")]
    spilled_in: Option<u64>,
    /// Blocks evicted and loaded ahead of need, and loaded in vain.
    #[serde(default)]
    left_ahead: Option<u64>,
    #[serde(default)]
    brought_ahead: Option<u64>,
    #[serde(default)]
    brought_in_vain: Option<u64>,
    /// One long copy in the same process.
    #[serde(default)]
    link_bytes_per_second: Option<f64>,
    /// Lower bounds of a step under this budget.
    #[serde(skip)]
    least_out: Option<u64>,
    #[serde(skip)]
    least_in: Option<u64>,
    #[serde(skip)]
    joules_per_kilotoken: Option<f64>,
    /// The plan's choices, which may follow the budget: the optimizer's place, the blocks that step on the device
    /// nevertheless, and micro-batches that pass together.
    #[serde(skip)]
    optimizer_on: Option<String>,
    #[serde(skip)]
    device_blocks: Option<u64>,
    #[serde(skip)]
    together: Option<u64>,
}

impl Summary {
    pub(super) fn parse(printed: &str) -> Result<Self> {
        serde_json::from_str(printed.trim()).context("its output is no summary")
    }

    /// Whether both must have the same bits: another place of the optimizer has other last digits.
    pub(super) fn is_comparable(&self, other: &Self) -> bool {
        self.optimizer_on == other.optimizer_on && self.device_blocks == other.device_blocks
    }

    /// Whether both have the same operations in a step.
    pub(super) fn has_steps_of(&self, other: &Self) -> bool {
        self.is_comparable(other) && self.together == other.together
    }

    pub(super) fn bytes_per_step(&self) -> u64 {
        (self.bytes_out + self.bytes_in).checked_div(self.steps).unwrap_or_default()
    }

    /// Bytes out, in, and both per parameter.
    pub(super) fn crossings_per_step(&self) -> (u64, u64, f64) {
        let each =
            [self.bytes_out, self.bytes_in].map(|bytes| bytes.checked_div(self.steps).unwrap_or_default());
        let both = self.bytes_out + self.bytes_in;
        let places = (self.steps * self.parameters).max(1);
        (each[0], each[1], both as f64 / places as f64)
    }

    pub(super) fn disk_bytes_per_step(&self) -> u64 {
        let both = [self.bytes_to_disk, self.bytes_from_disk];
        both.into_iter().flatten().sum::<u64>().checked_div(self.steps).unwrap_or_default()
    }

    pub(super) fn stall_share(&self) -> f64 {
        self.stall_seconds / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// A number's text has all its bits.
trait Column {
    fn to_column(&self) -> String;
}

impl Column for String {
    fn to_column(&self) -> String {
        self.clone()
    }
}

impl Column for u64 {
    fn to_column(&self) -> String {
        self.to_string()
    }
}

impl Column for f64 {
    fn to_column(&self) -> String {
        self.to_string()
    }
}

impl<T: Column> Column for Option<T> {
    fn to_column(&self) -> String {
        self.as_ref().map(Column::to_column).unwrap_or_default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A summary with a key that is not read.
    pub(in super::super) const PRINTED: &str = r#"{"outcome": "done", "device": "cpu", "parameters": 1200000,
        "steps": 10, "tokens": 10240, "seconds": 4.0, "step_ms_median": 350.5, "tokens_per_second": 3000.0,
        "loss": 0.1, "val_loss": null, "losses_sha256": "aa", "weights_sha256": "bb",
        "peak_device_bytes": 40000000, "peak_host_bytes": 0, "step_bytes_out": 0, "step_bytes_in": 0, "evictions": 0,
        "restores": 0, "stall_seconds": 0.0, "largest_launch": 9000000, "device_budget": null, "quiz": null}"#;

    pub(in super::super) fn summary() -> Summary {
        Summary::parse(PRINTED).unwrap()
    }

    #[test]
    fn unknown_keys_are_ignored_and_missing_ones_named() {
        assert_eq!(summary().parameters, 1_200_000);
        let error = Summary::parse(&PRINTED.replace("\"steps\"", "\"stops\"")).unwrap_err();
        assert!(format!("{error:#}").contains("missing field `steps`"), "{error:#}");
    }

    #[test]
    fn shares_are_of_the_whole_run() {
        let run = Summary { bytes_out: 100, bytes_in: 200, stall_seconds: 1.0, ..summary() };
        assert_eq!((run.bytes_per_step(), run.stall_share()), (30, 0.25));
        assert_eq!(Summary { steps: 0, ..run }.bytes_per_step(), 0);
    }
}
