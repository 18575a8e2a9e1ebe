//! Processes that hold a share of the weights, from a user's point of view.

use std::fs;

use serde_json::Value;

use crate::program::{PROGRAM, assert_code, assert_success, can_mount, json, stderr};
use crate::ranks::{SHARED, has_mpi, plain_mpirun, set};
use crate::tiny::{TIGHT, Tiny, bits, number};

const WEIGHTS: [&str; 3] = ["memory.shard=weights", "train.recompute=1", "model.n_layer=4"];

#[test]
fn ranks_that_gather_weights_evaluate_sample_save_and_resume_as_one() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let cases: [&[&str]; 3] = [
        &["memory.optimizer=host", "memory.optimizer_state=bf16", "model.compute=bf16", "train.together=2"],
        &[TIGHT, "train.optimizer=muon"],
        &["memory.optimizer=host", "memory.stream=int8", "train.optimizer=sgd", TIGHT],
    ];
    let looks = ["eval.every=2", "eval.sequences=3", "eval.sample_every=2", "eval.max_new_tokens=8"];
    let keys = ["step", "loss", "bits_per_byte", "sequences", "prompt", "text"];
    let numbers = |record: &Value| keys.map(|key| record[key].to_string()).join(" ");
    let seen = |run: &str| {
        let records = ["eval", "sample"].map(|kind| tiny.records(run, kind));
        records.iter().flatten().map(numbers).collect::<Vec<_>>()
    };

    for (n, more) in cases[..suite::size().pick(1, 1, 3)].iter().enumerate() {
        let settings = [&SHARED[..], &WEIGHTS, &looks, more].concat();
        let (whole, run) = (format!("whole-{n}"), format!("run-{n}"));
        let one = tiny.run(&whole, &[&settings[..], &["train.steps=6"]].concat());
        tiny.run_on("4", &run, &[&settings[..], &["train.steps=2", "checkpoint.every=1"]].concat());
        tiny.resume_on("3", &run, &["train.steps=3"]);
        tiny.resume_on("2", &run, &["train.steps=4", "memory.shard=states"]);
        tiny.resume_on("2", &run, &["train.steps=5", "memory.shard=weights"]);
        let again = tiny.resume(&run, &["train.steps=6", "memory.shard=false"]);
        assert_eq!(bits(&again), bits(&one), "{more:?}");
        let expected = seen(&whole);
        let found = seen(&run);
        assert!(
            expected.iter().all(|line| found.contains(line)),
            "{more:?}: {found:?} lacks some of {expected:?}"
        );
    }
}

#[test]
fn ranks_that_gather_weights_take_less_memory_and_send_what_the_plan_says() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [&SHARED[..], &["train.recompute=1", "model.n_layer=8", "train.together=1"]].concat();
    let trained = |shard: &str| {
        let settings = [&settings[..], &[shard]].concat();
        let output = tiny.attempt_on("2", shard, &settings);
        assert_success(&output);
        let planned = number(&tiny.planned_on_two(&settings), "bytes_sent_per_step");
        (json(&output), planned)
    };
    let (states, _) = trained("memory.shard=states");
    let (weights, planned) = trained("memory.shard=weights");
    assert_eq!(bits(&weights), bits(&states));

    // Half of eight blocks are elsewhere; two are gathered.
    let block = 4 * (4 * 128 * 128 + 2 * 128 * 512);
    let [states, weights_peak] = [&states, &weights].map(|summary| number(summary, "peak_device_bytes"));
    assert!(weights_peak + 2 * block < states, "{weights_peak} {states}");
    for rank in ["", "/ranks/1"] {
        let moments = &tiny.records(&format!("memory.shard=weights{rank}"), "moments")[0];
        assert_eq!(number(moments, "gathered_bytes"), 2 * block);
    }

    let steps = ["", "/ranks/1"].map(|rank| tiny.records(&format!("memory.shard=weights{rank}"), "step"));
    for (one, other) in steps[0].iter().zip(&steps[1]) {
        let sent: u64 = [one, other].map(|step| number(step, "ranks_sent")).iter().sum();
        assert!((2 * planned..2 * planned + 2048).contains(&sent), "{sent} for twice {planned}");
    }
}

