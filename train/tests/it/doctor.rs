//! `train doctor` without parts of CUDA, and on the stand-in, next to a start of training.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use serde_json::Value;

use crate::program::{CACHE, PROGRAM, assert_success, stderr, stdout};
use crate::ranks::has_mpi;
use crate::stand_in;
use crate::tiny::Tiny;

fn command(tiny: &Tiny, libraries: &Path, root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).current_dir(tiny.path()).envs([CACHE]);
    command.env("LD_LIBRARY_PATH", libraries).env("CUDA_PATH", root).env("CUDA_HOME", root);
    command.env("STAND_IN_CACHE", tiny.join("kernels"));
    command
}

fn verdict(report: &Value, subject: &str) -> String {
    let findings = report["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["subject"] == subject);
    let finding = finding.unwrap_or_else(|| panic!("no {subject} in {report:#}"));
    if finding["verdict"] != "fine" {
        assert!(finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{finding:#}");
    }
    finding["verdict"].as_str().expect("a verdict").to_owned()
}

/// The device must be that of a start.
fn examined(tiny: &Tiny, libraries: &Path, root: &Path) -> Value {
    let output = command(tiny, libraries, root, &["doctor", "--json"]).output().expect("it starts");
    assert_success(&output);
    let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");

    let start =
        command(tiny, libraries, root, &["plan", "--config", "tiny.json"]).output().expect("it starts");
    assert_success(&start);
    let uses_cpu = stdout(&start).contains("on the CPU");
    assert_eq!(report["device"] == "the CPU", uses_cpu, "{report:#}\n{}", stdout(&start));
    if let Some(reason) = stderr(&start).lines().find_map(|line| line.split_once("because ")) {
        let conclusion = report["conclusion"].as_str().expect("a sentence");
        let reason = reason.1.trim_end_matches('.');
        assert!(conclusion.contains(reason), "{conclusion} lacks {reason}");
    }
    report
}

fn printed(mut doctor: Command, folder: &Path) -> String {
    let output = doctor.env("STAND_IN_CC", "90").env("PATH", folder).output().expect("it starts");
    assert_success(&output);
    let parts = ["NVIDIA driver", "NVRTC", "CUDA headers", "card", "Open MPI"];
    let is_fixed =
        |line: &&str| line.starts_with('`') || parts.iter().any(|part| line[9..].starts_with(part));
    let text = stdout(&output);
    text.lines().filter(|line| !line.is_empty()).filter(is_fixed).collect::<Vec<_>>().join("\n")
}

#[test]
fn doctor_prints_a_remedy_for_each_part_that_is_taken_away() {
    let Some(whole) = stand_in::installation() else { return };
    let tiny = Tiny::new();
    let [empty, driver] = ["empty", "driver"].map(|name| tiny.join(name));
    for folder in [&empty, &driver] {
        fs::create_dir(folder).expect("making");
    }
    symlink(whole.join("lib/libcuda.so.1"), driver.join("libcuda.so.1")).expect("linking");
    let libraries = whole.join("lib");
    for (name, libraries, root) in [
        ("doctor_without_a_driver", &empty, empty.as_path()),
        ("doctor_without_nvrtc", &driver, whole),
        ("doctor_without_headers", &libraries, empty.as_path()),
        ("doctor_at_9_0", &libraries, whole),
    ] {
        let text = printed(command(&tiny, libraries, root, &["doctor"]), &empty);
        insta::assert_snapshot!(name, text.replace(&whole.display().to_string(), "CUDA"));
    }
}

#[test]
fn doctor_names_the_device_and_the_reason_of_a_start() {
    let Some(whole) = stand_in::installation() else { return };
    let tiny = Tiny::new();
    let empty = tiny.join("empty");
    fs::create_dir(&empty).expect("making");

    let nothing = examined(&tiny, &empty, &empty);
    assert_eq!(verdict(&nothing, "NVIDIA driver"), "missing");
    assert_eq!(verdict(&nothing, "NVRTC"), "missing");

    let driver_alone = tiny.join("driver");
    fs::create_dir(&driver_alone).expect("making");
    symlink(whole.join("lib/libcuda.so.1"), driver_alone.join("libcuda.so.1")).expect("linking");
    let without_compiler = examined(&tiny, &driver_alone, whole);
    assert_eq!(verdict(&without_compiler, "NVIDIA driver"), "fine");
    assert_eq!(verdict(&without_compiler, "NVRTC"), "missing");

    let without_headers = examined(&tiny, &whole.join("lib"), &empty);
    assert_eq!(verdict(&without_headers, "NVRTC"), "fine");
    assert_eq!(verdict(&without_headers, "CUDA headers"), "missing");

    let complete = examined(&tiny, &whole.join("lib"), whole);
    for part in ["NVIDIA driver", "NVRTC", "CUDA headers"] {
        assert_eq!(verdict(&complete, part), "fine", "{part}");
    }
    assert_ne!(complete["device"], "the CPU");
}

#[test]
fn doctor_ends_with_the_device_of_a_start() {
    let tiny = Tiny::new();
    let output = command(&tiny, tiny.path(), tiny.path(), &["doctor"]).output().expect("it starts");
    assert_success(&output);
    let text = stdout(&output);
    assert!(text.lines().any(|line| line.starts_with("fine") && line.contains("current folder")), "{text}");
    assert!(
        text.trim_end().lines().last().is_some_and(|line| line.starts_with("`train` would use")),
        "{text}"
    );
}

#[test]
fn doctor_names_the_open_mpi_that_is_installed() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let output = command(&tiny, tiny.path(), tiny.path(), &["doctor"]).output().expect("it starts");
    assert_success(&output);
    let text = stdout(&output);
    let begins = "fine     Open MPI           Open MPI v";
    assert!(text.lines().any(|line| line.starts_with(begins)), "{text}");
}

#[test]
fn completions_of_each_shell_know_every_verb() {
    let tiny = Tiny::new();
    for shell in ["bash", "zsh", "fish"] {
        let output =
            command(&tiny, tiny.path(), tiny.path(), &["completions", shell]).output().expect("it starts");
        assert_success(&output);
        for verb in ["plan", "doctor", "tokenizer"] {
            assert!(stdout(&output).contains(verb), "{verb} in {shell}");
        }
    }
}
