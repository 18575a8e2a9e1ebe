//! Ranks killed under Open MPI 5: the others repeat the step, or restart from their checkpoint, to an undisturbed run's
//! bits.
//!
//! `train/exchange/tests/install-open-mpi-5` installs Open MPI.

use std::env;
use std::path::Path;
use std::process::Child;

use rustix::process::Signal;
use serde_json::json;
use suite::Need;

use crate::program::processes_in;
use crate::ranks::{SHARED, on, signal};
use crate::tiny::{Tiny, bits};

const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/open-mpi-5/installed");

fn has_open_mpi_5() -> bool {
    let found = Path::new(FOLDER).join("bin/mpirun").exists();
    Need::Mpi5.is_met((!found).then_some("there is no Open MPI 5 in the target folder"))
}

impl Tiny {
    fn start_survivors(&self, ranks: &str, out: &str, settings: &[&str], more: &[&str]) -> Child {
        let path = env::var("PATH").unwrap_or_default();
        let mut command = self.command(out, &[&SHARED[..], settings].concat());
        command.args(on(ranks)).args(more);
        command.env("PATH", format!("{FOLDER}/bin:{path}"));
        command.env("OPAL_PREFIX", FOLDER).env("LD_LIBRARY_PATH", format!("{FOLDER}/lib"));
        self.start(&mut command, out)
    }

