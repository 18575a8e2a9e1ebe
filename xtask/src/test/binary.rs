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
    /// Size of the suite that it runs in.
    pub(super) size: Size,
}

/// Tests that run in one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Portion {
    pub(super) tests: Vec<String>,
    /// `#[ignore]` tests of a larger size.
    are_marked: bool,
}

/// Tests of a portion: a long one leaves a lane idle at the end.
const MOST: usize = 24;
const MOST_MARKED: usize = 4;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) succeeded: bool,
}

impl Portion {
    fn divided(mut tests: Vec<String>, are_marked: bool) -> impl Iterator<Item = Self> {
        let most = if are_marked { MOST_MARKED } else { MOST };
        let count = tests.len().div_ceil(most);
        (0..count).map(move |n| {
            let tests = tests.drain(..tests.len().div_ceil(count - n)).collect();
            Self { tests, are_marked }
        })
    }

    /// Without those that have `passed`.
    pub(super) fn left(&self, passed: &[String]) -> Self {
        let left = self.tests.iter().filter(|test| !passed.contains(test));
        Self { tests: left.cloned().collect(), are_marked: self.are_marked }
    }

    fn arguments(&self) -> Vec<&str> {
        let marked = self.are_marked.then_some("--ignored");
        marked.into_iter().chain(["--exact"]).chain(self.tests.iter().map(String::as_str)).collect()
    }
}

impl Ran {
    pub(super) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
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
    pub(super) fn portions(&self, filters: &[String]) -> Result<Vec<Portion>> {
        let matches = |test: &String| filters.is_empty() || filters.iter().any(|part| test.contains(part));
        let marked = self.listed(&["--list", "--ignored"])?;
        let mut unmarked = self.listed(&["--list"])?;
        unmarked.retain(|test| matches(test) && !marked.contains(test));
        let marked = marked.into_iter().filter(|test| matches(test) && belongs(test, self.size)).collect();
        Ok(Portion::divided(unmarked, false).chain(Portion::divided(marked, true)).collect())
    }

    /// The smallest size with a marked test that has `filter` in its path.
    pub(super) fn size_with(&self, filter: &str) -> Result<Option<Size>> {
        let marked = self.listed(&["--list", "--ignored"])?;
        let has_one = |size: &Size| marked.iter().any(|test| test.contains(filter) && belongs(test, *size));
        Ok([Size::Gate, Size::Full].into_iter().find(has_one))
    }

    fn listed(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let listed = self.invocation().arguments(arguments.iter().copied()).output(&self.folder)?;
        Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    fn invocation(&self) -> Invocation {
        Invocation::new(self.executable.to_string_lossy())
            .environment("CARGO_MANIFEST_DIR", self.folder.to_string_lossy())
            .environment(suite::SIZE, self.size.name())
    }

    /// Shows output when the limit kills the process, and on failure. `read` gets each line at once.
    pub(super) fn run(
        &self,
        (name, portion): (&str, &Portion),
        variables: &[(&'static str, String)],
        limit: Duration,
        read: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Ran> {
        let invocation = self.invocation().arguments(portion.arguments());
        let invocation = variables
            .iter()
            .fold(invocation, |invocation, (name, value)| invocation.environment(name, value));
        let child = invocation
            .command(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", self.executable.display()))?;
        let mut ran = watch((name, child), limit, read)?;
        let (results, tests) = (ran.passed + ran.failed, portion.tests.len());
        if ran.succeeded && results < tests {
            println!("{name} failed: it ended well, but gave {results} results of {tests} tests");
            ran.succeeded = false;
        }
        Ok(ran)
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
        assert_eq!(ran, Ran { passed: 5, failed: 1, succeeded: false });
    }

    #[test]
    fn marked_tests_run_in_the_size_that_their_module_names() {
        let sizes = [Size::Quick, Size::Gate, Size::Full];
        assert_eq!(sizes.map(|size| belongs("cube::hidden::gate::mlp", size)), [false, true, true]);
        assert_eq!(sizes.map(|size| belongs("cube::hidden::full::tied", size)), [false, false, true]);
        assert_eq!(sizes.map(|size| belongs("child::runs_the_gate", size)), [false; 3]);
    }

    #[test]
    fn portions_have_each_test_once_and_never_turn_into_all_tests() {
        let names: Vec<String> = (0..50).map(|n| format!("test_{n}")).collect();
        for are_marked in [false, true] {
            let portions: Vec<_> = Portion::divided(names.clone(), are_marked).collect();
            assert_eq!(portions.len(), if are_marked { 13 } else { 3 });
            let all: Vec<_> = portions.iter().flat_map(|portion| portion.tests.clone()).collect();
            assert_eq!(all, names);
            assert!(portions.iter().all(|portion| portion.arguments().contains(&"--exact")));
        }
        assert_eq!(Portion::divided(Vec::new(), false).count(), 0);

        let portion = Portion { tests: names[..2].to_vec(), are_marked: true };
        assert_eq!(portion.left(&names[1..]).arguments(), ["--ignored", "--exact", "test_0"]);
        assert_eq!(portion.left(&names).tests, [""; 0]);
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
        assert_eq!(ran, Ran { passed: 1, failed: 0, succeeded: false });
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[cfg(unix)]
    #[test]
    fn a_process_that_ends_well_without_its_tests_results_has_failed() {
        let silent = Binary {
            package: "a".to_owned(),
            target: "it".to_owned(),
            executable: "true".into(),
            folder: std::env::temp_dir(),
            size: Size::Quick,
        };
        let succeeded = |tests: &[&str]| {
            let tests = tests.iter().copied().map(str::to_owned).collect();
            let portion = Portion { tests, are_marked: false };
            silent.run(("a it", &portion), &[], Duration::from_mins(1), &mut |_| Ok(())).unwrap().succeeded
        };
        assert_eq!([succeeded(&[]), succeeded(&["one"])], [true, false]);
    }

    #[cfg(unix)]
    #[test]
    fn a_process_that_crashes_after_its_tests_has_failed() {
        let crashing = "echo 'test result: ok. 1 passed; 0 failed'; exit 3";
        assert!(!watch(("it", shell(crashing)), Duration::from_mins(1), &mut |_| Ok(())).unwrap().succeeded);
    }
}
