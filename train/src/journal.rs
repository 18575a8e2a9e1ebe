//! `metrics.jsonl`: the events of a run, one JSON object a line.
//!
//! The training thread writes each line before it proceeds: the file is complete up to each checkpoint. A resumed run
//! drops the lines of repeated steps. Until its first save, it keeps those of later checkpoints aside: if it ends before,
//! the latest checkpoint gets its lines back.

mod tensorboard;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Split, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use runs::checkpoint::Checkpoints;
use serde::Serialize;
use serde_json::Value;

use tensorboard::TensorBoard;

pub(crate) const FILE: &str = "metrics.jsonl";
/// The whole file before its lines were dropped.
const BEFORE: &str = "metrics.jsonl.before";

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// Up to the last kept step.
    seconds: f64,
    /// The same; `None` without such a step.
    tokens: Option<u64>,
    /// A failed write may have cut off the last line.
    torn: bool,
    board: Option<TensorBoard>,
}

impl Journal {
    pub(crate) fn open(run: &Path, kept: u64) -> anyhow::Result<Self> {
        let path = run.join(FILE);
        let (mut seconds, mut tokens) = (0.0, None);
        let mut attempt = || -> io::Result<File> {
            fs::create_dir_all(run)?;
            put_back(run, kept)?;
            if path.exists() {
                keep_aside(run, kept)?;
                durable::write_with(&path, |shortened| {
                    let mut out = BufWriter::new(File::create(shortened)?);
                    for line in lines(run)? {
                        let line = line?;
                        let record = serde_json::from_slice::<Value>(&line).unwrap_or_default();
                        if record["step"].as_u64().is_some_and(|step| step <= kept) {
                            seconds = record["seconds"].as_f64().unwrap_or(seconds);
                            tokens = record["tokens"].as_u64().or(tokens);
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
        Ok(Self { path, file, seconds, tokens, torn: false, board: None })
    }

    /// Numbers after step `kept` also go to an event file.
    pub(crate) fn with_tensorboard(mut self, run: &Path, kept: u64) -> anyhow::Result<Self> {
        let board = TensorBoard::create(run, kept).context("writing an event file for TensorBoard")?;
        self.board = Some(board);
        Ok(self)
    }

    /// Of no use once a checkpoint is saved; often absent.
    pub(crate) fn kept_aside(&self) -> PathBuf {
        self.path.with_file_name(BEFORE)
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    pub(crate) fn tokens(&self) -> Option<u64> {
        self.tokens
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

/// The lines of `run`'s journal; the last one may be cut off.
pub(crate) fn lines(run: &Path) -> io::Result<Split<BufReader<File>>> {
    Ok(BufReader::new(durable::regular::open(&run.join(FILE))?).split(b'\n'))
}

/// Steps up to `kept` are saved. If their lines are gone, a process that went back has dropped them and saved nothing.
fn put_back(run: &Path, kept: u64) -> io::Result<()> {
    let (path, before) = (run.join(FILE), run.join(BEFORE));
    if !before.exists() {
        return Ok(());
    }
    let mut last = None;
    if path.exists() {
        for line in lines(run)? {
            let record = serde_json::from_slice::<Value>(&line?).unwrap_or_default();
            last = last.max(record["step"].as_u64());
        }
    }
    if last < Some(kept) { durable::rename(&before, &path) } else { Ok(()) }
}

/// Until this process saves, the latest checkpoint is the one after `kept` that it leaves behind.
fn keep_aside(run: &Path, kept: u64) -> io::Result<()> {
    let before = run.join(BEFORE);
    let last = Checkpoints::in_run(run).last_save().ok().flatten();
    if before.exists() || last.is_none_or(|last| last.step <= kept) {
        return Ok(());
    }
    let mut whole = durable::regular::open(&run.join(FILE))?;
    durable::write_with(&before, |aside| io::copy(&mut whole, &mut File::create(aside)?).map(drop))
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
    use std::ops::RangeInclusive;

    use super::*;

    #[test]
    fn a_resumed_run_drops_torn_lines_and_those_it_repeats() {
        let run = tempfile::tempdir().expect("a folder");
        let mut journal = Journal::open(run.path(), 0).expect("a file");
        for step in 1..=4 {
            journal
                .write(
                    "step",
                    &serde_json::json!({ "seconds": 7.5 * f64::from(step), "step": step, "tokens": 5 * step, "loss": f32::NAN }),
                )
                .expect("written");
        }

        fs::write(
            run.path().join(FILE),
            [fs::read(run.path().join(FILE)).unwrap(), b"{\"kind\":".to_vec()].concat(),
        )
        .expect("torn");
        let mut journal = Journal::open(run.path(), 2).expect("a file");
        assert_eq!((journal.seconds().to_bits(), journal.tokens()), (15f64.to_bits(), Some(10)));

        journal.write("step", &serde_json::json!({ "step": 3 })).expect("written");
        let text = fs::read_to_string(run.path().join(FILE)).expect("text");
        assert_eq!(
            text,
            "{\"kind\":\"step\",\"loss\":null,\"seconds\":7.5,\"step\":1,\"tokens\":5}\n\
             {\"kind\":\"step\",\"loss\":null,\"seconds\":15.0,\"step\":2,\"tokens\":10}\n\
             {\"kind\":\"step\",\"step\":3}\n"
        );
    }

    #[test]
    fn the_latest_checkpoint_gets_its_lines_back_from_a_process_that_went_back_and_saved_nothing() {
        let run = tempfile::tempdir().expect("a folder");
        let checkpoints = Checkpoints::in_run(run.path());
        let take = |kept: u64, steps: RangeInclusive<u64>| {
            let mut journal = Journal::open(run.path(), kept).expect("a file");
            for step in steps {
                journal.write("step", &serde_json::json!({ "step": step })).expect("written");
            }
            journal
        };
        let steps = || {
            let lines = lines(run.path()).expect("a file").map(|line| line.expect("readable"));
            let step = |line: Vec<u8>| serde_json::from_slice::<Value>(&line).expect("JSON")["step"].as_u64();
            lines.filter_map(step).collect::<Vec<_>>()
        };

        take(0, 1..=6);
        for step in [2, 4, 6] {
            let saved = checkpoints.save(step, 0, |folder| Ok(fs::write(folder.join("state.json"), "{}")?));
            saved.expect("nothing hinders");
        }
        take(4, 5..=5);
        take(2, 3..=3);
        assert_eq!(steps(), [1, 2, 3]);
        take(6, 7..=8);
        assert_eq!(steps(), [1, 2, 3, 4, 5, 6, 7, 8]);

        let aside = take(2, 3..=4).kept_aside();
        fs::remove_file(&aside).expect("kept until the first save");
        take(4, 5..=5);
        assert_eq!(steps(), [1, 2, 3, 4, 5]);
    }
}
