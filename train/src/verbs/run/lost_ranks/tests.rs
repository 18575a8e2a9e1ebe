//! Several ranks in one process, some of which are lost.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::Duration;

use burn::backend::{Flex, flex::FlexDevice};
use clap::Parser;
use exchange::threads::Fault;
use exchange::{Engine, Waiting, Watchdog};
use runs::device::{Place, Work};
use serde_json::Value;
use tempfile::TempDir;

use super::super::{Args, Training};
use super::LostRanks;
use crate::exit::Ending;
use crate::ranks::tests::on_each_with_its_own;
use crate::training::Failed;

const DESCRIPTION: &str = r#"{
    "model": {"preset": "llama-160m", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_inner": 24, "n_positions": 32,
              "vocab_size": 264},
    "tokenizer": {"kind": "bytes"},
    "data": {"source": "dialogues", "dialogues": 60, "align": "document"},
    "train": {"steps": 6, "micro_batch": 1, "accumulate": 4, "sequence": 24, "lr": 0.003,
              "schedule": {"kind": "constant", "warmup": 0}},
    "eval": {"every": 0, "sequences": 2, "sample_every": 0, "questions": [], "quiz": 0},
    "checkpoint": {"every": 2},
    "memory": {"device_budget": "unlimited"},
    "ranks": {"warm_up": 1, "round": 2}
}"#;

const STAGES: [&str; 3] = ["ranks.pipeline=2", "train.recompute=1", "model.n_layer=2"];

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

struct Runs(TempDir);

impl Runs {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("tiny.json"), DESCRIPTION).expect("writing");
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Each rank's ending. `faults`: a rank, the number of its call, the call's fault.
    fn ends(
        world: usize,
        (arguments, settings): (&[&str], &[&str]),
        faults: &[(usize, u64, Fault)],
    ) -> Vec<anyhow::Result<Ending>> {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let arguments = ["train", "--device", "cpu"].iter().chain(arguments).copied().chain(settings);
        let Command { args } = Command::parse_from(arguments);
        let place = Place {
            name: "threads".to_owned(),
            kind: "the CPU".to_owned(),
            model: None,
            memory: None,
            budget: None,
            shares_host: true,
        };

        on_each_with_its_own(
            world,
            |engine| {
                let rank = engine.rank();
                let own = faults.iter().filter(|(of, ..)| *of == rank);
                own.fold(engine, |engine, (_, at, fault)| engine.with_fault(*at, *fault))
            },
            |ranks| Training::find(&args, ranks, Arc::default())?.on::<Flex>(&FlexDevice, &place),
        )
    }

    fn begin(
        &self,
        world: usize,
        out: &str,
        settings: &[&str],
        faults: &[(usize, u64, Fault)],
    ) -> Vec<anyhow::Result<Ending>> {
        let (config, out) = (self.path("tiny.json"), self.path(out));
        Self::ends(world, (&["--config", &config, "--out", &out], settings), faults)
    }

    fn done(&self, world: usize, out: &str, settings: &[&str]) -> [String; 2] {
        let ends = self.begin(world, out, settings, &[]);
        assert!(ends.iter().all(|end| matches!(end, Ok(Ending::Done))), "{ends:?}");
        self.bits(out)
    }

    fn bits(&self, out: &str) -> [String; 2] {
        let summary = fs::read(Path::new(&self.path(out)).join("summary.json")).expect("it has ended");
        let summary: Value = serde_json::from_slice(&summary).expect("JSON");
        ["losses_sha256", "weights_sha256"].map(|key| summary[key].as_str().expect("a digest").to_owned())
    }

    /// The steps of the restarts, each after the loss of `gone`.
    fn losses(&self, out: &str, (gone, before): (&[usize], usize)) -> Vec<u64> {
        let journal =
            fs::read_to_string(Path::new(&self.path(out)).join("metrics.jsonl")).expect("it is there");
        let records = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let lost = records.filter(|record| record["kind"] == "lost");
        lost.map(|record| {
            assert_eq!((&record["gone"], &record["before"]), (&serde_json::json!(gone), &before.into()));
            record["step"].as_u64().expect("a step")
        })
        .collect()
    }

    fn survived(&self, out: &str, settings: &[&str], at: u64) -> Option<u64> {
        self.survived_of(3, (out, settings), at)
    }

    /// Kills rank 1 of `world` at its call `at`; returns the step of the restart, or `None` if the run ends before.
    fn survived_of(&self, world: usize, (out, settings): (&str, &[&str]), at: u64) -> Option<u64> {
        let ends = self.begin(world, out, settings, &[(1, at, Fault::Die)]);
        let is_done = |rank: usize| matches!(ends[rank], Ok(Ending::Done));
        assert!((0..world).filter(|rank| *rank != 1).all(is_done), "{at}: {ends:?}");
        if is_done(1) {
            return None;
        }
        let losses = self.losses(out, (&[1], world));
        let [step] = losses[..] else { panic!("one is lost, not {losses:?}") };
        Some(step)
    }

    /// The first loss after a checkpoint, with the run's folder.
    fn survived_from_a_checkpoint(&self, out: &str, settings: &[&str]) -> (String, u64) {
        let attempts = (40..).step_by(10).map(|at| {
            let out = format!("{out}-{at}");
            let step = self.survived(&out, settings, at).expect("a checkpoint comes before the end");
            (out, step)
        });
        attempts.into_iter().find(|(_, step)| *step > 0).expect("endless")
    }
}

