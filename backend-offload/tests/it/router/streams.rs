//! Decisions during training, against a committed record.
//!
//! Program and budget alone decide evictions, restores and drops. The policy is recency, as before a step is learned.
//! `OFFLOAD_WRITE_GOLDEN=1` overwrites the record.

use super::training;
use crate::child::Report;
use std::fmt::Write;
use std::path::PathBuf;

const STEPS: usize = 6;

const PROGRAMS: [&str; 4] = ["mlp", "conv", "transformer", "tied transformer"];

const NOT_DECISIONS: &[&str] = &["fingerprint", "peak found", "predicted"];

fn record(policy: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/router-{policy}.txt"))
}

fn streams(policy: &str) -> String {
    let mut text = String::new();
    for program in PROGRAMS {
        let training = |program| training(program, STEPS).with("policy", policy);
        let free = training(program).run();
        let (peak, floor) = (free.number("peak"), free.number("largest launch"));
        paragraph(&mut text, program, "unlimited", &free);
        for (name, budget) in [("60 %", peak * 6 / 10), ("30 %", peak * 3 / 10), ("tight", floor)] {
            let report = training(program).with("budget", budget.max(floor)).run();
            paragraph(&mut text, program, name, &report);
        }
    }
    text
}

fn paragraph(text: &mut String, program: &str, budget: &str, report: &Report) {
    writeln!(text, "[{program}, {budget}]").expect("a string");
    for (name, value) in report.iter().filter(|(name, _)| !NOT_DECISIONS.contains(name)) {
        writeln!(text, "{name} = {value}").expect("a string");
    }
    text.push('\n');
}

fn decisions_match_the_record(policy: &str) {
    let found = streams(policy);
    if std::env::var_os("OFFLOAD_WRITE_GOLDEN").is_some() {
        std::fs::write(record(policy), &found).expect("the record can be written");
    }
    let expected = std::fs::read_to_string(record(policy)).expect("a committed record");
    let mut section = "";
    for (expected, found) in expected.lines().zip(found.lines()) {
        if expected.starts_with('[') {
            section = expected;
        }
        assert_eq!(found, expected, "in {section}");
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

#[test]
fn decisions_under_every_budget_match_the_record() {
    decisions_match_the_record("recency");
}
