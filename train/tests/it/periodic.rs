//! Ranks that exchange weights once per round: few bytes, equal weights for evaluations and saves, exact resumes.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;

use crate::program::{PROGRAM, assert_code, assert_success, json, stderr};
use crate::ranks::{SHARED, has_mpi, set, signal};
use crate::tiny::{TIGHT, Tiny, bits};

const RARELY: [&str; 2] = ["ranks.exchange=rarely", "ranks.round=3 steps"];

const FEW: u64 = 512;

const ONE_BIT: &str = "ranks.changes=one_bit";

#[test]
fn changes_of_a_round_are_sent_during_the_next_one_and_gradients_never() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [&SHARED[..], &RARELY, &["train.steps=7"]].concat();
    let output = tiny.attempt_on("2", "run", &settings);
    assert_success(&output);

    let weights = 4 * json(&output)["parameters"].as_u64().expect("a number");
    let planned = tiny.planned_on_two(&settings);
    assert_eq!(planned["bytes_sent_per_step"], weights.div_ceil(3));
    assert_eq!(planned["residual_bytes"], 4 * weights);

    for journal in ["run", "run/ranks/1"] {
        for step in tiny.records(journal, "step") {
            let [at, sent] = ["step", "ranks_sent"].map(|key| step[key].as_u64().expect("a number"));
            // The first round's change is there at the end of the second, the last one's at once.
            let least = match at {
                6 => weights,
                7 => 2 * weights,
                _ => 0,
            };
            assert!((least..least + FEW).contains(&sent), "{journal}, step {at}: {sent} of {weights}");
        }
        let rounds = tiny.records(journal, "round").into_iter().map(|round| round["counts"].clone());
        assert_eq!(
            rounds.collect::<Vec<_>>(),
            [[3, 3], [3, 3], [1, 1]].map(|counts| serde_json::json!(counts))
        );
    }
}

#[test]
fn changes_in_one_bit_are_a_small_part_of_the_bytes() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let settings = [&SHARED[..], &RARELY, &[ONE_BIT, "train.steps=6"]].concat();
    let output = tiny.attempt_on("2", "run", &settings);
    assert_success(&output);
    let weights = 4 * json(&output)["parameters"].as_u64().expect("a number");
    let planned = tiny.planned_on_two(&settings);
    assert!(planned["bytes_sent_per_step"].as_u64().is_some_and(|sent| sent < weights / 25 / 3), "{planned}");
    // Residuals of two copies, for all weights and for half of them.
    assert_eq!(planned["residual_bytes"], 4 * weights + 2 * weights + weights);
    let sent: u64 =
        tiny.records("run", "step").iter().map(|step| step["ranks_sent"].as_u64().expect("a number")).sum();
    assert!(sent > weights / 40 && sent < weights / 8, "{sent} of {weights}");
}

#[test]
fn a_run_evaluates_and_saves_only_common_weights() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let often = ["train.steps=8", "eval.every=2", "checkpoint.every=1", "checkpoint.keep_last=9"];
    let settings = [&SHARED[..], &RARELY, &["train.steps=8"]].concat();
    let seldom = tiny.run_on("2", "seldom", &settings);
    assert_eq!(tiny.run_on("2", "run", &[&settings[..], &often].concat()), seldom);
    assert_eq!(tiny.whole_checkpoints("run"), [8, 6, 3]);
    let evaluated = tiny.records("run", "eval").into_iter().map(|eval| eval["step"].as_u64());
    assert_eq!(evaluated.collect::<Option<Vec<_>>>().expect("steps"), [3, 6, 8]);
}

#[test]
fn a_budget_changes_no_bit_of_local_steps_and_rounds() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    for (n, optimizer) in suite::first(1, &["adamw", "muon"]).iter().enumerate() {
        let optimizer = format!("train.optimizer={optimizer}");
        let settings = [&SHARED[..], &RARELY, &["train.steps=7", &optimizer]].concat();
        let roomy = tiny.run_on("2", &format!("roomy-{n}"), &settings);
        let tight = tiny.run_on("2", &format!("tight-{n}"), &[&settings[..], &[TIGHT]].concat());
        assert_eq!(tight, roomy, "{optimizer}");
        assert_ne!(
            roomy,
            bits(&tiny.run(&format!("alone-{n}"), &settings)),
            "{optimizer}: nobody stepped apart"
        );
    }
}