#[test]
fn sharded_ranks_restart_from_their_checkpoint_with_the_bits_of_one_process() {
    let runs = Runs::new();
    let shard = "memory.shard=true";
    let whole = runs.done(1, "whole", &[]);
    let mut from = BTreeSet::new();
    for at in (25..).step_by(15) {
        let out = format!("at-{at}");
        let step = runs.survived(&out, &[shard], at).expect("three checkpoints come before the end");
        assert_eq!(runs.bits(&out), whole, "call {at}, step {step}");
        from.insert(step);
        if step >= 4 {
            break;
        }
    }
    assert_eq!(from, BTreeSet::from([0, 2, 4]));
    let settings = ["memory.optimizer=host", "train.grad_clip=null"];
    let (out, step) = runs.survived_from_a_checkpoint("host", &[&[shard], &settings[..]].concat());
    let host = runs.done(1, "whole-host", &settings);
    assert_eq!(runs.bits(&out), host, "step {step}");
}

#[test]
fn ranks_that_gather_weights_restart_from_their_checkpoint_with_the_bits_of_one_process() {
    let runs = Runs::new();
    let settings = ["memory.shard=weights", "train.recompute=1", "model.n_layer=3"];
    let whole = runs.done(1, "whole", &settings);
    for at in suite::first(2, &[35, 60, 90, 120]) {
        let out = format!("at-{at}");
        let step = runs.survived(&out, &settings, *at).expect("more calls follow");
        assert_eq!(runs.bits(&out), whole, "call {at}, step {step}");
    }
}

#[test]
fn rank_0_alone_of_a_pipeline_restarts_from_its_checkpoint_with_the_bits_of_one_process() {
    let runs = Runs::new();
    let whole = runs.done(1, "whole", &STAGES);
    for at in (25..).step_by(20) {
        let out = format!("at-{at}");
        let step = runs.survived_of(2, (&out, &STAGES), at).expect("a checkpoint comes before the end");
        assert_eq!(runs.bits(&out), whole, "call {at}, step {step}");
        if step > 0 {
            return;
        }
    }
}

#[test]
fn a_whole_pipeline_that_is_left_restarts_with_the_bits_of_one_process() {
    let runs = Runs::new();
    let whole = runs.done(1, "whole", &STAGES);
    // The calls of ranks 2 and 3 have nearly equal numbers, so that both die before the others go on.
    let faults = [2, 3].map(|rank| (60..90).map(move |at| (rank, at, Fault::Die)));
    let ends = runs.begin(4, "run", &STAGES, &faults.into_iter().flatten().collect::<Vec<_>>());
    assert!(ends[..2].iter().all(|end| matches!(end, Ok(Ending::Done))), "{ends:?}");
    assert_eq!(runs.losses("run", (&[2, 3], 4)).len(), 1);
    assert_eq!(runs.bits("run"), whole);
}

#[test]
fn ranks_that_are_left_without_a_whole_pipeline_end_with_what_to_start() {
    let settings = ["ranks.pipeline=3", "train.recompute=1", "model.n_layer=3"];
    let ends = Runs::new().begin(3, "run", &settings, &[(1, 60, Fault::Die)]);
    let said = |end: &anyhow::Result<Ending>| format!("{:#}", end.as_ref().expect_err("two are left"));
    let said: Vec<String> = ends.iter().map(said).collect();
    for part in ["2 ranks cannot go on by themselves", "start a multiple of 3 with --ranks"] {
        assert!(said[0].contains(part), "{said:?}");
    }
    assert!(said[2].contains("rank 0 failed"), "{said:?}");
}

/// It dies in every call until the first checkpoint is there, so in each of its save.
#[test]
fn a_rank_may_die_at_any_moment_of_a_save() {
    let runs = Runs::new();
    let settings = ["memory.shard=weights", "train.recompute=1", "model.n_layer=2", "checkpoint.every=1"];
    let whole = runs.done(1, "whole", &settings);
    let stride = suite::size().pick(7, 3, 1);
    for at in (20..).step_by(stride) {
        let out = format!("at-{at}");
        let step = runs.survived(&out, &settings, at).expect("more calls follow");
        assert_eq!(runs.bits(&out), whole, "call {at}, step {step}");
        if step > 0 {
            return;
        }
    }
}

