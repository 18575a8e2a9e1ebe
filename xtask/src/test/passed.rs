//! Tests that an interrupted full suite has passed: the next run continues behind them.

use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::binary::Ran;

/// One JSON record a line per passed selection of tests.
pub(super) struct Passed {
    file: PathBuf,
    earlier: Vec<Record>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    /// Digest of the executable: a new build runs again.
    digest: u64,
    passed: usize,
    ignored: usize,
    seconds: f64,
    /// Missing needs, as the tests reported them.
    not_run: String,
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

    /// Counts, time and missing needs of `name`, if this executable has passed.
    pub(super) fn find(&self, name: &str, executable: &Path) -> Result<Option<(Ran, Duration, &str)>> {
        let Some(record) = self.earlier.iter().rev().find(|record| record.name == name) else {
            return Ok(None);
        };
        if record.digest != digest(executable)? {
            return Ok(None);
        }
        let ran = Ran { passed: record.passed, failed: 0, ignored: record.ignored, succeeded: true };
        Ok(Some((ran, Duration::from_secs_f64(record.seconds), &record.not_run)))
    }

    pub(super) fn keep(
        &self,
        name: &str,
        executable: &Path,
        ran: &Ran,
        took: Duration,
        not_run: &str,
    ) -> Result<()> {
        let record = Record {
            name: name.to_owned(),
            digest: digest(executable)?,
            passed: ran.passed,
            ignored: ran.ignored,
            seconds: took.as_secs_f64(),
            not_run: not_run.to_owned(),
        };
        let line = serde_json::to_string(&record)? + "\n";
        super::append(&self.file, &line)
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
    fn a_continued_run_leaves_out_what_the_same_executable_has_passed() {
        let folder = std::env::temp_dir().join(format!("passed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, executable) = (folder.join("passed"), folder.join("it"));
        fs::write(&executable, "one build").unwrap();
        let ran = Ran { passed: 3, failed: 0, ignored: 1, succeeded: true };
        let took = Duration::from_secs(2);
        let find = |continues: bool| {
            let passed = Passed::open(file.clone(), continues).unwrap();
            let found = passed.find("pager it", &executable).unwrap();
            found.map(|(ran, took, lacked)| (ran.passed, took, lacked.to_owned()))
        };

        let passed = Passed::open(file.clone(), false).unwrap();
        passed.keep("pager it", &executable, &ran, took, "mpi\tranks::one\n").unwrap();
        crate::test::append(&file, r#"{"name": "pa"#).unwrap();
        assert_eq!(find(true), Some((3, took, "mpi\tranks::one\n".to_owned())));
        fs::write(&executable, "another build").unwrap();
        assert_eq!(find(true), None);
        fs::write(&executable, "one build").unwrap();
        assert_eq!(find(false), None);
        assert_eq!(find(true), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}
