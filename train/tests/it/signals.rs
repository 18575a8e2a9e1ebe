//! SIGINT and SIGTERM stop a run with a checkpoint.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use crate::program::{assert_code, json, stderr};
use crate::tiny::{Tiny, bits};

pub(crate) struct Running {
    child: Child,
    said: BufReader<ChildStderr>,
    heard: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let said = BufReader::new(child.stderr.take().expect("it is piped"));
        Self { child, said, heard: String::new() }
    }

    pub(crate) fn wait_for(&mut self, words: &str) {
        loop {
            let before = self.heard.len();
            let read = self.said.read_line(&mut self.heard).expect("reading");
            assert!(read > 0, "it ended before it said {words:?}:\n{}", self.heard);
            if self.heard[before..].starts_with(words) {
                return;
            }
        }
    }

    pub(crate) fn signal(&self, names: &str) {
        let kills: Vec<_> =
            names.split(' ').map(|name| format!("kill -{name} {}", self.child.id())).collect();
        let sent = Command::new("sh").args(["-c", &kills.join(" && ")]).status().expect("a shell");
        assert!(sent.success());
    }

    pub(crate) fn end(mut self) -> Output {
        let mut stderr = self.heard.into_bytes();
        self.said.read_to_end(&mut stderr).expect("reading");
        let rest = self.child.wait_with_output().expect("it ends");
        Output { status: rest.status, stdout: rest.stdout, stderr }
    }
}

/// Longer than any signal takes.
const LONG: &str = "train.steps=5000";

#[test]
fn either_signal_ends_the_run_with_a_checkpoint() {
    for name in ["INT", "TERM"] {
        let tiny = Tiny::new();
        let mut running = Running::start(tiny.command("run", &[LONG]));
        running.wait_for("step 00002/");
        running.signal(name);
        let output = running.end();
        assert_code(&output, 3);
        assert!(stderr(&output).contains("stopping after this step"), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("\nresume with: train --resume run --device cpu\n"),
            "{}",
            stderr(&output)
        );
        let summary = json(&output);
        assert_eq!(summary["outcome"], "interrupted");
        let steps = summary["steps"].as_u64().expect("a number");
        assert!((2..5000).contains(&steps));
        assert_eq!(tiny.whole_checkpoints("run"), [steps]);
    }
}

#[test]
fn a_run_under_nohup_outlives_its_terminal() {
    let tiny = Tiny::new();
    let train = tiny.command("run", &[LONG]);
    let mut command = Command::new("nohup");
    command.arg(train.get_program()).args(train.get_args()).current_dir(tiny.path());
    command.envs(train.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = Running::start(command);
    running.wait_for("step 00002/");
    running.signal("HUP");
    let steps = tiny.steps_taken("run");
    tiny.wait_until("run", || tiny.steps_taken("run") > steps + 2, "it stopped");
    running.signal("INT");
    assert_code(&running.end(), 3);
}

#[test]
fn a_run_whose_messages_nobody_reads_goes_on() {
    let tiny = Tiny::new();
    let mut command = tiny.command("run", &["train.steps=6", "checkpoint.every=2"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    drop(child.stderr.take());
    assert!(child.wait().expect("it ends").success());
    assert_eq!(tiny.records("run", "step").len(), 6);
}

#[test]
fn a_second_signal_ends_at_once_and_leaves_the_earlier_checkpoint_whole() {
    let tiny = Tiny::new();
    // The second signal arrives within the step.
    let settings = ["train.micro_batch=64", "train.sequence=64", "checkpoint.every=1", "train.steps=200"];
    let mut running = Running::start(tiny.command("run", &settings));
    running.wait_for("step 00003/");
    running.signal("INT TERM");
    let output = running.end();
    assert_code(&output, 1);
    assert!(output.stdout.is_empty());
    assert!(!tiny.whole_checkpoints("run").is_empty());
    let output = tiny.train(&["sample", "--from", "run", "--device", "cpu", "--max-new-tokens", "1"]);
    crate::program::assert_success(&output);
}

#[test]
fn a_signal_before_the_first_step_is_not_lost() {
    let tiny = Tiny::new();
    let whole = tiny.run("whole", &["train.steps=400"]);
    let mut running = Running::start(tiny.command("run", &["train.steps=400"]));
    running.wait_for("data: ");
    running.signal("TERM");
    assert_code(&running.end(), 3);
    assert_eq!(bits(&tiny.resume("run", &[])), bits(&whole));
}

#[test]
fn a_signal_while_validation_text_is_looked_up_ends_the_run_at_once() {
    let tiny = Tiny::new();
    let words = (0..60_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 12).to_string());
    let text = words.collect::<Vec<_>>().join(" ");
    std::fs::write(tiny.join("in.txt"), text).expect("writing");
    let settings = [
        "model.longest_match=true",
        "tokenizer.chat=false",
        r#"data={"source":"text","path":"in.txt","split":"position","val_fraction":0.9}"#,
        "eval.sequences=null",
        "eval.questions=[]",
    ];
    let mut running = Running::start(tiny.command("run", &settings));
    running.wait_for("looking the validation text up");
    running.signal("INT");
    let output = running.end();
    assert_code(&output, 3);

    let said = stderr(&output);
    assert!(said.contains("train: interrupted") && !said.contains("\ndata: "), "{said}");
    assert!(!tiny.join("run/metrics.jsonl").exists(), "nothing was begun that could be resumed");
}