#[test]
fn a_run_resumes_with_what_each_rank_has_to_the_bits_of_an_uninterrupted_one() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [&SHARED[..], &RARELY, &["train.steps=10"]].concat();
    let often = ["checkpoint.every=1", "checkpoint.keep_last=9"];
    let resumes_whole = |run: &str, changes: &str| {
        let whole = tiny.run_on("2", run, &[&settings[..], &often, &[changes]].concat());
        let sixth = format!("{run}/checkpoints/step-00000006");
        let (resumed, said) = tiny.resume_with_log("2", &sixth, &[]);
        assert!(!said.contains("without"), "{said}");
        assert_eq!(bits(&resumed), whole, "{changes}");
        whole
    };
    resumes_whole("in-f32", "ranks.changes=f32");
    let whole = resumes_whole("run", ONE_BIT);
    let sixth = "run/checkpoints/step-00000006";
    let from_its_folder = format!(
        "cd run/checkpoints && exec {PROGRAM} --resume step-00000006 --device cpu --json --ranks 2 --interface lo"
    );
    let output = tiny.run_to_end(Command::new("sh").args(["-c", &from_its_folder]));
    assert_success(&output);
    assert_eq!((bits(&json(&output)), stderr(&output).contains("without")), (whole.clone(), false));

    let momentum =
        "every rank begins with the common weights and the moments of rank 0, outer steps without momentum";
    let residuals = "the exchange begins without the residuals of this checkpoint";
    for (missing, note) in [
        ("1/moments-00000006", momentum),
        ("1/own-weights-00000006", momentum),
        ("0/own-weights-00000006", momentum),
        ("1/change-residuals-00000006", residuals),
    ] {
        let path = tiny.join("run/ranks").join(missing);
        let saved = fs::read(&path).expect("saved beside the checkpoint");
        fs::remove_file(&path).expect("removed");
        let (otherwise, said) = tiny.resume_with_log("2", sixth, &[]);
        assert!(said.contains(&format!("{note}: rank {}", &missing[..1])), "{said}");
        assert_ne!(bits(&otherwise), whole, "{missing}");
        fs::write(&path, saved).expect("put back");
    }
    let (again, _) = tiny.resume_with_log("2", sixth, &[]);
    assert_eq!(bits(&again), whole);

    let (_, said) = tiny.resume_with_log("1", sixth, &["train.steps=7"]);
    assert!(!said.contains("momentum"), "{said}");
}

/// Else a run that loses a rank in time would resume without what the rank had.
#[test]
fn a_checkpoint_has_its_name_only_once_all_ranks_have_saved_their_own() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let settings = [RARELY[0], "ranks.round=1 steps", "checkpoint.keep_last=2", ONE_BIT];
    let mut child = tiny.start_on(
        "2",
        "run",
        &["--set", "checkpoint.every=1"].iter().copied().chain(set(&settings)).collect::<Vec<_>>(),
    );
    let processes = tiny.processes("run");
    for stop in 1..=suite::size().pick(20, 20, 100) {
        signal(Signal::STOP, processes[1]);
        // Rank 0 comes to its next meeting, where it waits.
        sleep(Duration::from_millis(200));
        let folder = fs::read_dir(tiny.join("run/checkpoints")).expect("a folder");
        let names = folder.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
        for step in names.filter_map(|name| name.strip_prefix("step-")?.parse::<u64>().ok()) {
            for own in
                ["0/own-weights", "0/change-residuals", "1/own-weights", "1/change-residuals", "1/moments"]
            {
                let own = format!("run/ranks/{own}-{step:08}");
                assert!(tiny.join(&own).exists(), "stop {stop}: there is a checkpoint, but no {own}");
            }
        }
        signal(Signal::CONT, processes[1]);
        sleep(Duration::from_millis(stop * 7 % 50));
    }
    signal(Signal::TERM, processes[0]);
    assert_eq!(tiny.ended(&mut child, "run"), Some(3), "{}", tiny.log("run"));
}

#[test]
fn rounds_of_a_time_are_repeated_from_their_record() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let settings = [&SHARED[..], &[RARELY[0], "train.steps=40"]].concat();
    let timed = tiny.run_on("2", "timed", &[&settings[..], &["ranks.round=0.05 s"]].concat());
    let repeated = tiny.run_on("2", "again", &[&settings[..], &["ranks.round=as in timed"]].concat());
    assert_eq!(repeated, timed);
    let counts = |run: &str| -> Vec<_> {
        tiny.records(run, "round").into_iter().map(|round| round["counts"].clone()).collect()
    };
    assert_eq!(counts("again"), counts("timed"));
    assert!(counts("timed").len() > 1, "{:?}", counts("timed"));

    let longer = [&settings[..], &["ranks.round=as in timed", "train.steps=60"]].concat();
    let output = tiny.attempt_on("2", "longer", &longer);
    assert_code(&output, 2);
    assert!(stderr(&output).contains("no round of 2 ranks after step 40 of 60"), "{}", stderr(&output));
    assert_eq!(tiny.steps_taken("longer"), 0);
}

