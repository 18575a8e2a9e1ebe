//! A run killed at any moment can be resumed.

use std::{
    env,
    fs::{self, File},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use crate::program::{assert_success, json};
use crate::tiny::{Tiny, bits};

const SETTINGS: [&str; 3] = ["train.steps=30", "checkpoint.every=1", "train.optimizer=muon"];
/// An update is running most of the time.
const ON_HOST: [&str; 5] = [
    "train.steps=30",
    "checkpoint.every=2",
    "memory.optimizer=host",
    "memory.optimizer_state=compact",
    "model.compute=bf16",
];

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

const STEPS_BETWEEN: u64 = 8;
/// Extra delay: kills hit each part of a step or start.
const MICROSECONDS: u64 = 6_000;

fn begin_or_resume(tiny: &Tiny, settings: &[&str]) -> Command {
    let mut command = tiny.command("run", settings);
    command.args(["--resume", "auto"]);
    command
}

#[test]
fn a_repeatedly_killed_run_ends_with_the_bits_of_an_undisturbed_one() {
    kill_repeatedly(&SETTINGS, suite::size().pick(3, 5, 100));
}

#[test]
fn a_run_killed_during_host_steps_ends_with_the_bits_of_an_undisturbed_one() {
    kill_repeatedly(&ON_HOST, suite::size().pick(2, 3, 100));
}

fn kill_repeatedly(settings: &[&str], usual: u64) {
    let setting = |name, otherwise| env::var(name).map_or(otherwise, |text| text.parse().expect("a number"));
    let (kills, seed) = (setting("TRAIN_KILLS", usual), setting("TRAIN_KILLS_SEED", 1));
    let tiny = Tiny::new();
    let whole = tiny.run("whole", settings);
    let mut numbers = Numbers(seed);
    let (mut finished, mut saved) = (0, 0);

    for kill in 1..=kills {
        let steps = if kill == 1 { STEPS_BETWEEN } else { numbers.below(STEPS_BETWEEN) };
        let moment = Duration::from_micros(numbers.below(MICROSECONDS));
        let before = tiny.journal("run").len();
        let log = tiny.join("run.log");
        let mut command = begin_or_resume(&tiny, settings);
        command.stdout(Stdio::null()).stderr(File::create(&log).expect("a file"));
        let mut child = command.spawn().expect("the program starts");
        let mut ended = None;
        tiny.wait_until(
            "run",
            || {
                ended = child.try_wait().expect("waiting");
                // A resumed run may first shorten its journal.
                let taken =
                    tiny.journal("run").get(before..).unwrap_or("").matches(r#"{"kind":"step""#).count();
                ended.is_some() || taken as u64 >= steps
            },
            "the run takes no steps",
        );
        thread::sleep(moment);
        ended = ended.or(child.try_wait().expect("waiting"));
        child.kill().expect("a signal");
        child.wait().expect("it ends");
        let latest = fs::read_to_string(tiny.join("run/checkpoints/latest")).unwrap_or_default();
        println!(
            "kill {kill} of {kills} (seed {seed}): {moment:?} after {steps} steps, latest is {:?}",
            latest.trim()
        );
        saved += u32::from(!latest.is_empty());
        if let Some(status) = ended {
            let said = fs::read_to_string(&log).expect("reading");
            assert!(status.success(), "after kill {} the run could not go on: {status}\n{said}", kill - 1);
            finished += 1;
            let summary = fs::read(tiny.join("run/summary.json")).expect("reading");
            assert_eq!(bits(&serde_json::from_slice(&summary).expect("JSON")), bits(&whole));
            fs::remove_dir_all(tiny.join("run")).expect("removing");
        }
    }

    println!(
        "{kills} kills, {saved} of them beside a checkpoint; {finished} runs reached their end between them"
    );
    assert!(saved > 0, "no kill came after a save");

    let last = begin_or_resume(&tiny, settings).output().expect("the program starts");
    assert_success(&last);
    assert_eq!(bits(&json(&last)), bits(&whole));

    let left = fs::read_dir(tiny.join("run/checkpoints")).expect("reading").flatten();
    let partial: Vec<_> = left.filter(|entry| entry.path().extension().is_some()).collect();
    assert!(partial.is_empty(), "{partial:?} is left over");
}
