//! Runs the program and reads its output.

use std::{ffi::OsStr, fs, path::Path, process::Output, time::Duration};

use assert_cmd::Command;
use serde_json::Value;
use suite::Need;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_train");

/// Tests share one measurement of the machine; the user's folder stays untouched.
pub(crate) const CACHE: (&str, &str) = ("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));

pub(crate) const LIMIT: Duration = Duration::from_mins(5);

pub(crate) fn train(folder: &Path, arguments: &[impl AsRef<OsStr>]) -> Output {
    train_with_input(folder, arguments, "")
}

pub(crate) fn train_with_input(folder: &Path, arguments: &[impl AsRef<OsStr>], input: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).current_dir(folder).envs([CACHE]).write_stdin(input).timeout(LIMIT);
    command.output().expect("the program starts")
}

#[cfg(target_os = "linux")]
pub(crate) fn processes_in(folder: &Path) -> Vec<u32> {
    let Ok(folder) = folder.canonicalize() else { return Vec::new() };
    let works_there = |id: &u32| fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|cwd| cwd == folder);
    let ids = fs::read_dir("/proc").expect("Linux").flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(works_there).collect()
}

pub(crate) fn failure(output: &Output, folder: &Path) -> String {
    let said = stderr(output);
    assert!(!output.status.success(), "{said}");
    said.replace(&folder.display().to_string(), "DIR")
}

/// The plan before the error depends on the machine.
pub(crate) fn last_words(output: &Output, folder: &Path) -> String {
    let said = failure(output, folder);
    assert!(!said.contains("panicked at"), "{said}");
    let begins = |line: &&str| ["train: ", "error: "].iter().any(|word| line.starts_with(word));
    let mut lines = said.split_inclusive('\n');
    let before: usize = lines.by_ref().take_while(|line| !begins(line)).map(str::len).sum();
    assert!(before < said.len(), "no error is named:\n{said}");
    said[before..].trim_end().to_owned()
}

pub(crate) fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
}

pub(crate) fn assert_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error} in {}\nbeside\n{}", stdout(output), stderr(output));
    })
}

#[cfg(unix)]
pub(crate) fn with_own_mounts(folder: &Path, script: &str) -> std::process::Command {
    let mut shell = std::process::Command::new("unshare");
    shell.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).current_dir(folder).envs([CACHE]);
    shell
}

#[cfg(unix)]
pub(crate) fn can_mount(folder: &Path, mount: &str) -> bool {
    let can = with_own_mounts(folder, mount).status().is_ok_and(|status| status.success());
    Need::Mounts.is_met((!can).then_some("mounting is refused in a namespace of its own"))
}

pub(crate) fn write_text(path: &Path, lines: usize) {
    let text =
        (0..lines).map(|at| format!("At hour {at} the gauge read {} and the water rose.\n", at * 37 % 101));
    fs::write(path, text.collect::<String>()).expect("writing");
}