#[test]
fn tokens_of_all_ranks_count_where_one_takes_more_steps() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    fs::create_dir(tiny.join("told")).expect("a folder");
    let told = [(0, 5, [5, 1]), (5, 11, [2, 6])].map(|(after, step, counts)| {
        serde_json::json!({ "kind": "round", "step": step, "after": after, "counts": counts }).to_string()
    });
    fs::write(tiny.join("told/metrics.jsonl"), told.join("\n")).expect("written");
    let often = ["checkpoint.every=1", "checkpoint.keep_last=9"];
    let settings = [&SHARED[..], &[RARELY[0], "ranks.round=as in told", "train.steps=11"], &often].concat();
    let output = tiny.attempt_on("2", "run", &settings);
    assert_success(&output);

    let each = tiny.records("run", "start")[0]["tokens_per_step"].as_u64().expect("a number");
    let tokens = |step: u64| {
        let steps = tiny.records("run", "step");
        steps.iter().find(|record| record["step"] == step).expect("it was taken")["tokens"].clone()
    };
    // Both ranks took six steps, then eight: half of them count as steps of the run.
    assert_eq!((tokens(4), tokens(5), tokens(7)), ((4 * each).into(), (3 * each).into(), (7 * each).into()));
    assert_eq!(json(&output)["tokens"], 7 * each);
    let (resumed, _) = tiny.resume_with_log("2", "run/checkpoints/step-00000005", &[]);
    assert_eq!(resumed["tokens"], 7 * each);
}

#[test]
fn a_run_that_diverges_in_local_steps_ends_with_common_weights() {
    if has_mpi() {
        Tiny::new().assert_divergence_stops_two(&[RARELY[0], "ranks.round=4"]);
    }
}

#[test]
fn settings_that_exclude_local_steps_are_refused_by_name() {
    let tiny = Tiny::new();
    let settings = [RARELY[0], "memory.shard=true", "memory.optimizer=host", "ranks.round=0"];
    let output = tiny.attempt("run", &settings);
    assert_code(&output, 2);
    let said = stderr(&output);
    for named in ["`memory.shard` divides", "`memory.optimizer` = \"host\"", "`ranks.round` = \"0 steps\""] {
        assert!(said.contains(named), "{said}");
    }
}

#[test]
fn local_steps_are_refused_where_a_rank_has_no_micro_batch() {
    if !has_mpi() {
        return;
    }
    let output = Tiny::new().attempt_on("2", "run", &[&RARELY[..], &["train.accumulate=1"]].concat());
    assert_code(&output, 2);
    assert!(stderr(&output).contains("every rank needs one"), "{}", stderr(&output));
}

mod gate {
    use super::*;

    /// A rank alone sees half of a step's micro-batches.
    #[test]
    #[ignore = "gate: compares learning over 400 steps"]
    fn rounds_of_local_steps_learn_what_no_rank_learns_alone() {
        if !has_mpi() {
            return;
        }
        let tiny = Tiny::new();
        let settings =
            ["train.steps=400", "train.optimizer=adamw", "train.schedule.kind=cosine", "eval.sequences=32"];
        let settings = [&SHARED[..], &settings, &["data.dialogues=3000"]].concat();
        let loss = |run: &str| {
            let evaluations = tiny.records(run, "eval");
            evaluations.last().expect("the end's")["loss"].as_f64().expect("a number")
        };
        tiny.run("exact", &settings);
        tiny.run("alone", &[&settings[..], &["train.accumulate=2"]].concat());
        let rounds = [&settings[..], &[RARELY[0], "ranks.round=10"]].concat();
        tiny.run_on("2", "rounds", &rounds);
        tiny.run_on("2", "one-bit", &[&rounds[..], &[ONE_BIT]].concat());
        let [exact, alone, rounds, one_bit] = ["exact", "alone", "rounds", "one-bit"].map(loss);
        println!("{exact} exact, {rounds} in rounds, {one_bit} in one bit, {alone} alone");
        assert!(rounds < exact + 0.15 && alone > exact + 0.2, "{exact} {rounds} {alone}");
        assert!(one_bit < exact + 0.2, "{exact} {one_bit}");
    }
}
