//! A full disk, and files that cannot be written.

use std::{
    fs,
    process::{Command, Output},
};

use crate::program::{
    CACHE, PROGRAM, assert_code, assert_success, can_mount, last_words, stderr, with_own_mounts,
};
use crate::tiny::Tiny;

const FRESH: &str = "--config tiny.json --device cpu --out run";
const MORE: &str = "--device cpu --resume run --set train.steps=6";

fn shell(tiny: &Tiny, script: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir(tiny.path()).envs([CACHE]).output().expect("a shell")
}

#[test]
fn a_failed_save_leaves_training_and_earlier_checkpoints_intact() {
    let tiny = Tiny::trained(&["train.steps=3"]);
    // Blocks of 512 or 1024 bytes: less than the weights.
    let output = shell(&tiny, &format!("ulimit -f 600; exec {PROGRAM} {MORE} --set checkpoint.every=2"));
    assert_code(&output, 1);

    let said = stderr(&output);
    for step in [4, 6] {
        let message = format!("step {step}: no checkpoint was saved: saving step {step} as run/checkpoints/");
        assert!(said.contains(&message), "{message:?} is not in\n{said}");
    }

    assert!(said.contains("; training continues"), "{said}");
    assert!(said.contains("make room or keep fewer checkpoints"), "{said}");
    let end = "train: the run ends without a checkpoint of its last step: step 6: ";
    assert!(last_words(&output, tiny.path()).starts_with(end), "{said}");
    assert_eq!(tiny.records("run", "step").len(), 6);

    let failed: Vec<_> =
        tiny.records("run", "checkpoint").into_iter().filter(|record| record["error"].is_string()).collect();
    assert_eq!(failed.len(), 2);
    assert_eq!(tiny.whole_checkpoints("run"), [3]);
    let resumed = tiny.resume("run", &["train.steps=6"]);
    assert_eq!(resumed["weights_sha256"], tiny.run("whole", &["train.steps=6"])["weights_sha256"]);
}

#[test]
fn a_full_disk_leaves_training_and_earlier_checkpoints_intact() {
    let tiny = Tiny::new();
    let mount = "mount -t tmpfs -o size=8m none run";
    fs::create_dir(tiny.join("run")).expect("making");
    if !can_mount(tiny.path(), mount) {
        return;
    }

    // A checkpoint is 3 MiB: two fit.
    let begin = format!("{PROGRAM} {FRESH} --set train.steps=3 2>/dev/null || exit 90");
    let go_on = format!("{PROGRAM} {MORE} --set checkpoint.every=1 --set checkpoint.keep_last=9; code=$?");
    let check = format!("{PROGRAM} inspect run > inspected");
    let script = format!("{mount}; {begin}; {go_on}; {check}; exit $code");
    let output = with_own_mounts(tiny.path(), &script).output().expect("a shell");
    assert_code(&output, 1);

    let said = stderr(&output);
    assert!(said.contains("step 5: no checkpoint was saved: saving step 5 in "), "{said}");
    assert!(said.contains("Nothing was written; make room"), "{said}");

    let end = "train: the run ends without a checkpoint of its last step: step 6: ";
    assert!(last_words(&output, tiny.path()).starts_with(end), "{said}");
    let inspected = fs::read_to_string(tiny.join("inspected")).expect("reading");
    assert!(inspected.contains("step-00000003: step 3, ") && inspected.contains("step-00000004: step 4, "));
    assert_eq!(inspected.matches(", whole\n").count(), 2, "{inspected}");
}

#[test]
fn a_failed_background_save_is_reported_and_fails_the_run_at_its_end() {
    let tiny = Tiny::trained(&["train.steps=3"]);
    // A mounted file cannot be replaced: a save's last operation fails.
    let pin = "mount --bind run/checkpoints/latest run/checkpoints/latest";
    if !can_mount(tiny.path(), pin) {
        return;
    }
    let go_on = format!("{PROGRAM} {MORE} --set checkpoint.every=2");
    let output = with_own_mounts(tiny.path(), &format!("{pin}; exec {go_on}")).output().expect("a shell");
    assert_code(&output, 1);
    let said = stderr(&output);
    let message = "step 4: no checkpoint was saved: ";
    assert!(said.contains(message) && said.contains("; training continues"), "{said}");
    let end = "train: the run ends without a checkpoint of its last step: step 6: ";
    assert!(last_words(&output, tiny.path()).starts_with(end), "{said}");
}

#[test]
fn a_run_that_cannot_write_its_metrics_fails_with_the_reason() {
    let tiny = Tiny::trained(&["train.steps=3"]);
    let output = shell(&tiny, &format!("ulimit -f 1; exec {PROGRAM} {MORE}"));
    assert_code(&output, 1);
    assert!(last_words(&output, tiny.path()).contains("run/"), "{}", stderr(&output));
    assert_eq!(tiny.whole_checkpoints("run"), [3]);
    assert_success(&tiny.train(&["inspect", "run"]));
}
