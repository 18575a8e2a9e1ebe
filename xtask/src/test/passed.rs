//! Tests that an interrupted full suite has passed: the next run continues behind them.

use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    io::Read,
    iter,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One JSON record a line per passed test.
pub(super) struct Passed {
    file: PathBuf,
    earlier: Vec<Record>,
    /// Files outside of the programs' folder that any test may use.
    shared: Vec<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    /// Package and target.
    binary: String,
    /// Digest of the executable, of the programs in its folder, which tests start, and of the shared files: a new build
    /// runs again.
    digest: u64,
    test: String,
    /// Since the test before it ended.
    seconds: f64,
}

/// What earlier runs of a binary passed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Earlier {
    pub(super) tests: Vec<String>,
    pub(super) took: Duration,
}

impl Passed {
    /// Forgets earlier runs of `packages`, or of all if none is named, unless this run continues them.
    pub(super) fn open(
        file: PathBuf,
        continues: bool,
        packages: &[String],
        shared: Vec<PathBuf>,
    ) -> Result<Self> {
        let text = fs::read_to_string(&file).unwrap_or_default();
        // A killed process may leave half a line.
        let records = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let earlier: Vec<Record> =
            records.filter(|record: &Record| continues || !record.is_of(packages)).collect();
        let kept = earlier.iter().map(|record| Ok(serde_json::to_string(record)? + "\n"));
        let kept: String = kept.collect::<Result<_>>()?;
        // A kill must not lose what hours have passed.
        let aside = file.with_extension("new");
        fs::write(&aside, kept)
            .and_then(|()| fs::rename(&aside, &file))
            .with_context(|| format!("{} cannot be written", file.display()))?;
        Ok(Self { file, earlier, shared })
    }

    pub(super) fn earlier(&self, binary: &str, executable: &Path, tests: &[String]) -> Result<Earlier> {
        let digest = self.digest(executable)?;
        let mut earlier = Earlier::default();
        for record in &self.earlier {
            if record.binary == binary && record.digest == digest && tests.contains(&record.test) {
                earlier.tests.push(record.test.clone());
                earlier.took += Duration::from_secs_f64(record.seconds);
            }
        }
        Ok(earlier)
    }

    /// Keeps the tests of `binary` that pass; `not_run` is the file of missing needs.
    pub(super) fn recorder(&self, binary: &str, executable: &Path, not_run: &Path) -> Result<Recorder> {
        Ok(Recorder {
            file: self.file.clone(),
            binary: binary.to_owned(),
            program: executable.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            digest: self.digest(executable)?,
            not_run: not_run.to_owned(),
            last: Instant::now(),
        })
    }

    fn digest(&self, executable: &Path) -> Result<u64> {
        let read = || -> std::io::Result<u64> {
            let mut hasher = DefaultHasher::new();
            let own = iter::once(executable.to_owned()).chain(programs(executable)?);
            for file in own.chain(self.shared.iter().cloned()) {
                let (mut file, mut piece) = (fs::File::open(file)?, vec![0; 1 << 20]);
                loop {
                    match file.read(&mut piece)? {
                        0 => break,
                        read => hasher.write(&piece[..read]),
                    }
                }
            }
            Ok(hasher.finish())
        };
        read().with_context(|| format!("{} or a file beside it cannot be read", executable.display()))
    }
}

impl Record {
    fn is_of(&self, packages: &[String]) -> bool {
        let own = self.binary.split(' ').next().unwrap_or_default();
        packages.is_empty() || packages.iter().any(|package| package == own)
    }
}

pub(super) struct Recorder {
    file: PathBuf,
    binary: String,
    /// The executable's file name.
    program: String,
    digest: u64,
    not_run: PathBuf,
    last: Instant,
}

