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
}

#[derive(Serialize, Deserialize)]
struct Record {
    binary: String,
    /// Digest of the executable and of the programs in its folder, which tests start: a new build runs again.
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
    /// Forgets earlier runs unless this one continues them.
    pub(super) fn open(file: PathBuf, continues: bool) -> Result<Self> {
        if !continues {
            super::remove(&file)?;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        // A killed process may leave half a line.
        let earlier = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok(Self { file, earlier })
    }

    pub(super) fn earlier(&self, binary: &str, executable: &Path, tests: &[String]) -> Result<Earlier> {
        let digest = digest(executable)?;
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
            digest: digest(executable)?,
            not_run: not_run.to_owned(),
            last: Instant::now(),
        })
    }
}

pub(super) struct Recorder {
    file: PathBuf,
    binary: String,
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
        // It runs again: a later machine may have its need.
        if needs.lines().any(|line| line.split_once('\t').is_some_and(|(_, name)| name == test)) {
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

fn digest(executable: &Path) -> Result<u64> {
    let read = || -> std::io::Result<u64> {
        let mut hasher = DefaultHasher::new();
        for file in iter::once(executable.to_owned()).chain(programs(executable)?) {
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
    read().with_context(|| format!("{} cannot be read", executable.display()))
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
        let [file, executable, program, not_run] =
            ["passed.txt", "deps/it", "train", "not-run.txt"].map(|name| folder.join(name));
        fs::write(&executable, "one build").unwrap();
        fs::write(&program, "one build").unwrap();
        fs::write(&not_run, "mpi\tranks::lacking\n").unwrap();
        let earlier = |continues: bool| {
            let tests = ["b", "c", "ranks::lacking"].map(str::to_owned);
            Passed::open(file.clone(), continues)
                .unwrap()
                .earlier("pager it", &executable, &tests)
                .unwrap()
                .tests
        };

        let passed = Passed::open(file.clone(), false).unwrap();
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
        for changed in [&executable, &program] {
            fs::write(changed, "another build").unwrap();
            assert_eq!(earlier(true), [""; 0]);
            fs::write(changed, "one build").unwrap();
        }
        assert_eq!(earlier(true), ["b", "c"]);
        assert_eq!(earlier(false), [""; 0]);
        assert_eq!(earlier(true), [""; 0]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
