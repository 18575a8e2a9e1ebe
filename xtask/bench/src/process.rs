//! Runs one process under a time limit.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use xtask::invocation::Invocation;

pub(crate) struct Ended {
    /// `None` if stopped at the limit.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) printed: String,
    /// Standard error.
    pub(crate) said: String,
    /// The program's error, or standard error's last useful line.
    pub(crate) complaint: String,
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Runs in the current folder. Errors start with `name:`.
pub(crate) fn run(invocation: &Invocation, name: &str, scratch: &Path, limit: Duration) -> Result<Ended> {
    run_watched(invocation, name, scratch, limit, |_| {})
}

/// [`run`] with `look`, which gets the standard-error file every few hundredths of a second.
pub(crate) fn run_watched(
    invocation: &Invocation,
    name: &str,
    scratch: &Path,
    limit: Duration,
    mut look: impl FnMut(&Path),
) -> Result<Ended> {
    // Pipes could block, or stay open in a surviving child.
    let [printed, said] = ["stdout", "stderr"].map(|name| scratch.join(name));
    let file =
        |path| File::create(path).with_context(|| format!("no room for output in {}", scratch.display()));
    let mut child = invocation
        .command(Path::new("."))
        .stdin(Stdio::null())
        .stdout(file(&printed)?)
        .stderr(file(&said)?)
        .spawn()
        .with_context(|| format!("`{invocation}` could not be started"))?;
    let status = wait(&mut child, limit, || look(&said))
        .with_context(|| format!("`{invocation}` could not be waited for"))?;
    let text = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let said = text(&said)?;
    Ok(Ended { status, printed: text(&printed)?, complaint: complaint(name, &said), said })
}

fn wait(child: &mut Child, limit: Duration, mut look: impl FnMut()) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        look();
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let Some(left) = limit.checked_sub(started.elapsed()) else {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        };
        thread::sleep(left.min(BETWEEN_LOOKS));
    }
}

/// The last error in one line, without program name and Rust's hint.
fn complaint(name: &str, said: &str) -> String {
    let name = format!("{name}: ");
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if let Some(start) = lines.iter().rposition(|line| line.starts_with(&name)) {
        return lines[start..].join(" ")[name.len()..].to_owned();
    }
    let last = lines.iter().rfind(|line| !line.starts_with("note: run with"));
    last.copied().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_several_lines_becomes_one() {
        let said = "step 1\ntrain: step 2 could not run: failed\nCaused by:\n  mul: no room\n\n";
        assert_eq!(complaint("train", said), "step 2 could not run: failed Caused by: mul: no room");
    }

    #[test]
    fn without_an_error_the_last_useful_line_is_the_complaint() {
        let panic = "thread 'main' panicked at a.rs:1:\nno device\nnote: run with `RUST_BACKTRACE=1`\n";
        assert_eq!(complaint("train", panic), "no device");
        assert_eq!(complaint("train", ""), "");
    }
}
