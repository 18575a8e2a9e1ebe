//! A run's records, event files and reports.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::program::{assert_success, failure, stdout};
use crate::tiny::{TIGHT, Tiny, number};

const PAGE: &str = include_str!("../../../docs/reference/metrics.md");

#[test]
fn the_reference_names_every_record_and_field_that_a_run_writes() {
    let tiny = Tiny::trained(&[
        TIGHT,
        "train.steps=6",
        "eval.every=2",
        "eval.sample_every=2",
        "eval.quiz=2",
        "checkpoint.every=2",
    ]);
    let mut kinds = Vec::new();
    for line in tiny.journal("run").lines() {
        let record: Value = serde_json::from_str(line).expect("JSON");
        let fields = record.as_object().expect("an object");
        kinds.push(record["kind"].as_str().expect("a kind").to_owned());
        let named =
            fields.keys().chain(kinds.last()).filter(|field| !["kind", "step"].contains(&field.as_str()));
        for field in named {
            assert!(
                PAGE.contains(&format!("`{field}`")),
                "{field} is not in docs/reference/metrics.md: {line}"
            );
        }
    }
    for kind in ["checkpoint", "eval", "quiz", "sample", "start", "step", "timeline"] {
        assert!(kinds.iter().any(|found| found == kind), "no {kind} in {kinds:?}");
    }
}

#[test]
fn a_run_records_its_group_its_ranks_and_the_memory_that_its_plan_wants() {
    let tiny = Tiny::trained(&[
        "train.optimizer=adamw",
        "model.n_layer=3",
        "train.recompute=1",
        "train.accumulate=8",
        "train.micro_batch=1",
        "train.together=2",
        TIGHT,
    ]);
    let start = &tiny.records("run", "start")[0];
    assert_eq!(["together", "ranks", "sent_per_step"].map(|field| number(start, field)), [2, 1, 0]);
    assert!(number(start, "working_set") > 2 * number(start, "device_budget"), "{start}");

    let page = fs::read_to_string(tiny.join("run/report.html")).expect("a page");
    for part in ["By the plan, memory was short by ", "2 pass each segment together"] {
        assert!(page.contains(part), "{part} is missing");
    }
}

/// Each event's step, and its numbers by tag.
type Events = Vec<(u64, BTreeMap<String, f32>)>;

fn event_files(run: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(run).expect("a run").map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> =
        files.filter(|path| path.to_string_lossy().contains("events.out.tfevents.")).collect();
    files.sort_by_key(|file| fs::metadata(file).and_then(|data| data.modified()).expect("a time"));
    files
}

fn events(file: &Path) -> Events {
    let bytes = fs::read(file).expect("a file");
    let mut rest = &bytes[..];
    let mut events = Vec::new();
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().expect("eight bytes")) as usize;
        let (mut step, mut numbers) = (0, BTreeMap::new());
        for (field, content) in fields(&rest[12..12 + length]) {
            match (field, content) {
                (2, Content::Number(number)) => step = number,
                (5, Content::Bytes(summary)) => {
                    numbers.extend(fields(summary).into_iter().map(|(_, value)| entry(&value)));
                }
                _ => {}
            }
        }
        events.push((step, numbers));
        rest = &rest[16 + length..];
    }
    events
}

fn entry(value: &Content) -> (String, f32) {
    let Content::Bytes(value) = value else { panic!("a value is a message") };
    let mut found = (String::new(), f32::NAN);
    for (field, content) in fields(value) {
        match (field, content) {
            (1, Content::Bytes(tag)) => found.0 = String::from_utf8(tag.to_vec()).expect("UTF-8"),
            (2, Content::Bytes(number)) => {
                found.1 = f32::from_le_bytes(number.try_into().expect("four bytes"));
            }
            _ => {}
        }
    }
    found
}

enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Content<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                fields.push((key >> 3, Content::Number(varint(&mut bytes))));
                continue;
            }
            1 => 8,
            5 => 4,
            _ => varint(&mut bytes) as usize,
        };
        let (content, rest) = bytes.split_at(length);
        fields.push((key >> 3, Content::Bytes(content)));
        bytes = rest;
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

