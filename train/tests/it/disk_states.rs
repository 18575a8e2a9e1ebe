//! States of a host optimizer on the disk: the same numbers, and the planned bytes.

use std::fs;
use std::process::Output;

use backend_offload::Bytes;
use rustix::process::Signal;
use serde_json::Value;

use crate::program::{assert_code, assert_success, json, stderr};
use crate::ranks::{SHARED, has_mpi, set, try_signal};
use crate::tiny::{TIGHT, Tiny, bits};

const HOST: &str = "memory.optimizer=host";
const TWO: &str = "model.n_layer=2";
const NARROW: &str = "model.compute=bf16";
const DISK: [&str; 2] = ["memory.disk=drive", "memory.disk_budget=64MiB"];
const STEPS: u64 = 4;

const BLOCK: u64 = 4 * 128 * 128 + 2 * 128 * 512;
const LARGEST: u64 = 128 * 512;

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn plan(tiny: &Tiny, settings: &[&str]) -> Value {
    let set: Vec<_> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let output =
        tiny.train(&[&["plan", "--config", "tiny.json", "--device", "cpu", "--json"], &set[..]].concat());
    assert_success(&output);
    json(&output)
}

/// Room for all states but one block's, at `bytes` per parameter, and two of three chunks in flight. The third sends a
/// second block to the disk.
pub(crate) fn short(tiny: &Tiny, settings: &[&str], bytes: u64) -> String {
    let all = number(&plan(tiny, settings)["optimizer_host_bytes"]);
    format!("memory.host_budget={}B", all - bytes * BLOCK + 2 * (bytes * LARGEST + 4096))
}

#[test]
fn states_on_the_disk_give_the_bits_of_states_in_memory_in_every_format() {
    let cases: [(u64, &[&str]); 6] = [
        (12, &[NARROW, "train.accumulate=2", "train.recompute=1", "train.together=2"]),
        (4, &[NARROW, "memory.optimizer_state=compact"]),
        (12, &[NARROW, "memory.stream=int8", "memory.gradients=int8"]),
        (8, &[NARROW, "memory.optimizer_state=bf16"]),
        (8, &["train.optimizer=sgd", "train.lr=0.1"]),
        (12, &[]),
    ];
    let tiny = Tiny::new();
    fs::create_dir(tiny.join("drive")).expect("a folder");

    for (n, &(bytes, settings)) in suite::first(2, &cases).iter().enumerate() {
        let settings = [settings, &[HOST, TWO]].concat();
        let host = short(&tiny, &settings, bytes);
        let roomy = tiny.run(&format!("roomy-{n}"), &[&settings[..], &DISK].concat());
        assert_eq!((&roomy["bytes_to_disk"], &roomy["bytes_from_disk"]), (&0.into(), &0.into()));
        let below = [&settings[..], &[&host], &DISK].concat();
        let planned = plan(&tiny, &below);
        let state = number(&planned["optimizer_disk_bytes"]);
        assert!(state >= 2 * bytes * BLOCK, "{state}: one block more is there than has no room");
        assert_eq!(planned["disk_written_per_step"], planned["optimizer_disk_bytes"]);
        assert_eq!(planned["disk_read_per_step"], planned["optimizer_disk_bytes"]);
        let output = tiny.attempt(&format!("below-{n}"), &below);
        assert_success(&output);
        let summary = json(&output);
        assert_eq!(bits(&summary), bits(&roomy), "{settings:?}");
        let (written, read) = (number(&summary["bytes_to_disk"]), number(&summary["bytes_from_disk"]));
        assert_eq!(written, (1 + STEPS) * state, "{settings:?}");
        // Both moments' bases, and masters for the first tiles.
        let bases = if bytes == 4 { 12 * 4096 } else { 0 };
        let tiles = if settings.contains(&"memory.stream=int8") { 2 * 4 * BLOCK } else { 0 };
        assert_eq!(read, (STEPS + 1) * state + bases + tiles, "{settings:?}");
        let said = stderr(&output);
        for part in ["of its state on the disk", "of the optimizer's state and 0 B that spill", "| disk "] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        let steps = tiny.records(&format!("below-{n}"), "step");
        let in_steps: u64 = steps.iter().filter_map(|step| step["disk_written"].as_u64()).sum();
        // A reported step's update still runs.
        assert!(((STEPS - 1) * state..=STEPS * state).contains(&in_steps), "{in_steps} of {state} each");
    }
    assert_eq!(fs::read_dir(tiny.join("drive")).expect("a folder").count(), 0);
}

