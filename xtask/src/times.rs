//! Times of the gate's steps and test binaries. Every row is written at once: a stopped run leaves its times.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

const SHOWN: usize = 10;

pub(crate) struct Times {
    file: PathBuf,
    rows: Vec<Row>,
}

struct Row {
    kind: &'static str,
    name: String,
    took: Duration,
    passed: bool,
}

impl Times {
    pub(crate) fn in_file(file: PathBuf) -> Self {
        Self { file, rows: Vec::new() }
    }

    pub(crate) fn measure<T>(
        &mut self,
        kind: &'static str,
        name: &str,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let outcome = work(self);
        self.keep(kind, name, started.elapsed(), outcome.is_ok())?;
        outcome
    }

    /// Adds to an earlier row of the same name.
    pub(crate) fn keep(
        &mut self,
        kind: &'static str,
        name: &str,
        took: Duration,
        passed: bool,
    ) -> Result<()> {
        match self.rows.iter_mut().find(|row| row.kind == kind && row.name == name) {
            Some(row) => (row.took, row.passed) = (row.took + took, row.passed && passed),
            None => self.rows.push(Row { kind, name: name.to_owned(), took, passed }),
        }
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&self.file, self.csv())
            .with_context(|| format!("{} cannot be written", self.file.display()))
    }

    fn csv(&self) -> String {
        let header = "kind,name,seconds,outcome\n".to_owned();
        self.rows.iter().fold(header, |csv, row| {
            let outcome = if row.passed { "passed" } else { "failed" };
            csv + &format!("{},{},{:.1},{outcome}\n", row.kind, row.name, row.took.as_secs_f64())
        })
    }

    /// Slowest first, and the file with all.
    pub(crate) fn slowest(&self) -> String {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.took));
        let shown = rows
            .iter()
            .take(SHOWN)
            .map(|row| format!("{:>8.1} s  {} {}\n", row.took.as_secs_f64(), row.kind, row.name));
        format!(
            "the dearest of {} (all in {}):\n{}",
            rows.len(),
            self.file.display(),
            shown.collect::<String>()
        )
    }
}

pub(crate) fn minutes(elapsed: Duration) -> String {
    format!("{}m{:02}s", elapsed.as_secs() / 60, elapsed.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    fn times(name: &str) -> Times {
        let folder = std::env::temp_dir().join(format!("times-{}", std::process::id()));
        Times::in_file(folder.join(name))
    }

    #[test]
    fn a_step_that_fails_leaves_its_time_beside_others() {
        let mut times = times("failed.csv");
        times.measure("step", "fmt", |_| Ok(())).unwrap();
        times.measure("step", "test", |_| -> Result<()> { bail!("a test failed") }).unwrap_err();
        times.keep("step", "test", Duration::from_secs(2), true).unwrap();
        let kept = fs::read_to_string(&times.file).unwrap();
        fs::remove_file(&times.file).unwrap();
        assert_eq!(kept, "kind,name,seconds,outcome\nstep,fmt,0.0,passed\nstep,test,2.0,failed\n");
    }

    #[test]
    fn the_ten_slowest_rows_come_first() {
        let mut times = times("dearest.csv");
        for n in 1..=12 {
            times.keep("binary", &format!("b{n}"), Duration::from_secs(n), true).unwrap();
        }
        fs::remove_file(&times.file).unwrap();
        let dearest = times.slowest();
        let lines: Vec<&str> = dearest.lines().collect();
        assert!(lines[0].starts_with("the dearest of 12 (all in "), "{dearest}");
        assert_eq!((lines[1], lines.len()), ("    12.0 s  binary b12", 11));
    }
}
