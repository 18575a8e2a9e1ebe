//! Tests that an interrupted full suite has passed: the next run continues behind them.

use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    io::Read,
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
    /// Digest of the executable: a new build runs again.
    digest: u64,
    test: String,
    /// Since the test before it ended.
    seconds: f64,
    /// Missing needs, as the test reported them.
    not_run: String,
}

/// What earlier runs of a binary passed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Earlier {
    pub(super) tests: Vec<String>,
    pub(super) took: Duration,
    pub(super) not_run: String,
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

    pub(super) fn earlier(&self, binary: &str, executable: &Path) -> Result<Earlier> {
        let digest = digest(executable)?;
        let mut earlier = Earlier::default();
        for record in &self.earlier {
            if record.binary == binary && record.digest == digest {
                earlier.tests.push(record.test.clone());
                earlier.took += Duration::from_secs_f64(record.seconds);
                earlier.not_run += &record.not_run;
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
        let needs = fs::read_to_string(&self.not_run).unwrap_or_default();
        let is_its = |line: &&str| line.split_once('\t').is_some_and(|(_, name)| name.trim_end() == test);
        let record = Record {
            binary: self.binary.clone(),
            digest: self.digest,
            test: test.to_owned(),
            seconds: self.last.elapsed().as_secs_f64(),
            not_run: needs.split_inclusive('\n').filter(is_its).collect(),
        };
        self.last = Instant::now();
        super::append(&self.file, &(serde_json::to_string(&record)? + "\n"))
    }
}

fn digest(executable: &Path) -> Result<u64> {
    let read = || -> std::io::Result<u64> {
        let (mut file, mut hasher) = (fs::File::open(executable)?, DefaultHasher::new());
        let mut piece = vec![0; 1 << 20];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(hasher.finish()),
                read => hasher.write(&piece[..read]),
            }
        }
    };
    read().with_context(|| format!("{} cannot be read", executable.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continued_run_leaves_out_the_tests_that_the_same_executable_has_passed() {
        let folder = std::env::temp_dir().join(format!("passed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [file, executable, not_run] = ["passed", "it", "not-run"].map(|name| folder.join(name));
        fs::write(&executable, "one build").unwrap();
        fs::write(&not_run, "mpi\tranks::one\nmpi\tranks::two\n").unwrap();
        let earlier = |continues: bool| {
            let passed = Passed::open(file.clone(), continues).unwrap();
            let earlier = passed.earlier("pager it", &executable).unwrap();
            (earlier.tests, earlier.not_run)
        };

        let passed = Passed::open(file.clone(), false).unwrap();
        let mut recorder = passed.recorder("pager it", &executable, &not_run).unwrap();
        for line in
            ["running 3 tests", "test ranks::one ... ok", "test ranks::two ... FAILED", "test b ... ok"]
        {
            recorder.read(line).unwrap();
        }
        crate::test::append(&file, r#"{"binary": "pa"#).unwrap();
        let nothing = (vec![], String::new());
        let kept = (vec!["ranks::one".to_owned(), "b".to_owned()], "mpi\tranks::one\n".to_owned());
        assert_eq!(earlier(true), kept);
        fs::write(&executable, "another build").unwrap();
        assert_eq!(earlier(true), nothing);
        fs::write(&executable, "one build").unwrap();
        assert_eq!(earlier(false), nothing);
        assert_eq!(earlier(true), nothing);
        fs::remove_dir_all(&folder).unwrap();
    }
}
