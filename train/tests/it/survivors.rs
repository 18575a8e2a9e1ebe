//! Ranks that are killed under Open MPI 5: the others do the step again, or go on from their checkpoint, and end with the bits of a
//! run that lost nobody.
//!
//! `train/exchange/tests/install-open-mpi-5` unpacks it where these tests look.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::ranks::{SHARED, ended, signal, wait_until};
use crate::tiny::{Tiny, bits};

const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/open-mpi-5/installed");

/// Whether Open MPI 5 is there. Without it tests say that they did not run, unless they have to.
fn has_open_mpi_5() -> bool {
    let found = Path::new(FOLDER).join("bin/mpirun").exists();
    assert!(
        found || env::var_os("EXCHANGE_REQUIRE_OPEN_MPI_5").is_none(),
        "EXCHANGE_REQUIRE_OPEN_MPI_5 is set, and there is none in {FOLDER}"
    );
    if !found {
        eprintln!("NOT RUN: there is no Open MPI 5 in {FOLDER}");
    }
    found
}

impl Tiny {
    /// Starts three ranks in the background, under Open MPI 5; their output goes to `out.log`.
    fn start_survivors(&self, out: &str, settings: &[&str], more: &[&str]) -> Child {
        let log = fs::File::create(self.join(&format!("{out}.log"))).expect("a file");
        let path = env::var("PATH").unwrap_or_default();
        let mut command = self.command(out, &[&SHARED[..], settings].concat());
        command.args(["--ranks", "3"]).args(more);
        command.env("PATH", format!("{FOLDER}/bin:{path}"));
        command.env("OPAL_PREFIX", FOLDER).env("LD_LIBRARY_PATH", format!("{FOLDER}/lib"));
        command.stdout(Stdio::null()).stderr(log).spawn().expect("the program starts")
    }
}

/// `TRAIN_SURVIVED_KILLS` and `TRAIN_KILLS_SEED` change how often and which.
#[test]
fn survivors_end_with_the_bits_of_a_run_that_lost_nobody() {
    if !has_open_mpi_5() {
        return;
    }
    let setting = |name, usual: u64| env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let (kills, mut seed) = (setting("TRAIN_SURVIVED_KILLS", 2), setting("TRAIN_KILLS_SEED", 1));
    let tiny = Tiny::new();
    let kinds: [&[&str]; 2] = [
        &["train.steps=40", "checkpoint.every=30"],
        &["train.steps=40", "memory.optimizer=host", "memory.stream=int8", "memory.gradients=int8"],
    ];
    let wholes = kinds.map(|settings| {
        let name = format!("whole-{}", settings[1]);
        bits(&tiny.run(&name, &[&SHARED[..], settings].concat()))
    });
    for kill in 1..=kills {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Every kind of run loses every rank in turn.
        let (kind, rank) = (kill as usize % 2, 1 + (kill + kill / 2) as usize % 2);
        let step = 3 + (seed >> 33) % 30;
        let run = format!("run-{kill}");
        let mut child = tiny.start_survivors(&run, kinds[kind], &[]);
        // Steps are the clock: how fast the machine is does not matter.
        wait_until(|| tiny.steps_taken(&run) >= step, "the ranks did not get that far");
        let ranks = tiny.ranks();
        println!("kill {kill} of {kills}: rank {rank} after step {}", tiny.steps_taken(&run));
        signal("-KILL", ranks[rank]);
        assert_eq!(ended(&mut child), Some(0), "{}", tiny.said(&run));
        assert!(tiny.said(&run).contains("2 of 3 ranks live, and go on"), "{}", tiny.said(&run));
        assert_eq!(tiny.records(&run, "lost")[0]["ranks"], 2);
        let summary = fs::read(tiny.join(&run).join("summary.json")).expect("reading");
        assert_eq!(bits(&serde_json::from_slice(&summary).expect("JSON")), wholes[kind], "kill {kill}");
    }
}

#[test]
fn without_rank_0_the_run_ends_and_is_restarted_from_its_checkpoint() {
    if !has_open_mpi_5() {
        return;
    }
    let tiny = Tiny::new();
    let settings = ["train.steps=40", "checkpoint.every=2"];
    let whole = bits(&tiny.run("whole", &[&SHARED[..], &settings].concat()));
    let mut child = tiny.start_survivors("run", &settings, &["--restarts", "1"]);
    wait_until(|| tiny.steps_taken("run") >= 5, "the ranks did not get that far");
    signal("-KILL", tiny.ranks()[0]);
    assert_eq!(ended(&mut child), Some(0), "{}", tiny.said("run"));
    let said = tiny.said("run");
    assert!(said.contains("rank 0 is gone") && said.contains("resumes from its last checkpoint"), "{said}");
    let summary = fs::read(tiny.join("run/summary.json")).expect("reading");
    assert_eq!(bits(&serde_json::from_slice(&summary).expect("JSON")), whole);
}

#[test]
fn survivors_that_divide_go_on_from_their_checkpoint_in_the_same_processes() {
    if !has_open_mpi_5() {
        return;
    }
    let tiny = Tiny::new();
    let settings = ["train.steps=24", "checkpoint.every=5", "memory.optimizer=host"];
    let whole = bits(&tiny.run("whole", &[&SHARED[..], &settings].concat()));
    let divided = [&settings[..], &["memory.shard=true"]].concat();
    let mut child = tiny.start_survivors("run", &divided, &[]);
    wait_until(|| tiny.steps_taken("run") >= 8, "the ranks did not get that far");
    let ranks = tiny.ranks();
    signal("-KILL", ranks[1]);
    assert_eq!(ended(&mut child), Some(0), "{}", tiny.said("run"));
    let said = tiny.said("run");
    let told = said.lines().filter(|line| line.starts_with("rank 1 of 3 is gone: 2 of 3 ranks go on from"));
    assert_eq!(told.count(), 1, "{said}");
    let lost = &tiny.records("run", "lost")[0];
    assert!(lost["step"].as_u64() >= Some(5) && lost["gone"] == serde_json::json!([1]), "{lost}");
    let summary = fs::read(tiny.join("run/summary.json")).expect("reading");
    assert_eq!(bits(&serde_json::from_slice(&summary).expect("JSON")), whole);
}
