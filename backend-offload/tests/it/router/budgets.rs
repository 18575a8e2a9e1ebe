//! Training under budgets changes no bit.

use super::training;
use crate::child::Report;

const STEPS: usize = 20;

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
        assert!(
            tight.number("predicted") > free.number("launches") / 2,
            "{program} repeats, and that is noticed"
        );

        let recency = training(program, STEPS).with("budget", budget).with("policy", "recency").run();
        assert_eq!(recency.number("fingerprint"), free.number("fingerprint"), "{program} at {budget} bytes");
        assert_eq!(recency.number("predicted"), 0);
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
fn a_disk_below_a_quarter_of_the_host_changes_no_bit() {
    const STEPS: usize = 8;
    let (mut written, mut loaded) = (0, 0);
    let programs = ["transformer", "conv", "normalised", "recurrent", "mlp", "tied transformer"];
    for program in suite::first(3, &programs) {
        let free = training(program, STEPS).run();
        let budget = (free.number("peak") * 3 / 10).max(free.number("largest launch"));
        let tight = || training(program, STEPS).with("budget", budget);
        let roomy = tight().run();
        let host = roomy.number("host peak") / 4;

        let full = tight().with("host budget", host).run();
        assert!(full.find("error").is_some_and(|error| error.contains("raise the host budget")), "{program}");
        let spilling = tight().with("host budget", host).with("disk", "256MiB").with("paranoid", true).run();

        println!(
            "{program}: host {host} bytes; {} spilled, {} were written before, {} bytes written; {} loaded, {} of them ahead, {} bytes read",
            spilling.number("spilled"),
            spilling.number("written ahead"),
            spilling.number("bytes to disk"),
            spilling.number("loaded"),
            spilling.number("loaded ahead"),
            spilling.number("bytes from disk")
        );

        assert_eq!(spilling.find("error"), None, "{program}");
        assert_eq!(spilling.number("fingerprint"), free.number("fingerprint"), "{program}");
        assert!(spilling.number("loaded") > 0 && spilling.number("host peak") <= host, "{program}");
        assert!(
            spilling.number("bytes to disk") < spilling.number("bytes out"),
            "only what has no room spills"
        );
        assert_eq!(roomy.find("spilled"), None, "{program}");
        written += spilling.number("written ahead");
        loaded += spilling.number("loaded ahead");
    }
    assert!(written > 0 && loaded > 0, "what spills and what is loaded passes the disk beside the program");
}

#[test]
fn small_buffers_are_not_managed() {
    let tiny = training("transformer", 3).with("size", "tiny").with("budget", "64KiB").run();
    assert_eq!((tiny.number("peak"), tiny.number("evictions")), (0, 0));
}

#[test]
fn a_tiny_transformer_trains_to_the_same_bits_one_operation_at_a_time() {
    let free = training("transformer", 3).with("size", "tiny").run();
    let alone = training("transformer", 3).with("size", "tiny").with("smallest block", 1);
    let alone = alone.with("budget", 1).with("alone", true).run();
    assert_eq!(alone.number("fingerprint"), free.number("fingerprint"));
    assert!(alone.number("over budget") > 0);
}

#[test]
fn a_fitting_program_moves_nothing_under_any_policy() {
    let programs = ["mlp", "conv", "normalised", "recurrent", "transformer", "tied transformer"];
    for program in programs {
        let free = training(program, 5).run();
        for policy in ["planned", "recency"] {
            let exact = training(program, 5).with("budget", free.number("peak")).with("policy", policy).run();
            assert_eq!(exact.number("fingerprint"), free.number("fingerprint"), "{program}, {policy}");
            for count in ["evictions", "clean drops", "restores", "bytes out", "bytes in", "host peak"] {
                assert_eq!(exact.number(count), 0, "{program}, {policy}: {count}");
            }
            assert_eq!(exact.number("peak"), free.number("peak"), "{program}, {policy}");
        }
    }
}

#[test]
fn storages_recounted_after_every_operation_never_exceed_the_budget() {
    let free = training("transformer", 3).with("smallest block", 1).run();
    let budget = free.number("peak") / 2;
    let tight =
        training("transformer", 3).with("smallest block", 1).with("budget", budget).with("watch", true);
    let tight = tight.run();
    assert_eq!(tight.number("fingerprint"), free.number("fingerprint"));
    let found = tight.number("peak found");
    assert!(found > budget / 2 && found <= budget, "{found} of {budget}");
}

#[test]
fn eight_threads_train_side_by_side_to_the_same_bits() {
    let free = training("mlp", 5).run();
    let budget = free.number("peak");
    let crowded = training("mlp", 5).with("threads", 8).with("budget", budget).with("paranoid", true).run();
    assert_eq!(crowded.find("error"), None);
    assert_eq!(crowded.number("fingerprint"), free.number("fingerprint"));
    assert!(crowded.number("restores") > 0 && crowded.number("peak reserved") <= budget);
    assert_eq!(crowded.number("in use") + crowded.number("host in use"), 0);
}

#[test]
fn storages_overwritten_on_eviction_and_checked_on_restore_train_to_the_same_bits() {
    let free = training("transformer", STEPS).run();
    let budget = (free.number("peak") * 3 / 10).max(free.number("largest launch"));
    let distrustful = training("transformer", STEPS).with("budget", budget).with("paranoid", true).run();
    assert_eq!(distrustful.number("fingerprint"), free.number("fingerprint"));
    assert!(distrustful.number("restores") > 0);
}

#[test]
fn a_recording_replays_to_the_bytes_that_were_moved() {
    let free = training("transformer", STEPS).run();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("steps.trace");
    for share in [60, 30] {
        let budget = (free.number("peak") * share / 100).max(free.number("largest launch"));
        let run = training("transformer", STEPS).with("budget", budget).with("trace", file.display()).run();
        let bytes = std::fs::read(&file).expect("a recording");
        std::fs::remove_file(&file).expect("it was there");
        let recording = pager::Recording::from_bytes(&bytes).expect("a recording");
        let replay =
            pager_replay::Replay::new(&recording, pager::Limit::bytes(budget), pager::Policy::Planned);
        let counters = replay.run(1).expect("it ran once").pager().counters();
        assert_eq!(counters.link.bytes_in, run.number("bytes in"), "{share} %");
        assert_eq!(counters.link.bytes_out, run.number("bytes out"), "{share} %");
    }
}

#[test]
fn a_dry_run_takes_the_memory_of_a_real_one_and_computes_nothing() {
    for program in ["mlp", "transformer"] {
        let free = training(program, 3).run();
        let dry = training(program, 3).with("dry", true).run();
        assert_eq!(dry.number("launches"), free.number("launches"), "{program}");
        // The dry run copies results that are the backend's views.
        let (dry_peak, peak) = (dry.number("peak"), free.number("peak"));
        assert!(dry_peak.abs_diff(peak) * 20 <= peak, "{program}: {dry_peak}, really {peak}");
        assert_ne!(dry.number("fingerprint"), free.number("fingerprint"), "{program}: zeros");
    }
}
