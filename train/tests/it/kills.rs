//! A run that is killed at any moment can be resumed.

use std::{
    env,
    fs::{self, File},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::program::{assert_success, json};
use crate::tiny::{Tiny, bits};

const SETTINGS: [&str; 3] = ["train.steps=30", "checkpoint.every=1", "train.optimizer=muon"];
/// Between two checkpoints an update is on its way most of the time.
const ON_HOST: [&str; 5] = [
    "train.steps=30",
    "checkpoint.every=2",
    "memory.optimizer=host",
    "memory.optimizer_state=compact",
    "model.compute=bf16",
];

/// A small generator: the moments of one seed are the same shares of a run everywhere, however slow the machine is.
struct Moments {
    state: u64,
    latest: Duration,
}

impl Moments {
    fn next(&mut self) -> Duration {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.latest.mul_f64((self.state >> 33) as f64 / f64::from(1u32 << 31))
    }
}

fn begin_or_go_on(tiny: &Tiny, settings: &[&str]) -> Command {
    let mut command = tiny.command("run", settings);
    command.args(["--resume", "auto"]);
    command
}

#[test]
fn a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been() {
    kill_again_and_again(&SETTINGS, 20);
}

#[test]
fn a_run_that_is_killed_while_the_host_steps_ends_as_if_it_had_not_been() {
    kill_again_and_again(&ON_HOST, 10);
}

/// `TRAIN_KILLS` and `TRAIN_KILLS_SEED` change how often and when.
fn kill_again_and_again(settings: &[&str], usual: u64) {
    let setting = |name, otherwise| env::var(name).map_or(otherwise, |text| text.parse().expect("a number"));
    let (kills, seed) = (setting("TRAIN_KILLS", usual), setting("TRAIN_KILLS_SEED", 1));
    let tiny = Tiny::new();
    let begun = Instant::now();
    let whole = tiny.run("whole", settings);
    // Later ones would mostly meet a run that is done.
    let mut moments = Moments { state: seed, latest: begun.elapsed().mul_f64(0.6) };
    let (mut finished, mut saved) = (0, 0);
    for kill in 1..=kills {
        let moment = moments.next();
        let log = tiny.join("log");
        let mut command = begin_or_go_on(&tiny, settings);
        command.stdout(Stdio::null()).stderr(File::create(&log).expect("a file"));
        let mut child = command.spawn().expect("the program starts");
        thread::sleep(moment);
        let ended = child.try_wait().expect("waiting");
        child.kill().expect("a signal");
        child.wait().expect("it ends");
        let latest = fs::read_to_string(tiny.join("run/checkpoints/latest")).unwrap_or_default();
        println!("kill {kill} of {kills} (seed {seed}): after {moment:?}, latest is {:?}", latest.trim());
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
    let last = begin_or_go_on(&tiny, settings).output().expect("the program starts");
    assert_success(&last);
    assert_eq!(bits(&json(&last)), bits(&whole));
    let left = fs::read_dir(tiny.join("run/checkpoints")).expect("reading").flatten();
    let partial: Vec<_> = left.filter(|entry| entry.path().extension().is_some()).collect();
    assert!(partial.is_empty(), "{partial:?} is left over");
}
