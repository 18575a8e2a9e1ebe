//! Ranks killed under Open MPI 4: the run ends, and goes on from its last checkpoint to an undisturbed run's bits.

use std::env;

use rustix::process::Signal;

use crate::ranks::{SHARED, losses_end_runs, on, signal, try_signal};
use crate::tiny::{Tiny, bits};

#[test]
fn a_killed_rank_ends_the_run_and_its_checkpoint_resumes() {
    if !losses_end_runs() {
        return;
    }
    let tiny = Tiny::new();
    let mut child = tiny.start_on("2", "run", &[]);
    let processes = tiny.processes("run");
    signal(Signal::KILL, processes[1]);
    assert_eq!(tiny.ended(&mut child, "run"), Some(1), "{}", tiny.log("run"));
    assert!(tiny.log("run").contains("the run of 2 ranks ended early"), "{}", tiny.log("run"));
    let done = *tiny.whole_checkpoints("run").iter().max().expect("one was saved");
    let steps = format!("train.steps={}", done + 3);
    let whole = bits(&tiny.run("whole", &[&SHARED[..], &[&steps]].concat()));
    assert_eq!(tiny.resume_on("2", "run", &[&steps]), whole);
}

#[test]
fn a_run_with_repeatedly_killed_ranks_ends_with_the_bits_of_an_undisturbed_one() {
    kill_repeatedly(&[], suite::size().pick(1, 2, 50), |tiny, settings| bits(&tiny.run("whole", settings)));
}

fn kill_repeatedly(settings: &[&str], usual: u64, undisturbed: impl Fn(&Tiny, &[&str]) -> [String; 2]) {
    if !losses_end_runs() {
        return;
    }

    let setting = |name, usual| env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let (kills, mut seed) = (setting("TRAIN_RANK_KILLS", usual), setting("TRAIN_KILLS_SEED", 1));
    println!("{kills} kills by TRAIN_KILLS_SEED={seed}");
    let tiny = Tiny::new();

    // Kills must precede the end.
    let steps = format!("train.steps={}", 40 * kills + 100);
    let settings = [&SHARED[..], settings, &[&steps, "checkpoint.every=2"]].concat();
    let whole = undisturbed(&tiny, &settings);
    let restarts = (kills + 1).to_string();
    let mut command = tiny.command("run", &settings);
    let mut child = tiny.start(command.args(on("2")).args(["--restarts", &restarts]), "run");
    tiny.processes("run");
    let mut killed = Vec::new();

    for kill in 1..=kills {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let step = 40 * (kill - 1) + 4 + (seed >> 33) % 30;
        let mut processes = Vec::new();
        tiny.wait_until(
            "run",
            || {
                processes = tiny.processes("run");
                let begun = processes.len() == 2 && processes.iter().all(|process| !killed.contains(process));
                let done = child.try_wait().expect("waiting").is_some();
                done || begun && tiny.steps_taken("run") >= step
            },
            "the ranks did not get that far",
        );
        let rank = (seed >> 60) as usize % 2;
        if let Some(process) = processes.get(rank) {
            println!("kill {kill} of {kills}: rank {rank} after step {}", tiny.steps_taken("run"));
            try_signal(Signal::KILL, *process);
        }
        killed.extend(processes);
    }

    assert_eq!(tiny.bits_at_end(&mut child, "run"), whole);
    let restarts = tiny.log("run").matches("resumes from its last checkpoint").count();
    println!("{restarts} restarts");
    assert!(restarts > 0, "no rank was killed in time");
}

mod full {
    use super::*;

    const DIVIDED: [&[&str]; 3] = [
        &[
            "memory.shard=weights",
            "memory.optimizer=host",
            "memory.optimizer_state=bf16",
            "model.compute=bf16",
        ],
        &["memory.shard=states", "train.optimizer=muon"],
        &["ranks.pipeline=2", "memory.optimizer=host"],
    ];

    #[test]
    #[ignore = "full: fifty-one kills"]
    fn killed_ranks_that_divide_a_model_end_with_the_bits_of_undisturbed_ones() {
        for settings in DIVIDED {
            let settings = [settings, &["train.recompute=1", "model.n_layer=4"]].concat();
            kill_repeatedly(&settings, 17, |tiny, settings| bits(&tiny.run("whole", settings)));
        }
    }

    /// The weights depend on the number of ranks.
    #[test]
    #[ignore = "full: thirty-four kills"]
    fn killed_ranks_end_their_rounds_with_the_bits_of_undisturbed_ones() {
        for changes in ["f32", "one_bit"] {
            let changes = format!("ranks.changes={changes}");
            let settings = ["ranks.exchange=rarely", "ranks.round=3 steps", &changes];
            kill_repeatedly(&settings, 17, |tiny, settings| tiny.run_on("2", "whole", settings));
        }
    }
}
