//! `cargo xtask test`: builds the tests once, runs them in portions under a time limit, two at once, and reports which
//! tests ran. Tests read the suite's size through crate `suite`.

mod binary;
mod build;
mod lanes;
mod missing;
mod passed;

use std::{
    collections::hash_map::RandomState,
    fs,
    hash::{BuildHasher, Hasher},
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use suite::Size;

use xtask::workspace::{self, Workspace};

use crate::{
    features, stand_in,
    times::{Times, minutes},
};
use binary::{Binary, Portion, Ran};
use lanes::Lanes;
use missing::Missing;
use passed::{Earlier, Passed};

/// Lets tests use one build of the CUDA stand-in.
const STAND_IN: &str = "SPILLWAY_STAND_IN";

/// Seeds all random tests; fixed by `.cargo/config.toml`.
const RANDOM_SEED: &str = "PROPTEST_RNG_SEED";

/// Seeds the moments at which tests of the trainer kill runs and ranks.
const KILLS_SEED: &str = "TRAIN_KILLS_SEED";

const TEST_THREADS: &str = "RUST_TEST_THREADS";

#[derive(Args, Default)]
pub(crate) struct Test {
    /// Run more cases, and the tests on Vulkan: all that a change must pass
    #[arg(long, conflicts_with = "full")]
    gate: bool,
    /// Run everything, with the checks that a release leaves out and random cases drawn afresh; takes hours
    #[arg(long)]
    full: bool,
    /// Leave out tests that an interrupted full run has passed, unless they were built anew since
    #[arg(long = "continue", requires = "full")]
    continues: bool,
    /// Only tests of this package; may be repeated
    #[arg(long, short, value_name = "NAME")]
    package: Vec<String>,
    /// Only tests whose path contains one of these
    filters: Vec<String>,
}

impl Test {
    pub(crate) fn for_gate() -> Self {
        Self { gate: true, ..Self::default() }
    }

    fn size(&self) -> Size {
        match (self.gate, self.full) {
            (_, true) => Size::Full,
            (true, false) => Size::Gate,
            (false, false) => Size::Quick,
        }
    }

    pub(crate) fn run(self) -> Result<()> {
        let mut times = Times::in_file(Workspace::read()?.target.join("test-times.csv"));
        let outcome = self.run_timed(&mut times);
        print!("{}", times.slowest());
        println!("{}", outcome?);
        Ok(())
    }

    pub(crate) fn run_timed(&self, times: &mut Times) -> Result<String> {
        let started = Instant::now();
        let size = self.size();
        let workspace = Workspace::read()?;
        let not_run = workspace.target.join("tests-not-run");
        remove(&not_run)?;
        let mut variables = vec![(suite::NOT_RUN, not_run.display().to_string())];
        for (name, seed) in fresh_seeds(size, RandomState::new().build_hasher().finish()) {
            println!("tests draw from {name}={seed}");
            variables.push((name, seed));
        }
        // Otherwise tests report that it is missing.
        let installed = stand_in::installation().ok();
        variables.extend(installed.iter().map(|folder| (STAND_IN, folder.display().to_string())));

        let binaries = times.measure("compile", "tests", |_| build::binaries(size, &self.package))?;
        let jobs = self.jobs(&binaries)?;
        // Filtered runs pass for themselves.
        let passed = if size == Size::Full && self.filters.is_empty() {
            let shared = installed.as_deref().map_or(Ok(Vec::new()), stand_in::files)?;
            let file = workspace.target.join("tests-passed");
            Some(Passed::open(file, self.continues, &self.package, shared)?)
        } else {
            None
        };
        let lanes = Lanes::of_machine();
        let mut for_documentation = variables.clone();
        for_documentation.push((suite::SIZE, size.name().to_owned()));
        variables.push((TEST_THREADS, lanes.threads.to_string()));
        let run = Run { size, variables, lacking: not_run, passed };
        let so_far = Mutex::new((Outcome::default(), &mut *times));
        lanes.run(jobs, |job| {
            let (ran, took) = run.job(&job)?;
            let mut so_far = so_far.lock().unwrap_or_else(PoisonError::into_inner);
            let (outcome, times) = &mut *so_far;
            times.keep("tests", &job.name, took, ran.succeeded)?;
            outcome.add(&job.name, &ran);
            Ok(())
        })?;
        let (mut outcome, _) = so_far.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Cargo fails if no named package has a library.
        let documented = documented(&workspace, &self.package)?;
        let is_documented = self.package.is_empty() || !documented.is_empty();
        if size > Size::Quick && self.filters.is_empty() && is_documented {
            let ran = times.measure("compile", "and run documentation's examples", |_| {
                build::documentation(size, &documented, &for_documentation)
            })?;
            outcome.add("documentation's examples", &ran);
        }

        if size == Size::Full && self.package.is_empty() {
            for check in features::alone()? {
                times.measure("compile", &check.to_string(), |_| check.run(workspace::root()))?;
            }
        }

        let missing = Missing::read(&fs::read_to_string(&run.lacking).unwrap_or_default());
        let closing = closing_line(&outcome.total, &missing);
        if !outcome.failed.is_empty() {
            bail!("{closing}\nfailed: {}", outcome.failed.join(", "));
        }
        Ok(format!("{closing}\nthe {} suite passed in {}", called(size), minutes(started.elapsed())))
    }

    /// Integration tests first: they take longest, and the others fill the lanes at the end.
    fn jobs<'b>(&self, binaries: &'b [Binary]) -> Result<Vec<Job<'b>>> {
        let mut jobs = Vec::new();
        for binary in binaries {
            let portions = binary.portions(&self.filters)?;
            jobs.extend(portions.into_iter().map(|portion| Job {
                name: binary.to_string(),
                binary,
                portion,
            }));
        }
        jobs.sort_by_key(|job| !job.binary.target.starts_with("it"));
        for filter in &self.filters {
            let has_it = |test: &String| test.contains(filter.as_str());
            if !jobs.iter().any(|job| job.portion.tests.iter().any(has_it)) {
                let sizes = binaries.iter().map(|binary| binary.size_with(filter));
                let larger = sizes.collect::<Result<Vec<_>>>()?.into_iter().flatten().min();
                bail!("{}", self.no_match(filter, larger));
            }
        }
        Ok(jobs)
    }

    /// `larger` has a match among the programs of this size.
    fn no_match(&self, filter: &str, larger: Option<Size>) -> String {
        let size = self.size();
        let hint = match larger.filter(|larger| *larger > size) {
            Some(larger) => format!("; with `--{}` one has", larger.name()),
            None if size < Size::Full && self.package.is_empty() => {
                "; larger suites (`--gate`, `--full`) also have tests of further packages".to_owned()
            }
            None => String::new(),
        };
        format!("no test of the {} suite has `{filter}` in its path{hint}", called(size))
    }
}

