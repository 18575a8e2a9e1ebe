//! The timeline of one early step, for the report.

use std::time::Duration;

use backend_offload::Stretch;
use serde::Serialize;

use crate::progress::Report;

/// By then kernels are chosen, and the pager knows the step.
const BEFORE: u64 = 3;

pub(super) fn watched(taken: u64, steps: u64) -> u64 {
    (taken + BEFORE + 1).min(steps)
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Timeline {
    step: u64,
    device_budget: Option<u64>,
    operations: u64,
    kept_inputs: u64,
    /// Ends of the stretches, from the step's beginning.
    until_us: Vec<u64>,
    resident: Vec<u64>,
    /// Includes the trainer's own reads and writes for gradients.
    bytes_out: Vec<u64>,
    bytes_in: Vec<u64>,
    waited_us: Vec<u64>,
}

impl Timeline {
    pub(super) fn of(report: &Report, stretches: &[Stretch]) -> Self {
        let own = u64::from(report.gradients_leave);
        let list = |value: &dyn Fn(&Stretch) -> u64| stretches.iter().map(value).collect();
        let mut waited = Duration::ZERO;

        // Rounds the sum, not each stretch.
        let micros = |stretch: &Stretch| {
            let before = waited.as_micros();
            waited += stretch.waited;
            (waited.as_micros() - before) as u64
        };

        let waited_us = stretches.iter().map(micros).collect();
        Self {
            step: report.step,
            device_budget: report.device_budget,
            kept_inputs: report.kept_inputs,
            operations: stretches.iter().map(|stretch| stretch.operations).sum(),
            until_us: list(&|stretch| stretch.until.as_micros() as u64),
            resident: list(&|stretch| stretch.resident),
            bytes_out: list(&|stretch| stretch.bytes_out + own * stretch.bytes_read),
            bytes_in: list(&|stretch| stretch.bytes_in + own * stretch.bytes_written),
            waited_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_step_of_a_process_is_watched_or_the_last_of_a_shorter_one() {
        let cases = [((0, 700), 4), ((0, 2), 2), ((0, 4), 4), ((100, 700), 104), ((699, 700), 700)];
        for ((taken, steps), step) in cases {
            assert_eq!(watched(taken, steps), step, "after {taken} of {steps}");
        }
    }
}