fn with_tensorboard() -> Tiny {
    let tiny = Tiny::trained(&["report.tensorboard=true", "eval.every=2"]);
    tiny.resume("run", &["train.steps=6"]);
    tiny
}

#[test]
fn event_files_have_the_numbers_of_steps_and_evaluations_and_a_resumed_run_begins_another() {
    let tiny = with_tensorboard();
    let files = event_files(&tiny.join("run"));
    assert_eq!(files.len(), 2, "{files:?}");
    let found: Events = files.iter().flat_map(|file| events(file)).collect();
    let of = |tag: &str| {
        let numbers = found.iter().filter_map(|(step, numbers)| Some((*step, *numbers.get(tag)?)));
        numbers.collect::<Vec<_>>()
    };
    for (tag, kind, key) in [
        ("train/loss", "step", "loss"),
        ("validation/loss", "eval", "loss"),
        ("train/device_bytes", "step", "device_bytes"),
    ] {
        let expected: Vec<_> = tiny
            .records("run", kind)
            .iter()
            .map(|record| {
                (record["step"].as_u64().expect("a step"), record[key].as_f64().expect("a number") as f32)
            })
            .collect();
        assert_eq!(of(tag), expected, "{tag}");
    }
    assert_eq!(events(&files[1])[1].0, 5, "the second file says which steps it replaces");
    let plain = Tiny::trained(&[]);
    assert!(event_files(&plain.join("run")).is_empty(), "nothing is written unasked");
}

#[test]
fn a_killed_run_has_a_report_and_stands_beside_others() {
    let tiny = Tiny::trained(&[]);
    let mut command = tiny.command("killed", &["train.steps=100000", TIGHT]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    while tiny.journal("killed").matches("\"kind\":\"step\"").count() < 3 {
        assert!(child.try_wait().expect("waiting").is_none(), "it takes steps until it is killed");
        sleep(Duration::from_millis(10));
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert!(!tiny.join("killed/report.html").exists());

    let output = tiny.train(&["report", "killed"]);
    assert_success(&output);
    assert_eq!(stdout(&output).trim(), "killed/report.html");
    let page = fs::read_to_string(tiny.join("killed/report.html")).expect("a page");
    for part in
        ["is the last one recorded", "<dt>Command</dt>", "<dt>Started</dt>", "tiny.json", "<b>Loss</b>"]
    {
        assert!(page.contains(part), "{part} is missing");
    }

    assert_success(&tiny.train(&["compare", "run", "killed", "--out", "both.html"]));
    let page = fs::read_to_string(tiny.join("both.html")).expect("a page");
    for part in ["data-name=\"run\"", "data-name=\"killed\"", "<td>killed</td>", "<b>Throughput</b>"] {
        assert!(page.contains(part), "{part} is missing");
    }
    let refused = failure(&tiny.train(&["report", "nowhere"]), tiny.path());
    assert!(refused.contains("nowhere/metrics.jsonl"), "{refused}");
}

mod full {
    use std::process::Command;

    use suite::Need;

    use super::*;

    const READ: &str = "\
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(*(f'{event.step} {event.value:.9g}' for event in events.Scalars('train/loss')), sep='\\n')
";

    #[test]
    #[ignore = "full: Python's tensorboard reads the files"]
    fn tensorboard_reads_every_loss_once() {
        let found = Command::new("python3").args(["-c", "import tensorboard"]).output();
        let is_there = found.is_ok_and(|output| output.status.success());
        if !Need::TensorBoard.is_met((!is_there).then_some("Python's tensorboard is not installed")) {
            return;
        }
        let tiny = with_tensorboard();
        let output =
            Command::new("python3").args(["-c", READ]).arg(tiny.join("run")).output().expect("it starts");
        assert_success(&output);
        let read: Vec<(u64, f32)> = stdout(&output)
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(step, loss)| (step.parse().expect("a step"), loss.parse().expect("a loss")))
            .collect();
        let written: Vec<_> = (1..).zip(tiny.losses("run").into_iter().map(|loss| loss as f32)).collect();
        assert_eq!(read, written);
    }
}