    fn wait_for_step(&self, out: &str, step: u64) {
        self.wait_until(out, || self.steps_taken(out) >= step, "the ranks did not get that far");
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Goes {
    /// They repeat the step.
    OnAtOnce,
    /// From a checkpoint, to the bits of one process.
    OnFromCheckpoint,
    /// From a checkpoint, to the bits of a run resumed there on two ranks.
    AsResumed,
}

/// Kills, after at most 32 steps, come long before the end.
const STEPS: &str = "train.steps=200";

const KINDS: [(Goes, &[&str]); 5] = [
    (Goes::OnAtOnce, &["checkpoint.every=30"]),
    (Goes::OnFromCheckpoint, &["checkpoint.every=5", "memory.optimizer=host", "memory.shard=true"]),
    (Goes::OnAtOnce, &["memory.optimizer=host", "memory.stream=int8", "memory.gradients=int8"]),
    (Goes::AsResumed, &["checkpoint.every=5", "ranks.exchange=one_bit", "ranks.warm_up=4"]),
    (Goes::OnFromCheckpoint, &["checkpoint.every=5", "memory.shard=weights", "train.recompute=1"]),
];

#[test]
fn survivors_end_with_the_bits_of_an_undisturbed_run() {
    if !has_open_mpi_5() {
        return;
    }

    let setting = |name, usual: u64| env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let (kills, mut seed) =
        (setting("TRAIN_SURVIVED_KILLS", suite::size().pick(1, 3, 50)), setting("TRAIN_KILLS_SEED", 1));
    println!("{kills} kills by TRAIN_KILLS_SEED={seed}");
    let tiny = Tiny::new();

    for kill in 0..kills {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (kind, turn) = (kill as usize % KINDS.len(), kill as usize / KINDS.len());
        let (goes, settings) = KINDS[kind];
        let (rank, step) = (1 + (kind + turn) % 2, 3 + (seed >> 33) % 30);
        let run = format!("run-{kill}");
        let settings = [&[STEPS], settings].concat();
        let mut child = tiny.start_survivors("3", &run, &settings, &[]);
        tiny.wait_for_step(&run, step);
        let ranks = tiny.ranks();
        println!(
            "kill {} of {kills}: {settings:?}, rank {rank} after step {}",
            kill + 1,
            tiny.steps_taken(&run)
        );
        signal(Signal::KILL, ranks[rank]);
        let found = tiny.bits_at_end(&mut child, &run);
        let lost = &tiny.records(&run, "lost")[0];
        assert_eq!((&lost["ranks"], &lost["gone"]), (&json!(2), &json!([rank])), "{lost}");
        let from = lost["step"].as_u64().expect("a step");
        let message = match goes {
            Goes::OnAtOnce => "2 of 3 ranks live, and go on".to_owned(),
            _ if from == 0 => "2 of 3 ranks go on from the start".to_owned(),
            _ => format!("rank {rank} of 3 is gone: 2 of 3 ranks go on from the checkpoint of step {from}"),
        };
        assert_eq!(tiny.log(&run).matches(&message).count(), 1, "{message} is not in {}", tiny.log(&run));
        let expected = match goes {
            Goes::AsResumed => tiny.resumed_by_hand(&format!("by-hand-{kill}"), from, &settings),
            _ if turn == 0 => bits(&tiny.run(&format!("whole-{kind}"), &[&SHARED[..], &settings].concat())),
            _ => tiny.saved_bits(&format!("whole-{kind}")),
        };
        assert_eq!(found, expected, "kill {}", kill + 1);
    }
}

impl Tiny {
    /// Digests of a run that three ranks begin and two resume after `step`; for 0, that two begin.
    fn resumed_by_hand(&self, out: &str, step: u64, settings: &[&str]) -> [String; 2] {
        if step > 0 {
            let until = format!("train.steps={step}");
            let mut child = self.start_survivors("3", out, &[settings, &[&until]].concat(), &[]);
            self.bits_at_end(&mut child, out);
        }
        let resume: &[&str] = if step > 0 { &["--resume", "auto"] } else { &[] };
        let mut child = self.start_survivors("2", out, settings, resume);
        self.bits_at_end(&mut child, out)
    }
}

#[test]
fn the_last_of_several_lost_ranks_ends_with_the_bits_of_one_process() {
    if !has_open_mpi_5() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [STEPS, "checkpoint.every=0"];
    let whole = bits(&tiny.run("whole", &[&SHARED[..], &settings].concat()));
    let mut child = tiny.start_survivors("3", "run", &settings, &[]);
    tiny.wait_for_step("run", 5);
    let ranks = tiny.ranks();
    signal(Signal::KILL, ranks[1]);
    tiny.wait_until("run", || tiny.journal("run").contains(r#"{"kind":"lost""#), "no rank noticed the loss");
    tiny.wait_for_step("run", tiny.steps_taken("run") + 5);
    signal(Signal::KILL, ranks[2]);
    assert_eq!(tiny.bits_at_end(&mut child, "run"), whole);

    let lost = tiny.records("run", "lost");
    let found: Vec<_> = lost.iter().map(|lost| (&lost["before"], &lost["gone"], &lost["ranks"])).collect();
    assert_eq!(found, [(&json!(3), &json!([1]), &json!(2)), (&json!(2), &json!([1]), &json!(1))]);
}

#[test]
fn without_rank_0_the_run_ends_and_is_restarted_from_its_checkpoint() {
    if !has_open_mpi_5() {
        return;
    }
    let tiny = Tiny::new();
    let settings = [STEPS, "checkpoint.every=5"];
    let whole = bits(&tiny.run("whole", &[&SHARED[..], &settings].concat()));
    let mut child = tiny.start_survivors("3", "run", &settings, &["--restarts", "1"]);
    signal(Signal::KILL, tiny.processes("run")[0]);
    assert_eq!(tiny.bits_at_end(&mut child, "run"), whole);
    let said = tiny.log("run");
    assert!(said.contains("rank 0 is gone") && said.contains("resumes from its last checkpoint"), "{said}");
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: waits for a time limit"]
    fn a_frozen_rank_is_not_survived_but_ends_and_restarts_the_run() {
        if !has_open_mpi_5() {
            return;
        }

        let tiny = Tiny::new();
        let settings = [STEPS, "checkpoint.every=5"];
        let whole = bits(&tiny.run("whole", &[&SHARED[..], &settings].concat()));
        let mut child =
            tiny.start_survivors("3", "run", &settings, &["--restarts", "1", "--rank-timeout", "15"]);
        let frozen = tiny.processes("run")[1];
        signal(Signal::STOP, frozen);
        assert_eq!(tiny.bits_at_end(&mut child, "run"), whole);

        let said = tiny.log("run");
        // If another rank waits for the frozen one, both are missing. Within the library's vote it is unknown.
        let missing = ["rank 1 did not arrive", "ranks [0, 1] did not arrive", "ranks [1, 2] did not arrive"];
        let names_it = missing.iter().any(|words| said.contains(words));
        assert!(names_it || said.contains("has been in commit for"), "{said}");
        assert!(said.contains("resumes from its last checkpoint"), "{said}");
        assert!(tiny.records("run", "lost").is_empty(), "{said}");
        assert!(!processes_in(tiny.path()).contains(&frozen), "it is still there");
    }
}
