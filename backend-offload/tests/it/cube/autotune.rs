//! Autotune under a budget: it never fails a run, and no choice is made on the time of our copies.

use super::{Machine, promises};
use std::path::PathBuf;

/// A directory in which every run tunes from scratch.
fn without_results(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    if directory.exists() {
        std::fs::remove_dir_all(&directory).expect("an old directory of ours");
    }
    std::fs::create_dir_all(&directory).expect("a directory of ours");
    std::fs::write(directory.join("cubecl.toml"), "[autotune]\ncache = \"local\"\n").expect("a file of ours");
    directory
}

promises! { tuning_under_a_budget_times_kernels_and_not_copies }

fn tuning_under_a_budget_times_kernels_and_not_copies(machine: &Machine) {
    let directory = without_results(&format!("tuned-under-a-budget-on-{machine}"));
    let tuned = || {
        machine
            .child("cube/train")
            .with("program", "transformer")
            .with("steps", 2)
            .directory(directory.clone())
    };
    // Every candidate's operands fit, and little more.
    let report = machine.run(tuned().with("budget", "4MiB"));
    println!(
        "tuning under a budget: {} evictions, {} samples discarded, {} corrected",
        report.text("evictions"),
        report.text("autotune discards"),
        report.text("autotune corrections"),
    );
    assert!(report.number("evictions") > 0, "there was pressure");
    assert_eq!(report.number("failures"), 0, "and nothing failed");
    assert_eq!(report.number("autotune corrections"), 0, "every candidate got samples without copies");
    // The results are those of the plain runtime, and serve it: nothing is tuned again.
    assert!(directory.join("autotune").exists(), "results are kept where the runtime keeps them");
    let again = machine.run(tuned());
    assert_eq!(again.number("autotune discards"), 0);
    assert_eq!(again.text("fingerprint"), report.text("fingerprint"), "the same choices, the same bits");
}
