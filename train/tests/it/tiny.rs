//! Runs that take a second and spill.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{CACHE, PROGRAM, assert_success, json, stdout, train};

/// Tensors below 64 KiB never move. The working set is about 4 MiB.
const DESCRIPTION: &str = r#"{
  "model": {
    "preset": "nanochat", "n_layer": 1, "n_head": 2, "n_embd": 128, "n_positions": 64, "vocab_size": 264
  },
  "tokenizer": { "kind": "bytes" },
  "data": { "source": "dialogues", "dialogues": 300, "align": "document" },
  "train": {
    "steps": 4, "micro_batch": 2, "sequence": 32, "lr": 0.003, "matrix_lr": 0.02,
    "schedule": { "kind": "constant", "warmup": 0 }
  },
  "eval": {
    "every": 0, "sequences": 4, "sample_every": 0, "max_new_tokens": 4, "temperature": 0.0,
    "questions": ["What is 3 plus 4?"]
  },
  "checkpoint": { "every": 0 },
  "memory": { "device_budget": "unlimited" }
}
"#;

pub(crate) const GPT2: [&str; 2] = [
    r#"model={"preset":"gpt2","n_layer":1,"n_head":2,"n_embd":64,"n_positions":64,"vocab_size":264}"#,
    "train.lr=0.001",
];

/// A quarter of the working set.
pub(crate) const TIGHT: &str = "memory.device_budget=1MiB";

pub(crate) struct Tiny {
    folder: TempDir,
}

/// Ends ranks that wait for each other.
#[cfg(target_os = "linux")]
impl Drop for Tiny {
    fn drop(&mut self) {
        use rustix::process::{Pid, Signal, kill_process};
        for process in crate::program::processes_in(self.path()) {
            _ = Pid::from_raw(process as i32).map(|process| kill_process(process, Signal::KILL));
        }
    }
}

impl Tiny {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("tiny.json"), DESCRIPTION).expect("writing");
        Self { folder }
    }

    pub(crate) fn trained(settings: &[&str]) -> Self {
        let tiny = Self::new();
        tiny.run("run", settings);
        tiny
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn join(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn train(&self, arguments: &[&str]) -> Output {
        train(self.path(), arguments)
    }

    pub(crate) fn command(&self, out: &str, settings: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(training(out, settings)).current_dir(self.path()).envs([CACHE]);
        command
    }

    pub(crate) fn journal(&self, out: &str) -> String {
        fs::read_to_string(self.join(out).join("metrics.jsonl")).unwrap_or_default()
    }

    pub(crate) fn attempt(&self, out: &str, settings: &[&str]) -> Output {
        self.train(&training(out, settings))
    }

    pub(crate) fn run(&self, out: &str, settings: &[&str]) -> Value {
        let output = self.attempt(out, settings);
        assert_success(&output);
        json(&output)
    }

    pub(crate) fn resume(&self, out: &str, settings: &[&str]) -> Value {
        let mut arguments = vec!["--resume", out, "--device", "cpu", "--json"];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let output = self.train(&arguments);
        assert_success(&output);
        json(&output)
    }

    pub(crate) fn assert_spills_to_the_same_bits(&self, name: &str, budget: &str, settings: &[&str]) {
        let tight = self.run(&format!("tight-{name}"), &[&[budget], settings].concat());
        let roomy = [settings, &["memory.device_budget=unlimited"]].concat();
        let roomy = self.run(&format!("roomy-{name}"), &roomy);
        assert_eq!(roomy["evictions"], 0, "{settings:?}");
        assert!(tight["restores"].as_u64().expect("a number") > 20, "{settings:?} did not spill: {tight:#}");
        let budget = tight["device_budget"].as_u64();
        assert!(tight["peak_device_bytes"].as_u64() <= budget, "{settings:?}: {tight:#}");
        assert_eq!(bits(&tight), bits(&roomy), "{settings:?}");
    }

    pub(crate) fn assert_resumes_to_the_same_bits(&self, name: &str, settings: &[&str]) {
        let (whole, run) = (format!("whole-{name}"), format!("run-{name}"));
        let uninterrupted = self.run(&whole, &[settings, &["train.steps=7"]].concat());
        self.run(&run, &[settings, &["train.steps=4"]].concat());
        let resumed = self.resume(&run, &["train.steps=7"]);
        assert_eq!(bits(&resumed), bits(&uninterrupted), "{settings:?}");
        assert_eq!(self.losses(&run), self.losses(&whole), "{settings:?}");
    }

    pub(crate) fn whole_checkpoints(&self, out: &str) -> Vec<u64> {
        let output = self.train(&["inspect", out, "--json"]);
        assert_success(&output);
        let found = json(&output);
        let checkpoints = found["checkpoints"].as_array().expect("a list");
        assert!(checkpoints.iter().all(|checkpoint| checkpoint["whole"] == true), "{}", stdout(&output));
        checkpoints.iter().map(|checkpoint| checkpoint["step"].as_u64().expect("a step")).collect()
    }

    pub(crate) fn records(&self, out: &str, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.join(out).join("metrics.jsonl")).expect("reading");
        let records =
            text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a JSON object a line"));
        records.filter(|record| record["kind"] == kind).collect()
    }

    pub(crate) fn losses(&self, out: &str) -> Vec<f64> {
        self.records(out, "step").iter().map(|record| record["loss"].as_f64().expect("a number")).collect()
    }
}

fn training<'a>(out: &'a str, settings: &[&'a str]) -> Vec<&'a str> {
    let begin = ["--config", "tiny.json", "--device", "cpu", "--json", "--log-every", "1", "--out", out];
    begin.into_iter().chain(settings.iter().flat_map(|setting| ["--set", setting])).collect()
}

pub(crate) fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or_else(|| panic!("{key} of {record}"))
}

pub(crate) fn bits(summary: &Value) -> [String; 2] {
    ["losses_sha256", "weights_sha256"].map(|key| {
        let digest = summary[key].as_str().expect("a digest");
        assert_eq!(digest.len(), 64);
        digest.to_owned()
    })
}