/// Smaller suites repeat their cases and kills, so that no change fails by luck.
fn fresh_seeds(size: Size, seed: u64) -> Vec<(&'static str, String)> {
    let names: &[&'static str] = if size == Size::Full { &[RANDOM_SEED, KILLS_SEED] } else { &[] };
    names.iter().map(|name| (*name, seed.to_string())).collect()
}

fn called(size: Size) -> &'static str {
    size.pick("quick", "gate's", "full")
}

struct Job<'b> {
    name: String,
    binary: &'b Binary,
    portion: Portion,
}

#[derive(Default)]
struct Outcome {
    total: Ran,
    failed: Vec<String>,
}

impl Outcome {
    fn add(&mut self, name: &str, ran: &Ran) {
        if !ran.succeeded && !self.failed.iter().any(|failed| failed == name) {
            self.failed.push(name.to_owned());
        }
        self.total.add(ran);
    }
}

struct Run {
    size: Size,
    variables: Vec<(&'static str, String)>,
    /// File of missing needs.
    lacking: PathBuf,
    passed: Option<Passed>,
}

impl Run {
    fn job(&self, Job { name, binary, portion }: &Job<'_>) -> Result<(Ran, Duration)> {
        let limit = match self.size {
            Size::Quick => Duration::from_mins(15),
            Size::Gate => Duration::from_mins(40),
            Size::Full => Duration::from_hours(24),
        };
        let (mut earlier, mut recorder) = (Earlier::default(), None);
        if let Some(passed) = &self.passed {
            earlier = passed.earlier(name, &binary.executable, &portion.tests)?;
            recorder = Some(passed.recorder(name, &binary.executable, &self.lacking)?);
        }
        let left = portion.left(&earlier.tests);
        let mut ran = Ran { passed: earlier.tests.len(), succeeded: true, ..Ran::default() };
        match ran.passed {
            0 => println!("running {} tests of {name}", left.tests.len()),
            passed => println!("running {} tests of {name}; {passed} passed before", left.tests.len()),
        }
        let started = Instant::now();
        if !left.tests.is_empty() {
            let now = binary.run((name, &left), &self.variables, limit, &mut |line| {
                recorder.as_mut().map_or(Ok(()), |recorder| recorder.read(line))
            })?;
            ran.add(&now);
            ran.succeeded = now.succeeded;
        }
        Ok((ran, earlier.took + started.elapsed()))
    }
}

fn documented(workspace: &Workspace, packages: &[String]) -> Result<Vec<String>> {
    let tested = |name: &str| workspace.member(name).map(|member| member.tests_documentation);
    packages
        .iter()
        .filter_map(|name| tested(name).map(|tested| tested.then(|| name.clone())).transpose())
        .collect()
}

fn append(file: &Path, text: &str) -> Result<()> {
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("{} cannot be written", file.display()))
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", file.display()))
        }
        _ => Ok(()),
    }
}