#[test]
fn weights_are_divided_only_where_blocks_are_recomputed() {
    let output = Tiny::new().attempt("run", &["memory.shard=weights"]);
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(
        said.contains("`memory.shard` = \"weights\"") && said.contains("`train.recompute` = null"),
        "{said}"
    );
}

/// Its view of the checkpoints is read-only, as on a host that mounts them so.
#[test]
fn a_rank_that_cannot_write_its_part_leaves_training_and_earlier_checkpoints_intact() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let mount = "mount --bind run/checkpoints run/checkpoints && mount -o remount,bind,ro run/checkpoints";
    fs::create_dir_all(tiny.join("run/checkpoints")).expect("a folder");
    let can_mount = can_mount(tiny.path(), mount);
    fs::remove_dir_all(tiny.join("run")).expect("removing");
    if can_mount {
        let alone = ["unshare", "--map-root-user", "--mount", "sh", "-c"];
        go_on_without_checkpoints(&tiny, &WEIGHTS, (&alone, mount), "Read-only");
    }
}

/// A file may not grow beyond 64 KiB, so that a part's first bytes are written and then no more.
#[test]
fn a_rank_whose_disk_is_full_leaves_training_and_earlier_checkpoints_intact() {
    if !has_mpi() {
        return;
    }
    let pipeline = ["ranks.pipeline=2", "train.recompute=1", "model.n_layer=4"];
    for mode in suite::first(1, &[&WEIGHTS[..], &pipeline, &["memory.shard=states"]]) {
        let limit = (&["sh", "-c"][..], "trap '' XFSZ && ulimit -f 128");
        go_on_without_checkpoints(&Tiny::new(), mode, limit, "File too large");
    }
}

/// Resumes a run with a second rank that `words` and the script's `beginning` start.
fn go_on_without_checkpoints(
    tiny: &Tiny,
    mode: &[&str],
    (words, beginning): (&[&str], &str),
    expected: &str,
) {
    let settings = [&SHARED[..], mode].concat();
    let undisturbed = bits(&tiny.run("one", &[&settings[..], &["train.steps=6"]].concat()));
    tiny.run("run", &[&settings[..], &["train.steps=3"]].concat());

    let go_on = ["--resume", "run", "--device", "cpu"].iter().copied();
    let go_on: Vec<&str> = go_on.chain(set(&["train.steps=6", "checkpoint.every=2"])).collect();
    let script = format!("{beginning} && exec {PROGRAM} {}", go_on.join(" "));
    let mut mpirun = plain_mpirun();
    // Ranks of two namespaces may not read each other's memory, and a small disk has no room to share some.
    mpirun.env("OMPI_MCA_btl", "tcp,self");
    mpirun.args(["-n", "1", PROGRAM]).args(&go_on).arg(":");
    mpirun.args(["-n", "1"]).args(words).arg(&script);
    let output = tiny.run_to_end(&mut mpirun);
    assert_code(&output, 1);

    let said = stderr(&output);
    assert!(said.contains("rank 1: could not write ") && said.contains(expected), "{said}");
    for step in [4, 6] {
        let message = format!("step {step}: no checkpoint was saved: saving step {step} as ");
        assert!(said.contains(&message), "{message:?} is not in\n{said}");
    }
    assert!(said.contains("another rank could not write its part"), "{said}");
    assert!(said.contains("the run ends without a checkpoint of its last step: step 6: "), "{said}");
    assert_eq!((tiny.records("run", "step").len(), tiny.whole_checkpoints("run")), (6, vec![3]));
    assert_eq!(bits(&tiny.resume("run", &["train.steps=6"])), undisturbed);
}