impl Recorder {
    /// Reads a line of the binary's output.
    pub(super) fn read(&mut self, line: &str) -> Result<()> {
        let Some(test) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... ok")) else {
            return Ok(());
        };
        let test = test.strip_suffix(" - should panic").unwrap_or(test);
        let needs = fs::read_to_string(&self.not_run).unwrap_or_default();
        let lacking = format!("{test}\t{}", self.program);
        // It runs again: a later machine may have its need.
        if needs.lines().any(|line| line.split_once('\t').is_some_and(|(_, named)| named == lacking)) {
            return Ok(());
        }
        let record = Record {
            binary: self.binary.clone(),
            digest: self.digest,
            test: test.to_owned(),
            seconds: self.last.elapsed().as_secs_f64(),
        };
        self.last = Instant::now();
        super::append(&self.file, &(serde_json::to_string(&record)? + "\n"))
    }
}

/// Programs and loaded libraries of the profile's folder, above the tests' `deps`.
fn programs(executable: &Path) -> std::io::Result<Vec<PathBuf>> {
    let Some(folder) = executable.ancestors().nth(2) else { return Ok(Vec::new()) };
    let is_program = |path: &PathBuf| {
        path.is_file() && path.extension().is_none_or(|extension| extension == "so" || extension == "exe")
    };
    let mut programs: Vec<PathBuf> =
        fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(is_program).collect();
    programs.sort();
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continued_run_leaves_out_the_tests_that_the_same_programs_have_passed() {
        let folder = std::env::temp_dir().join(format!("passed-{}", std::process::id()));
        fs::create_dir_all(folder.join("deps")).unwrap();
        let [file, executable, program, not_run, driver] =
            ["passed.txt", "deps/it", "train", "not-run.txt", "deps/driver"].map(|name| folder.join(name));
        for built in [&executable, &program, &driver] {
            fs::write(built, "one build").unwrap();
        }
        fs::write(&not_run, "mpi\tranks::lacking\tit\nmpi\tc\tanother\n").unwrap();
        let open = |continues| Passed::open(file.clone(), continues, &[], vec![driver.clone()]).unwrap();
        let earlier = |continues: bool| {
            let tests = ["b", "c", "ranks::lacking"].map(str::to_owned);
            open(continues).earlier("pager it", &executable, &tests).unwrap().tests
        };

        let passed = open(false);
        let mut recorder = passed.recorder("pager it", &executable, &not_run).unwrap();
        for line in [
            "running 4 tests",
            "test ranks::lacking ... ok",
            "test ranks::two ... FAILED",
            "test b - should panic ... ok",
            "test c ... ok",
        ] {
            recorder.read(line).unwrap();
        }
        crate::test::append(&file, r#"{"binary": "pa"#).unwrap();
        assert_eq!(earlier(true), ["b", "c"]);
        for changed in [&executable, &program, &driver] {
            fs::write(changed, "another build").unwrap();
            assert_eq!(earlier(true), [""; 0]);
            fs::write(changed, "one build").unwrap();
        }
        assert_eq!(earlier(true), ["b", "c"]);
        assert_eq!(earlier(false), [""; 0]);
        assert_eq!(earlier(true), [""; 0]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_run_of_one_package_forgets_no_other_packages_tests() {
        let folder = std::env::temp_dir().join(format!("passed-package-{}", std::process::id()));
        fs::create_dir_all(folder.join("deps")).unwrap();
        let [file, executable, not_run] =
            ["passed.txt", "deps/it", "not-run.txt"].map(|name| folder.join(name));
        fs::write(&executable, "one build").unwrap();
        let open = |continues, package: Option<&str>| {
            let packages: Vec<String> = package.into_iter().map(str::to_owned).collect();
            Passed::open(file.clone(), continues, &packages, Vec::new()).unwrap()
        };
        let binaries = ["pager it", "pager-replay it"];
        let kept = |passed: &Passed| {
            let tests = ["a".to_owned()];
            binaries.map(|binary| passed.earlier(binary, &executable, &tests).unwrap().tests.len())
        };

        let whole = open(false, None);
        for binary in binaries {
            whole.recorder(binary, &executable, &not_run).unwrap().read("test a ... ok").unwrap();
        }
        assert_eq!(kept(&open(true, Some("pager"))), [1, 1]);
        assert_eq!(kept(&open(false, Some("pager"))), [0, 1]);
        assert_eq!(kept(&open(true, None)), [0, 1]);
        assert_eq!(kept(&open(false, None)), [0, 0]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