fn closing_line(total: &Ran, missing: &Missing) -> String {
    let ran = total.passed + total.failed - missing.tests().min(total.passed);
    let line = format!("ran {ran}, {} failed, did not run {}", total.failed, missing.tests());
    if missing.tests() == 0 { line } else { format!("{line}: {missing}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_counts_a_test_that_lacked_something_as_not_run() {
        let total = Ran { passed: 10, failed: 0, succeeded: true };
        let missing = Missing::read("mpi\tranks::one\nmpi\tranks::two\nvulkan\tcube::one\n");
        assert_eq!(
            closing_line(&total, &missing),
            "ran 7, 0 failed, did not run 3: vulkan 1 (apt-get install libvulkan1 mesa-vulkan-drivers), \
             mpi 2 (apt-get install openmpi-bin libopenmpi3)"
        );
    }

    #[test]
    fn the_closing_line_names_no_needs_if_all_tests_ran() {
        let total = Ran { passed: 10, failed: 1, succeeded: false };
        assert_eq!(closing_line(&total, &Missing::default()), "ran 11, 1 failed, did not run 0");
    }

    #[test]
    fn documentation_of_a_package_without_a_library_is_not_tested() {
        let workspace = Workspace::read().unwrap();
        let of = |packages: &[&str]| {
            documented(&workspace, &packages.iter().copied().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(of(&["train"]).unwrap(), [""; 0]);
        assert_eq!(of(&["train", "models"]).unwrap(), ["models"]);
        assert_eq!(of(&["trian"]).unwrap_err().to_string(), "the workspace has no member `trian`");
    }

    #[test]
    fn a_filter_without_a_test_is_an_error_that_names_a_size_with_one() {
        let program = [Binary {
            package: "xtask".to_owned(),
            target: "xtask".to_owned(),
            executable: std::env::current_exe().unwrap(),
            folder: workspace::root().to_owned(),
            size: Size::Quick,
        }];
        let jobs = |filters: &[&str]| {
            let filters = filters.iter().copied().map(str::to_owned).collect();
            let jobs = Test { filters, ..Test::default() }.jobs(&program);
            jobs.map(|jobs| jobs.len()).map_err(|error| error.to_string())
        };
        assert_eq!(jobs(&["options_choose_one_size"]), Ok(1));
        let error = jobs(&["options_choose_one_size", "full::the_guide_is_built"]).unwrap_err();
        assert_eq!(
            error,
            "no test of the quick suite has `full::the_guide_is_built` in its path; with `--full` one has"
        );
        let error = jobs(&["no such test"]).unwrap_err();
        assert!(error.contains("`no such test`") && error.contains("further packages"), "{error}");
    }

    #[test]
    fn only_the_full_suite_draws_its_cases_and_kills_afresh() {
        assert_eq!([Size::Quick, Size::Gate].map(|size| fresh_seeds(size, 7).len()), [0, 0]);
        let drawn = [RANDOM_SEED, KILLS_SEED].map(|name| (name, "7".to_owned()));
        assert_eq!(fresh_seeds(Size::Full, 7), drawn);
        for test in ["kills.rs", "killed_ranks.rs", "survivors.rs"] {
            let text = fs::read_to_string(workspace::root().join("train/tests/it").join(test)).unwrap();
            assert!(text.contains(KILLS_SEED), "{test}");
        }
    }

    #[test]
    fn options_choose_one_size() {
        assert_eq!(Test::default().size(), Size::Quick);
        assert_eq!(Test::for_gate().size(), Size::Gate);
        assert_eq!(Test { full: true, ..Test::default() }.size(), Size::Full);
    }
}
