//! The default command with fewer steps: it learns, spills and answers.

use serde_json::Value;

use crate::program::{assert_success, train};

const STEPS: u64 = 120;
const LOSS_BELOW: f64 = 0.45;
const RIGHT_AT_LEAST: u64 = 12;

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: the first command itself shows it"]
    fn the_default_command_learns_to_answer_under_a_budget_that_does_not_hold_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let output = train(folder.path(), &["--json", "--set", &format!("train.steps={STEPS}")]);
        assert_success(&output);
        let summary: Value = serde_json::from_slice(&output.stdout).expect("nothing but the summary");
        let number = |key: &str| summary[key].as_u64().unwrap_or_else(|| panic!("no {key} in {summary:#}"));
        let loss = summary["val_loss"].as_f64().expect("a loss");
        assert!(loss < LOSS_BELOW, "{summary:#}");
        assert!(number("evictions") > 1000 && number("restores") > 1000, "{summary:#}");
        assert!(number("peak_device_bytes") <= number("device_budget"), "{summary:#}");
        let right = summary["quiz"]["held_out"]["right"].as_u64().expect("a score");
        assert!(right >= RIGHT_AT_LEAST, "{summary:#}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("questions never asked in training: {right} of 100 right")), "{said}");
    }
}
