//! Running the program and reading what it says.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_train");

pub(crate) fn train(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).current_dir(folder).output().expect("the program starts")
}

/// Standard error of a run that has to fail, without the test's own folder.
pub(crate) fn failure(output: &Output, folder: &Path) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    said.replace(&folder.display().to_string(), "DIR")
}

pub(crate) fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn write_text(path: &Path, lines: usize) {
    let text =
        (0..lines).map(|at| format!("At hour {at} the gauge read {} and the water rose.\n", at * 37 % 101));
    fs::write(path, text.collect::<String>()).expect("writing");
}
