//! Measured speeds: cached, and measured again if they may not hold.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use serde_json::{Value, json};

use crate::program::{PROGRAM, assert_code, assert_success, stderr, stdout};
use crate::tiny::Tiny;

const PLANTED: f64 = 123e9;

struct User {
    tiny: Tiny,
    program: PathBuf,
}

impl User {
    fn new() -> Self {
        Self { tiny: Tiny::new(), program: PathBuf::from(PROGRAM) }
    }

    fn cache(&self) -> PathBuf {
        self.tiny.join("cache")
    }

    fn file(&self) -> PathBuf {
        self.cache().join("spillway/speeds.json")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).args(["--config", "tiny.json", "--device", "cpu"]);
        command.current_dir(self.tiny.path()).env("XDG_CACHE_HOME", self.cache());
        command
    }

    fn start(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    fn planned(&self) -> (f64, bool) {
        let output = self.start(&["plan", "--json"]);
        assert_success(&output);
        planned(&output)
    }

    fn kept(&self) -> Value {
        let text = fs::read_to_string(self.file()).expect("a file of speeds");
        serde_json::from_str(&text).expect("JSON")
    }

    fn plant(&self, change: impl FnOnce(&mut Value)) {
        let mut kept = self.kept();
        let entry = &mut kept["entries"][0];
        entry["speeds"]["flops_per_second"] = json!(PLANTED);
        change(entry);
        fs::write(self.file(), kept.to_string()).expect("writing");
    }
}

fn planned(output: &Output) -> (f64, bool) {
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let speed = plan["machine"]["flops_per_second"].as_f64().expect("a speed");
    (speed, plan["machine"]["measurement"]["kept"].as_bool().expect("a measurement"))
}

fn assert_measured((speed, kept): (f64, bool), why: &str) {
    assert!(speed > 0.0 && speed != PLANTED && !kept, "{why}: {speed}, {kept}");
}

#[test]
fn a_first_start_measures_and_later_ones_use_the_cache() {
    let user = User::new();
    let first = user.start(&["plan"]);
    assert_success(&first);
    assert!(stdout(&first).contains("speeds          measured just now"), "{}", stdout(&first));
    let speeds = &user.kept()["entries"][0]["speeds"];
    assert!(speeds["flops_per_second"].as_f64() > Some(0.0), "{speeds}");
    assert!(speeds["link_bytes_per_second"].as_f64() > Some(0.0), "{speeds}");

    user.plant(|entry| entry["measured"] = json!(1_700_000_000));
    let before = fs::read(user.file()).expect("a file");
    let later = user.start(&["plan"]);
    assert_success(&later);
    let run = user.start(&["run", "--out", "run"]);
    assert_success(&run);
    for said in [stdout(&later), stderr(&run)] {
        assert!(said.contains("in all, at 123 GFLOP/s"), "{said}");
        assert!(said.contains("speeds          measured on 2023-11-14 and kept"), "{said}");
    }
    assert_eq!(fs::read(user.file()).expect("a file"), before, "a later start writes nothing");
}

#[test]
fn another_program_file_measures_again() {
    let mut user = User::new();
    user.program = user.tiny.join("train");
    // Another test's child could hold the copy open for writing.
    let copied = Command::new("cp").arg(PROGRAM).arg(&user.program).status();
    assert!(copied.expect("cp runs").success());
    assert_measured(user.planned(), "a first start");

    let written = fs::metadata(&user.program).and_then(|file| file.modified()).expect("a time");
    let second = Duration::from_secs(1);
    for (moment, when) in [(written + second, "later"), (written - second, "earlier")] {
        user.plant(|_| ());
        assert_eq!(user.planned(), (PLANTED, true), "the same program");
        let file = File::open(&user.program).expect("the program");
        file.set_modified(moment).expect("its owner may");
        assert_measured(user.planned(), when);
        let mut kept = user.kept();
        kept["entries"].as_array_mut().expect("a list").reverse();
        fs::write(user.file(), kept.to_string()).expect("writing");
    }
}

#[test]
fn cached_speeds_of_another_machine_are_kept_but_not_used() {
    let user = User::new();
    assert_measured(user.planned(), "a first start");
    user.plant(|entry| entry["key"]["machine"]["processor"] = json!("another"));
    let theirs = user.kept()["entries"][0].clone();
    assert_measured(user.planned(), "another machine");
    let kept = user.kept();
    assert_eq!(kept["entries"].as_array().map(Vec::len), Some(2));
    assert_eq!(kept["entries"][0], theirs);
    assert!(user.planned().1);
}

#[test]
fn an_unusable_cache_file_is_replaced() {
    let user = User::new();
    assert_measured(user.planned(), "a first start");
    user.plant(|entry| entry["colour"] = json!("blue"));
    let strange = fs::read(user.file()).expect("a file");
    let cases = [strange, Vec::new(), br#"{"entries": ["#.to_vec(), b"[]".to_vec(), vec![0xFF; 100]];
    for contents in cases {
        fs::write(user.file(), &contents).expect("writing");
        assert_measured(user.planned(), &String::from_utf8_lossy(&contents));
        assert!(user.planned().1, "the file is whole again");
    }
    fs::remove_file(user.file()).expect("it is there");
    let made = Command::new("mkfifo").arg(user.file()).status();
    assert!(made.expect("mkfifo runs").success());
    assert_measured(user.planned(), "a FIFO");
    assert!(user.planned().1, "the file is whole again");
}

#[test]
fn plan_measure_replaces_cached_speeds_and_prints_the_measured_ones() {
    let user = User::new();
    assert_measured(user.planned(), "a first start");
    user.plant(|_| ());
    let output = user.start(&["plan", "--measure", "--json"]);
    assert_success(&output);
    assert_measured(planned(&output), "--measure");
    let said = stderr(&output);
    let expected = format!("over the link; kept in {}", user.file().display());
    assert!(said.starts_with("measured ") && said.contains(&expected), "{said}");
    let (speed, kept) = user.planned();
    assert!(kept && (speed / planned(&output).0 - 1.0).abs() < 1e-9, "{speed}");
    let both = user.tiny.train(&["plan", "--measure", "--on", "rtx-4090,64GiB"]);
    assert_code(&both, 2);
}

#[test]
fn an_unwritable_cache_ends_no_run() {
    let user = User::new();
    fs::write(user.cache(), "").expect("writing");
    let output = user.start(&["run", "--out", "run"]);
    assert_success(&output);
    let said = stderr(&output);
    let expected = format!("not kept, so the next start measures again: writing {}: ", user.file().display());
    assert!(said.contains(&expected), "{said}");
    assert!(user.tiny.join("run/summary.json").exists());
}

#[test]
fn a_dry_run_neither_measures_nor_caches() {
    let user = User::new();
    let output = user.command(&["plan", "--json"]).env("OFFLOAD_DRY_RUN", "1").output();
    let output = output.expect("the program starts");
    assert_success(&output);
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(plan["machine"]["flops_per_second"], Value::Null);
    assert!(!user.cache().exists());
    // A rehearsal computes nothing.
    assert_success(&user.start(&["plan", "--replay"]));
    assert_eq!(user.kept()["entries"].as_array().map(Vec::len), Some(1));
}
