//! Training under budgets changes no bit.

use super::training;
use crate::child::Report;

const STEPS: usize = 20;

/// Trains with everything on the device, then at shares of what that took, and at the least that can work.
fn any_budget_gives_the_same_bits(program: &str) {
    let free = training(program, STEPS).run();
    assert_eq!(free.number("bytes out"), 0, "nothing leaves an unlimited device");
    let (peak, floor) = (free.number("peak"), free.number("largest launch"));
    for budget in [peak * 6 / 10, peak * 3 / 10, floor] {
        let budget = budget.max(floor);
        let tight = training(program, STEPS).with("budget", budget).run();
        println!("{program} at {budget} of {peak}: {}", summary(&tight));
        assert_eq!(tight.find("error"), None);
        assert_eq!(tight.number("fingerprint"), free.number("fingerprint"), "{program} at {budget} bytes");
        assert!(tight.number("evictions") > 0, "{program} at {budget} bytes spills");
        assert!(tight.number("peak reserved") <= budget, "{program} at {budget} bytes");
        assert_eq!(tight.number("over budget"), 0);
        assert_eq!(tight.number("launches"), free.number("launches"));
    }
}

fn summary(report: &Report) -> String {
    let count = |name| report.number(name);
    format!(
        "{} evictions, {} clean drops, {} restores, {} bytes out, {} in",
        count("evictions"),
        count("clean drops"),
        count("restores"),
        count("bytes out"),
        count("bytes in")
    )
}

#[test]
fn an_mlp_trains_to_the_same_bits_under_any_budget() {
    any_budget_gives_the_same_bits("mlp");
}

#[test]
fn a_conv_net_trains_to_the_same_bits_under_any_budget() {
    any_budget_gives_the_same_bits("conv");
}

#[test]
fn a_transformer_trains_to_the_same_bits_under_any_budget() {
    any_budget_gives_the_same_bits("transformer");
}

#[test]
fn a_tied_transformer_trains_to_the_same_bits_under_any_budget() {
    any_budget_gives_the_same_bits("tied transformer");
}

#[test]
fn a_program_that_fits_moves_nothing() {
    let free = training("transformer", 5).run();
    let exact = training("transformer", 5).with("budget", free.number("peak")).run();
    assert_eq!(exact.number("fingerprint"), free.number("fingerprint"));
    for count in ["evictions", "clean drops", "restores", "bytes out", "bytes in", "host peak"] {
        assert_eq!(exact.number(count), 0, "{count}");
    }
    assert_eq!(exact.number("peak"), free.number("peak"));
}

#[test]
fn storages_overwritten_when_they_leave_and_checked_when_they_return_train_to_the_same_bits() {
    let free = training("transformer", STEPS).run();
    let budget = (free.number("peak") * 3 / 10).max(free.number("largest launch"));
    let distrustful = training("transformer", STEPS).with("budget", budget).with("paranoid", true).run();
    assert_eq!(distrustful.number("fingerprint"), free.number("fingerprint"));
    assert!(distrustful.number("restores") > 0);
}