#[test]
fn a_host_budget_below_the_f32_state_trains_and_is_respected() {
    let tiny = Tiny::new();
    fs::create_dir(tiny.join("drive")).expect("a folder");
    let settings = [HOST, TWO];
    let all = plan(&tiny, &settings);
    let (own, parameters) = (number(&all["optimizer_host_bytes"]), number(&all["parameters"]));

    // Room for new weights and three of the largest matrices, but for no state.
    let budget = own - 2 * 12 * BLOCK + (3 * 12 + 4) * LARGEST + 3 * 4096;
    assert!(budget < 12 * parameters, "{budget} of {parameters} parameters");

    let host = format!("memory.host_budget={budget}B");
    let refused = tiny.attempt("refused", &[&settings[..], &[&host]].concat());
    assert_code(&refused, 2);
    assert!(stderr(&refused).contains("of host memory are needed"), "{}", stderr(&refused));

    let roomy = tiny.run("roomy", &settings);
    let summary = tiny.run("below", &[&settings[..], &[&host], &DISK].concat());
    assert_eq!(bits(&summary), bits(&roomy));
    assert!(number(&summary["peak_host_bytes"]) <= budget, "{summary:#}");
    assert_eq!(number(&summary["bytes_to_disk"]), (1 + STEPS) * 2 * 12 * BLOCK);

    let tight = tiny.run("tight", &[&settings[..], &[&host, TIGHT], &DISK].concat());
    assert_eq!(bits(&tight), bits(&roomy));
}

#[test]
fn a_run_resumes_with_its_states_on_the_disk_or_without_a_disk() {
    let tiny = Tiny::new();
    fs::create_dir(tiny.join("drive")).expect("a folder");
    let settings = [HOST, TWO, NARROW, "memory.optimizer_state=compact"];
    let host = short(&tiny, &settings, 4);
    let whole = bits(&tiny.run("whole", &[&settings[..], &["train.steps=7"]].concat()));
    tiny.run("roomy", &settings);
    tiny.run("below", &[&settings[..], &[&host], &DISK].concat());
    let to_disk = tiny.resume("roomy", &[&["train.steps=7", &*host], &DISK[..]].concat());
    assert_eq!(bits(&to_disk), whole);
    assert!(number(&to_disk["bytes_to_disk"]) > 0);
    let again = tiny.resume("below", &["train.steps=6"]);
    assert!(number(&again["bytes_to_disk"]) > 0);
    let from_disk = tiny.resume("below", &["train.steps=7", "memory.host_budget=auto", "memory.disk=null"]);
    assert_eq!((bits(&from_disk), &from_disk["bytes_to_disk"]), (whole, &0.into()));
}

#[test]
fn states_write_to_the_disk_up_to_the_limit_and_a_small_disk_is_refused() {
    let tiny = Tiny::new();
    fs::create_dir(tiny.join("drive")).expect("a folder");
    let settings = [HOST, TWO];
    let host = short(&tiny, &settings, 12);
    let below = [&settings[..], &[&host, "memory.disk=drive"]].concat();
    let small = tiny.attempt("small", &[&below[..], &["memory.disk_budget=1MiB"]].concat());
    assert_code(&small, 2);
    let error = stderr(&small);
    let reason = "4.50 MiB of the optimizer's state have no room in host memory, and `memory.disk_budget` takes 1.00 MiB";
    assert!(error.contains(reason), "{error}");
    let whole = bits(&tiny.run("whole", &settings));
    let limit = ["memory.disk_budget=64MiB", "memory.max_disk_writes=10MiB"];
    let worn = tiny.attempt("worn", &[&below[..], &limit].concat());
    assert_code(&worn, 3);
    assert!(stderr(&worn).contains("above `memory.max_disk_writes` = 10.00 MiB"), "{}", stderr(&worn));
    assert_eq!(bits(&tiny.resume("worn", &["memory.max_disk_writes=null"])), whole);
}

#[test]
fn a_resumed_run_counts_earlier_writes_and_takes_no_step_above_its_limit() {
    let tiny = Tiny::new();
    fs::create_dir(tiny.join("drive")).expect("a folder");
    let settings = [HOST, TWO, "train.steps=8"];
    let host = short(&tiny, &settings, 12);
    let below = [&settings[..], &[&host], &DISK].concat();
    let state = number(&plan(&tiny, &below)["optimizer_disk_bytes"]);
    let limit = |halves: u64| format!("memory.max_disk_writes={}B", halves * state / 2);
    let refused = tiny.attempt("run", &[&below[..], &[&limit(3)]].concat());
    assert_code(&refused, 2);
    assert!(stderr(&refused).contains("the run has written 0 B to the disk"), "{}", stderr(&refused));
    assert!(!tiny.join("run").exists());

    let worn = |run: &Output, states: u64, steps: usize| {
        assert_code(run, 3);
        assert_eq!(tiny.records("run", "step").len(), steps);
        let records = tiny.records("run", "disk");
        assert_eq!(number(&records.last().expect("it has written")["drive_wear"]), states * state);
    };
    worn(&tiny.attempt("run", &[&below[..], &[&limit(9)]].concat()), 4, 3);
    let go_on = |limit: &str| tiny.train(&["--resume", "run", "--device", "cpu", "--json", "--set", limit]);
    let refused = go_on(&limit(11));
    assert_code(&refused, 2);
    let reason = format!("the run has written {} to the disk", Bytes(4 * state));
    assert!(stderr(&refused).contains(&reason), "{}", stderr(&refused));
    worn(&go_on(&limit(15)), 7, 5);
    let whole = bits(&tiny.run("whole", &settings));
    assert_eq!(bits(&tiny.resume("run", &["memory.max_disk_writes=null"])), whole);
}

