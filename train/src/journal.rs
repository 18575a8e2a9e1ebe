//! `metrics.jsonl`: the events of a run, one JSON object a line.
//!
//! The training thread writes each line before it proceeds: the file is complete up to each checkpoint. A resumed run
//! drops the lines of repeated steps.

mod tensorboard;

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use tensorboard::TensorBoard;

pub(crate) const FILE: &str = "metrics.jsonl";

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// Seconds up to the last kept step.
    seconds: f64,
    /// A failed write may have cut off the last line.
    torn: bool,
    board: Option<TensorBoard>,
}

impl Journal {
    pub(crate) fn open(run: &Path, kept: u64) -> anyhow::Result<Self> {
        let path = run.join(FILE);
        let mut seconds = 0.0;
        let mut attempt = || -> std::io::Result<File> {
            fs::create_dir_all(run)?;
            if path.exists() {
                durable::write_with(&path, |shortened| {
                    let mut out = BufWriter::new(File::create(shortened)?);
                    for line in BufReader::new(durable::regular::open(&path)?).split(b'\n') {
                        let line = line?;
                        let record = serde_json::from_slice::<Value>(&line).unwrap_or_default();
                        if record["step"].as_u64().is_some_and(|step| step <= kept) {
                            seconds = record["seconds"].as_f64().unwrap_or(seconds);
                            out.write_all(&line)?;
                            out.write_all(b"\n")?;
                        }
                    }
                    out.flush()
                })?;
            }
            OpenOptions::new().create(true).append(true).open(&path)
        };

        let file = attempt().with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { path, file, seconds, torn: false, board: None })
    }

    /// Numbers after step `kept` also go to an event file.
    pub(crate) fn with_tensorboard(mut self, run: &Path, kept: u64) -> anyhow::Result<Self> {
        let board = TensorBoard::create(run, kept).context("writing an event file for TensorBoard")?;
        self.board = Some(board);
        Ok(self)
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// `kind` is the line's first key.
    pub(crate) fn write<T: Serialize>(&mut self, kind: &str, record: &T) -> anyhow::Result<()> {
        let line = serde_json::to_string(&Line { kind, record }).context("describing a step")? + "\n";
        let line = if self.torn { format!("\n{line}") } else { line };
        let written = self.file.write_all(line.as_bytes());
        self.torn = written.is_err();
        written.with_context(|| format!("writing to {}", self.path.display()))?;
        if let Some(board) = &mut self.board {
            let record = serde_json::to_value(record).context("describing a step")?;
            board.write(kind, &record).context("writing an event file for TensorBoard")?;
        }
        Ok(())
    }

    pub(crate) fn sync(&self) -> anyhow::Result<()> {
        self.file.sync_data().with_context(|| format!("writing to {}", self.path.display()))
    }
}

#[derive(Serialize)]
struct Line<'a, T> {
    kind: &'a str,
    #[serde(flatten)]
    record: &'a T,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_resumed_run_drops_torn_lines_and_those_it_repeats() {
        let run = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(run.path(), 0).expect("a file");
        for step in 1..=4 {
            journal
                .write(
                    "step",
                    &serde_json::json!({ "seconds": 7.5 * f64::from(step), "step": step, "loss": f32::NAN }),
                )
                .expect("written");
        }

        fs::write(
            run.path().join(FILE),
            [fs::read(run.path().join(FILE)).unwrap(), b"{\"kind\":".to_vec()].concat(),
        )
        .expect("torn");
        let mut journal = Journal::open(run.path(), 2).expect("a file");
        assert_eq!(journal.seconds().to_bits(), 15f64.to_bits());

        journal.write("step", &serde_json::json!({ "step": 3 })).expect("written");
        let text = fs::read_to_string(run.path().join(FILE)).expect("text");
        assert_eq!(
            text,
            "{\"kind\":\"step\",\"loss\":null,\"seconds\":7.5,\"step\":1}\n\
             {\"kind\":\"step\",\"loss\":null,\"seconds\":15.0,\"step\":2}\n\
             {\"kind\":\"step\",\"step\":3}\n"
        );
    }
}