#[test]
fn ranks_with_own_state_restart_as_if_started_to_resume() {
    let runs = Runs::new();
    for exchange in ["one_bit", "rarely"] {
        let settings = [&*format!("ranks.exchange={exchange}")];
        let (out, step) = runs.survived_from_a_checkpoint(exchange, &settings);
        let by_hand = format!("by-hand-{exchange}");
        runs.done(3, &by_hand, &[settings[0], "checkpoint.keep_last=9"]);
        let path = format!("{}/checkpoints/step-{step:08}", runs.path(&by_hand));
        let ends = Runs::ends(2, (&["--resume", &path], &[]), &[]);
        assert!(ends.iter().all(|end| matches!(end, Ok(Ending::Done))), "{ends:?}");
        assert_eq!(runs.bits(&out), runs.bits(&by_hand), "{exchange} from step {step}");
    }
}

#[test]
fn a_run_ends_if_rank_0_is_lost_or_a_call_fails_without_a_loss() {
    let runs = Runs::new();
    for (out, rank, fault, expected) in [
        ("led", 0, Fault::Die, "rank 0 is gone"),
        ("failed", 1, Fault::Fail, "a call has failed on some rank"),
    ] {
        let ends = runs.begin(3, out, &["memory.shard=true"], &[(rank, 120, fault)]);
        let said = |end: &anyhow::Result<Ending>| format!("{:#}", end.as_ref().expect_err("it cannot go on"));
        let said: Vec<String> = ends.iter().map(said).collect();
        assert!(said[2].contains(expected), "{said:?}");
    }
}

/// Rank 1 has not heard what the others have.
#[test]
fn a_failed_call_of_an_evaluation_is_repeated_by_all_ranks() {
    let runs = Runs::new();
    let often = ["eval.every=1"];
    let whole = runs.done(1, "whole", &often);
    for at in (30..70).step_by(suite::size().pick(5, 2, 1)) {
        let out = format!("at-{at}");
        let ends = runs.begin(3, &out, &often, &[(1, at, Fault::Deaf)]);
        assert!(ends.iter().all(|end| matches!(end, Ok(Ending::Done))), "call {at}: {ends:?}");
        assert_eq!(runs.bits(&out), whole, "call {at}");
    }
}

#[test]
fn a_call_that_fails_again_and_again_ends_the_run_with_its_reason() {
    let faults: Vec<_> = (60..2000).map(|at| (1, at, Fault::Fail)).collect();
    let ends = Runs::new().begin(3, "run", &[], &faults);
    let said = |end: &anyhow::Result<Ending>| format!("{:#}", end.as_ref().expect_err("it cannot go on"));
    let said: Vec<String> = ends.iter().map(said).collect();
    assert!(said.iter().all(|said| said.contains("though all ranks live")), "{said:?}");
    assert!(said[1].contains("an injected fault"), "{said:?}");
}

#[test]
fn survivors_wait_for_rank_0_beyond_their_patience_until_the_run_is_open_again() {
    let (expired, patience) = (Arc::new(AtomicUsize::new(0)), Duration::from_secs(1));
    let waiting: [OnceLock<Waiting>; 3] = std::array::from_fn(|_| OnceLock::new());
    on_each_with_its_own(
        3,
        |engine| {
            let rank = engine.rank();
            waiting[rank].set(engine.waiting()).expect("once for each rank");
            if rank == 1 { engine.with_fault(0, Fault::Die) } else { engine }
        },
        |mut ranks| {
            let (waiting, expired) = (waiting[ranks.rank()].get().expect("set above"), Arc::clone(&expired));
            let count = move |_| _ = expired.fetch_add(1, Ordering::Relaxed);
            ranks.watch_by(Watchdog::start(waiting.clone(), patience, count));
            let error = ranks.all_succeeded(true).expect_err("rank 1 is gone");
            let failed = Failed { error, ranks, saved: false };
            let survivors = LostRanks::default().survive::<Flex>(failed, &FlexDevice);
            let Ok(mut ranks) = survivors else { return };
            if ranks.leads() {
                sleep(2 * patience);
            }
            assert!(ranks.all_succeeded(true).expect("both live"));
        },
    );
    assert_eq!(expired.load(Ordering::Relaxed), 0);
}

/// Sums received before the failed call are dropped.
#[test]
fn a_repeated_step_of_a_host_optimizer_has_the_bits_of_an_undisturbed_one() {
    let runs = Runs::new();
    let settings = ["memory.optimizer=host", "train.grad_clip=null"];
    let whole = runs.done(1, "whole", &settings);
    for at in [30, 45, 60] {
        let out = format!("at-{at}");
        let step = runs.survived(&out, &settings, at).expect("more calls follow");
        assert_eq!(runs.bits(&out), whole, "call {at}, step {step}");
    }
}
