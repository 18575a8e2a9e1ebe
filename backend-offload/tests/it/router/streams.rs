//! Golden streams: the decisions made while the training programs run, compared with a committed record.
//!
//! Evictions, restores and drops, their order and bytes, follow from the program and the budget alone. A change of
//! the pager that is not meant to change decisions leaves every line as it was.
//! `OFFLOAD_WRITE_GOLDEN=1` writes the record anew.

use super::training;
use crate::child::Report;
use std::fmt::Write;
use std::path::PathBuf;

const STEPS: usize = 6;

const PROGRAMS: [&str; 4] = ["mlp", "conv", "transformer", "tied transformer"];

/// Facts that follow from anything but decisions: the bits of the results depend on the processor.
const NOT_DECISIONS: &[&str] = &["fingerprint", "peak found"];

fn record() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/router.txt")
}

/// One paragraph a program and budget, one fact a line.
fn streams() -> String {
    let mut text = String::new();
    for program in PROGRAMS {
        let free = training(program, STEPS).run();
        let (peak, floor) = (free.number("peak"), free.number("largest launch"));
        paragraph(&mut text, program, "unlimited", &free);
        for (name, budget) in [("60 %", peak * 6 / 10), ("30 %", peak * 3 / 10), ("tight", floor)] {
            let report = training(program, STEPS).with("budget", budget.max(floor)).run();
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

#[test]
fn decisions_under_every_budget_are_those_on_record() {
    let found = streams();
    if std::env::var_os("OFFLOAD_WRITE_GOLDEN").is_some() {
        std::fs::write(record(), &found).expect("the record can be written");
    }
    let expected = std::fs::read_to_string(record()).expect("a committed record");
    let mut section = "";
    for (expected, found) in expected.lines().zip(found.lines()) {
        if expected.starts_with('[') {
            section = expected;
        }
        assert_eq!(found, expected, "in {section}");
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}
