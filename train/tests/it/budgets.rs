//! Memory budgets change no number, and impossible ones give plain errors.

use crate::program::{assert_code, last_words, stderr};
use crate::tiny::{TIGHT, Tiny, bits};

#[test]
fn a_tight_budget_changes_no_bit_of_any_loss_or_weight() {
    let two = "model.n_layer=2";
    let cases: [&[&str]; 8] = [
        &["train.optimizer=adamw", two, "train.recompute=1", "train.accumulate=2"],
        &["train.optimizer=muon", "model.compute=bf16"],
        &["train.optimizer=sgd", "train.accumulate=2"],
        &["train.optimizer=muon", two, "train.recompute=1"],
        &["train.optimizer=adamw", "model.resid_pdrop=0.2", "model.embd_pdrop=0.1"],
        &["train.optimizer=adamw"],
        &["train.optimizer=muon", two],
        &["train.optimizer=sgd", "train.recompute=1"],
    ];
    let tiny = Tiny::new();

    for (n, settings) in suite::first(3, &cases).iter().enumerate() {
        let unlimited = tiny.run(&format!("unlimited-{n}"), settings);
        let tight = tiny.run(&format!("tight-{n}"), &[*settings, &[TIGHT]].concat());
        assert_eq!(unlimited["evictions"], 0, "{settings:?}");
        assert!(tight["evictions"].as_u64().expect("a number") > 50, "{settings:?} did not spill: {tight:#}");
        assert!(tight["peak_device_bytes"].as_u64().expect("a number") <= 1 << 20, "{settings:?}: {tight:#}");
        assert_eq!(bits(&tight), bits(&unlimited), "{settings:?}");
    }
}

#[test]
fn dropout_and_bf16_change_the_losses() {
    let tiny = Tiny::new();
    let plain = bits(&tiny.run("plain", &[]));
    for setting in ["model.resid_pdrop=0.2", "model.embd_pdrop=0.1", "model.compute=bf16"] {
        assert_ne!(bits(&tiny.run(setting, &[setting])), plain, "{setting} does nothing");
    }
}

#[test]
fn recomputation_changes_no_bit() {
    let tiny = Tiny::new();
    let settings = ["model.n_layer=2", "model.resid_pdrop=0.1"];
    let kept = tiny.run("kept", &settings);
    let again = tiny.run("again", &[&settings[..], &["train.recompute=1"]].concat());
    assert_eq!(bits(&again), bits(&kept));
}

#[test]
fn a_budget_below_one_operation_ends_with_its_sizes() {
    let tiny = Tiny::new();
    let output = tiny.attempt("run", &["memory.device_budget=512KiB"]);
    assert_code(&output, 1);
    let said = last_words(&output, tiny.path());
    for part in [
        "the update of step 1 could not run",
        "wants 768.00 KiB",
        "of 512.00 KiB",
        "raise the device budget above 768.00 KiB",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert_eq!(stderr(&output).matches("train: ").count(), 1);
    assert!(!tiny.join("run/summary.json").exists());
}

#[test]
fn a_full_host_ends_with_its_sizes() {
    let tiny = Tiny::trained(&[]);
    let budgets = ["--set", "memory.device_budget=800KiB", "--set", "memory.host_budget=64KiB"];
    let asked = ["sample", "--from", "run", "--device", "cpu", "--prompt", "What"];
    for arguments in [&["eval", "--from", "run", "--device", "cpu"][..], &asked] {
        let output = tiny.train(&[arguments, &budgets[..]].concat());
        assert_code(&output, 1);
        let said = last_words(&output, tiny.path());
        for part in ["(wants ", "of 800.00 KiB", "64.00 KiB in use of 64.00 KiB", "raise the host budget"] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
    }
}
