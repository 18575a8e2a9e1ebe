//! The plan against measurements after the run.

use backend_offload::Bytes;
use serde::Serialize;

use super::Plan;
use super::table::Table;
use crate::figures::duration;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Measured {
    pub(crate) peak_device_bytes: u64,
    pub(crate) peak_host_bytes: u64,
    /// Medians, like the next two fields.
    pub(crate) bytes_in_per_step: u64,
    pub(crate) bytes_out_per_step: u64,
    pub(crate) step_seconds: f64,
    pub(crate) largest_operation: u64,
    pub(crate) checkpoint_bytes: Option<u64>,
}

impl Plan {
    pub(crate) fn compare(&self, measured: &Measured) -> String {
        let mut table = Table::default();
        table.row(["", "predicted", "measured", "ratio"]);
        let mut bytes = |what: &str, predicted: u64, measured: u64| {
            let ratio = match (predicted, measured) {
                (0, 0) => "1.00".to_owned(),
                (0, _) => "–".to_owned(),
                _ => format!("{:.2}", measured as f64 / predicted as f64),
            };
            table.row([what, &Bytes(predicted).to_string(), &Bytes(measured).to_string(), &ratio]);
        };

        bytes("device", self.stays, measured.peak_device_bytes);
        bytes("host", self.host_tier_bytes, measured.peak_host_bytes);
        bytes("in per step", self.bytes_in_per_step, measured.bytes_in_per_step);
        bytes("out per step", self.bytes_out_per_step, measured.bytes_out_per_step);
        bytes("largest operation", self.largest_operation, measured.largest_operation);
        if let Some(checkpoint) = measured.checkpoint_bytes {
            bytes("checkpoint", self.checkpoint_bytes, checkpoint);
        }

        if let Some((fast, slow)) = self.step_seconds() {
            // The measured step should lie between both.
            for (what, predicted) in [("step, copies hidden", fast), ("step, copies waited for", slow)] {
                let ratio = format!("{:.2}", measured.step_seconds / predicted);
                table.row([what, &duration(predicted), &duration(measured.step_seconds), &ratio]);
            }
        }
        table.to_string()
    }
}
