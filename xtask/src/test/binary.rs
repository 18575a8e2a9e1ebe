//! Selects a binary's tests, and runs them under a time limit.

use std::{
    fmt::{self, Write as _},
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use suite::Size;

use xtask::invocation::Invocation;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Binary {
    pub(super) package: String,
    pub(super) target: String,
    pub(super) executable: PathBuf,
    pub(super) folder: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selection {
    /// Given filters, only tests that contain one.
    Unmarked { filters: Vec<String>, left_out: Vec<String> },
    /// `#[ignore]` tests of a larger size.
    Marked(Vec<String>),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) ignored: usize,
    pub(super) succeeded: bool,
}

impl Selection {
    /// `None` if none of its tests are left.
    pub(super) fn without(&self, tests: &[String]) -> Option<Self> {
        match self {
            // With filters, `--exact` would apply to them too.
            Self::Unmarked { filters, .. } if filters.is_empty() => {
                Some(Self::Unmarked { filters: Vec::new(), left_out: tests.to_vec() })
            }
            Self::Unmarked { .. } => Some(self.clone()),
            Self::Marked(marked) => {
                let left: Vec<String> = marked.iter().filter(|test| !tests.contains(test)).cloned().collect();
                (!left.is_empty()).then_some(Self::Marked(left))
            }
        }
    }

    fn arguments(&self) -> Vec<&str> {
        match self {
            Self::Unmarked { filters, left_out } if left_out.is_empty() => {
                filters.iter().map(String::as_str).collect()
            }
            Self::Unmarked { left_out, .. } => {
                let skipped = left_out.iter().flat_map(|test| ["--skip", test.as_str()]);
                ["--exact"].into_iter().chain(skipped).collect()
            }
            Self::Marked(tests) => {
                ["--ignored", "--exact"].into_iter().chain(tests.iter().map(String::as_str)).collect()
            }
        }
    }
}

impl Ran {
    pub(super) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Adds the counts of libtest's closing line.
    fn read(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ").and_then(|line| line.split_once(". ")) else {
            return;
        };
        for part in counts.1.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let number = number.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// A larger size's test is in a module `gate` or `full`.
fn belongs(test: &str, size: Size) -> bool {
    let is_in = |module: &str| test.split("::").any(|part| part == module);
    (size >= Size::Gate && is_in("gate")) || (size == Size::Full && is_in("full"))
}

impl Binary {
    pub(super) fn selections(&self, size: Size, filters: &[String]) -> Result<Vec<Selection>> {
        let mut selections = vec![Selection::Unmarked { filters: filters.to_vec(), left_out: Vec::new() }];
        if size > Size::Quick {
            let listed = self.invocation().arguments(["--list", "--ignored"]).output(&self.folder)?;
            let matches = |test: &str| filters.is_empty() || filters.iter().any(|part| test.contains(part));
            let marked: Vec<String> = listed
                .lines()
                .filter_map(|line| line.strip_suffix(": test"))
                .filter(|test| belongs(test, size) && matches(test))
                .map(str::to_owned)
                .collect();
            if !marked.is_empty() {
                selections.push(Selection::Marked(marked));
            }
        }
        Ok(selections)
    }

    fn invocation(&self) -> Invocation {
        Invocation::new(self.executable.to_string_lossy())
            .environment("CARGO_MANIFEST_DIR", self.folder.to_string_lossy())
    }

    /// Shows output when the limit kills the process, and on failure. `read` gets each line at once.
    pub(super) fn run(
        &self,
        (name, selection): (&str, &Selection),
        variables: &[(&'static str, String)],
        limit: Duration,
        read: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Ran> {
        let invocation = self.invocation().arguments(selection.arguments());
        let invocation = variables
            .iter()
            .fold(invocation, |invocation, (name, value)| invocation.environment(name, value));
        let child = invocation
            .command(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", self.executable.display()))?;
        watch((name, child), limit, read)
    }
}

pub(super) fn watch(
    (name, mut child): (&str, Child),
    limit: Duration,
    read: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Ran> {
    let started = Instant::now();
    let lines = reader(child.stdout.take().context("its output is piped")?);
    let (mut ran, mut printed) = (Ran::default(), String::new());
    loop {
        let left = limit.saturating_sub(started.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) => {
                ran.read(&line);
                read(&line)?;
                if line.starts_with("test result: ") {
                    println!("{name}: {line}");
                }
                printed += &(line + "\n");
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill()?;
                writeln!(printed, "killed: not done after {} s", limit.as_secs())?;
                break;
            }
        }
    }
    ran.succeeded = child.wait()?.success();
    if !ran.succeeded {
        println!("{name} failed:\n{printed}");
    }
    Ok(ran)
}

/// Children may keep `output` open; the limit ends that.
fn reader(output: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package, self.target)
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmarked { .. } => Ok(()),
            Self::Marked(tests) => write!(f, " ({} of larger sizes)", tests.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn results_of_all_runs_in_a_process_are_added_up() {
        let mut ran = Ran::default();
        ran.read("test a::b ... ok");
        ran.read(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.0s",
        );
        ran.read("test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(ran, Ran { passed: 5, failed: 1, ignored: 1, succeeded: false });
    }

    #[test]
    fn marked_tests_run_in_the_size_that_their_module_names() {
        let sizes = [Size::Quick, Size::Gate, Size::Full];
        assert_eq!(sizes.map(|size| belongs("cube::hidden::gate::mlp", size)), [false, true, true]);
        assert_eq!(sizes.map(|size| belongs("cube::hidden::full::tied", size)), [false, false, true]);
        assert_eq!(sizes.map(|size| belongs("child::runs_the_gate", size)), [false; 3]);
    }

    #[test]
    fn a_selection_leaves_out_passed_tests_and_never_turns_into_all_tests() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let unmarked = |filters| Selection::Unmarked { filters, left_out: Vec::new() };
        let arguments = |selection: Selection, passed: &[&str]| {
            let left = selection.without(&names(passed))?;
            Some(left.arguments().join(" "))
        };
        assert_eq!(arguments(unmarked(vec![]), &[]).unwrap(), "");
        assert_eq!(arguments(unmarked(vec![]), &["a", "b"]).unwrap(), "--exact --skip a --skip b");
        assert_eq!(arguments(unmarked(names(&["cube"])), &["a"]).unwrap(), "cube");
        let marked = || Selection::Marked(names(&["full::a", "full::b"]));
        assert_eq!(arguments(marked(), &["full::a"]).unwrap(), "--ignored --exact full::b");
        assert_eq!(arguments(marked(), &["full::b", "full::a"]), None);
    }

    #[cfg(unix)]
    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn a_process_that_hangs_is_killed_at_the_limit_and_has_failed() {
        let started = Instant::now();
        let hanging = "echo 'test result: ok. 1 passed; 0 failed'; exec sleep 60";
        let ran = watch(("it", shell(hanging)), Duration::from_millis(300), &mut |_| Ok(())).unwrap();
        assert_eq!(ran, Ran { passed: 1, failed: 0, ignored: 0, succeeded: false });
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[cfg(unix)]
    #[test]
    fn a_process_that_crashes_after_its_tests_has_failed() {
        let crashing = "echo 'test result: ok. 1 passed; 0 failed'; exit 3";
        assert!(!watch(("it", shell(crashing)), Duration::from_mins(1), &mut |_| Ok(())).unwrap().succeeded);
    }
}