fn file_of(process: u32, folder: &str) -> Option<fs::File> {
    let open = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
    let is_it = |file: &fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|path| path.to_string_lossy().contains(&format!("/{folder}/#")))
    };
    let file = open.into_iter().find(is_it)?;
    fs::OpenOptions::new().write(true).open(file.path()).ok()
}

#[test]
fn corrupted_disk_bytes_end_the_run_and_leave_whole_checkpoints() {
    use std::os::unix::fs::FileExt;
    use std::process::Stdio;
    use std::time::Duration;

    let tiny = Tiny::new();
    fs::create_dir(tiny.join("drive")).expect("a folder");
    let settings = [HOST, TWO, NARROW];
    let host = short(&tiny, &settings, 12);
    let long = ["train.steps=4000", "checkpoint.every=2", &*host];
    let said = fs::File::create(tiny.join("said")).expect("a file");
    let mut command = tiny.command("run", &[&settings[..], &long, &DISK].concat());
    let mut child = command.stdout(Stdio::null()).stderr(said).spawn().expect("it starts");
    for _ in 0..6000 {
        if tiny.journal("run").contains("\"checkpoint\"") {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let file = file_of(child.id(), "drive").expect("it has one");
    // Bytes overwritten before any read are intact again.
    let ended = loop {
        if let Some(ended) = child.try_wait().expect("it is a child") {
            break ended;
        }
        for page in 0..2 * 12 * BLOCK / 4096 {
            file.write_all_at(&[0x5a; 64], 4096 * page + 100).expect("the space is taken");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let error = fs::read_to_string(tiny.join("said")).expect("text");
    assert_eq!(ended.code(), Some(1), "{error}");
    for part in [
        "the last update could not run",
        "of the state of blocks.",
        " of the file on the disk at ",
        "not those that were written",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
    assert!(!tiny.whole_checkpoints("run").is_empty());
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: starts ranks seven times"]
    fn sharded_states_on_the_disk_have_the_bits_of_one_process_and_leave_no_files() {
        if !has_mpi() {
            return;
        }
        let tiny = Tiny::new();
        let drive = tiny.join("drive");
        fs::create_dir(&drive).expect("a folder");
        let names = || fs::read_dir(&drive).expect("a folder").count();
        let settings = [&SHARED[..], &[HOST, "model.n_layer=4"]].concat();
        let divided = [&settings[..], &["memory.shard=true"]].concat();
        let roomy = number(&tiny.planned_on_two(&divided)["optimizer_host_bytes"]);
        let host = format!("memory.host_budget={}B", 2 * (roomy - (1 << 20)));
        let below = [&divided[..], &[&host], &DISK].concat();
        assert!(number(&tiny.planned_on_two(&below)["optimizer_disk_bytes"]) > 0);
        tiny.run_on("2", "run", &below);
        assert_eq!(names(), 0);
        for journal in ["run", "run/ranks/1"] {
            let wear = number(&tiny.records(journal, "disk")[0]["drive_wear"]);
            assert!(
                wear > 12 * BLOCK * STEPS,
                "{journal}: {wear} bytes, with more than one block's states in each step"
            );
        }
        let whole = bits(&tiny.run("whole", &[&settings[..], &["train.steps=6"]].concat()));
        assert_eq!(tiny.resume_on("2", "run", &["train.steps=6"]), whole);

        let mut child = tiny.start_on("2", "killed", &set(&below));
        for process in tiny.processes("killed") {
            try_signal(Signal::KILL, process);
        }
        assert_ne!(tiny.ended(&mut child, "killed"), Some(0), "{}", tiny.log("killed"));
        tiny.wait_until("killed", || tiny.ranks().is_empty(), "a killed rank lives");
        assert_eq!(names(), 0);
        let done = *tiny.whole_checkpoints("killed").iter().max().expect("one was saved");
        let steps = format!("train.steps={}", done + 1);
        let whole = bits(&tiny.run("killed-whole", &[&settings[..], &[&steps]].concat()));
        assert_eq!(tiny.resume_on("2", "killed", &[&steps]), whole);
    }
}
