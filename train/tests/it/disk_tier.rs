//! A disk below host memory: the same numbers, no files left, and an end before the drive wears out.

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::disk_states::short;
use crate::program::{
    assert_code, assert_success, can_mount, json, last_words, stderr, stdout, with_own_mounts,
};
use crate::tiny::{TIGHT, Tiny, bits};

const SETTINGS: [&str; 3] = [TIGHT, "train.accumulate=2", "train.steps=6"];

/// A quarter of an unlimited run's host memory, and that run's bits.
fn roomy(tiny: &Tiny) -> (String, [String; 2]) {
    let summary = tiny.run("roomy", &SETTINGS);
    assert_eq!(summary["bytes_to_disk"], 0);
    let host = summary["peak_host_bytes"].as_u64().expect("a number") / 4;
    fs::create_dir(tiny.join("drive")).expect("a folder");
    (format!("memory.host_budget={host}B"), bits(&summary))
}

const DISK: [&str; 2] = ["memory.disk=drive", "memory.disk_budget=64MiB"];

#[test]
fn a_quarter_of_the_host_memory_and_a_disk_give_the_same_bits() {
    let tiny = Tiny::new();
    let (host, whole) = roomy(&tiny);
    let refused = tiny.attempt("refused", &[&SETTINGS[..], &[&host]].concat());
    assert_code(&refused, 2);
    assert!(last_words(&refused, tiny.path()).contains("of host memory are needed"), "{}", stderr(&refused));

    let output = tiny.attempt("run", &[&SETTINGS[..], &[&host], &DISK].concat());
    assert_success(&output);
    let summary = json(&output);
    assert_eq!(bits(&summary), whole);

    let said = stderr(&output);
    for part in ["disk tier", "| disk ", "were written to the disk"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }

    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let steps = tiny.records("run", "step");
    let in_steps: u64 = steps.iter().map(|step| number(&step["disk_written"])).sum();
    assert!(in_steps > 0 && in_steps <= number(&summary["bytes_to_disk"]));
    assert_eq!(fs::read_dir(tiny.join("drive")).expect("a folder").count(), 0);

    let settings = ["train.steps=8", "memory.host_budget=auto", "memory.disk=null"];
    let resumed = bits(&tiny.resume("run", &settings));
    assert_eq!(bits(&tiny.resume("roomy", &["train.steps=8"])), resumed);
}

#[test]
fn tensors_go_to_the_disk_to_make_room_for_a_host_optimizer() {
    let tiny = Tiny::new();
    let settings = [&SETTINGS[..], &["memory.optimizer=host"]].concat();
    let roomy = tiny.run("roomy", &settings);
    let set: Vec<_> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let plan = ["plan", "--config", "tiny.json", "--device", "cpu", "--json"];
    let plan = json(&tiny.train(&[&plan[..], &set].concat()));
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let (own, all) = (number(&plan["optimizer_host_bytes"]), number(&roomy["peak_host_bytes"]));
    fs::create_dir(tiny.join("drive")).expect("a folder");
    let host = format!("memory.host_budget={}B", own + (all - own) / 2);
    let output = tiny.attempt("run", &[&settings[..], &[&host], &DISK].concat());
    assert_success(&output);
    let summary = json(&output);
    assert_eq!(bits(&summary), bits(&roomy));
    assert!(number(&summary["bytes_to_disk"]) > 0, "{own} of {all}");
}

#[test]
fn a_run_at_its_limit_of_disk_writes_stops_with_a_checkpoint() {
    let tiny = Tiny::new();
    let (host, whole) = roomy(&tiny);
    let below = [&SETTINGS[..], &[&host], &DISK].concat();
    let most = tiny.run("unlimited", &below)["bytes_to_disk"].as_u64().expect("a number") / 2;
    let limit = format!("memory.max_disk_writes={most}B");
    let output = tiny.attempt("run", &[&below[..], &[&limit]].concat());
    assert_code(&output, 3);
    assert!(stderr(&output).contains("above `memory.max_disk_writes` = "), "{}", stderr(&output));
    let done = tiny.records("run", "step").len();
    assert!((1..6).contains(&done), "{done} steps");
    let wear = tiny.records("run", "disk")[0]["drive_wear"].as_u64().expect("a number");
    assert!(wear <= most && wear * 2 > most, "{wear} of {most}");
    let stops = tiny.records("run", "stopping");
    let reason = stops[0]["reason"].as_str().expect("a text");
    assert!(stops.len() == 1 && reason.contains("memory.max_disk_writes"), "{stops:?}");
    assert_eq!(bits(&tiny.resume("run", &["memory.max_disk_writes=null"])), whole);
}

#[test]
fn an_absent_or_small_disk_is_an_error_before_the_first_step() {
    let tiny = Tiny::new();
    let absent = tiny.attempt("run", &["memory.disk=nowhere"]);
    assert_code(&absent, 2);
    assert!(last_words(&absent, tiny.path()).contains("`memory.disk` leads nowhere"), "{}", stderr(&absent));
    fs::create_dir(tiny.join("drive")).expect("a folder");
    let full = tiny.attempt("run", &["memory.disk=drive", "memory.disk_budget=8TiB"]);
    assert_code(&full, 1);
    assert!(last_words(&full, tiny.path()).contains("taking 8.00 TiB on the disk"), "{}", stderr(&full));
    assert!(!tiny.join("run").exists());
    for senseless in ["memory.max_disk_writes=80%", "memory.disk_budget=unlimited", "memory.disk_budget=lots"]
    {
        assert_code(&tiny.attempt("run", &[senseless]), 2);
    }
}

#[test]
fn a_plan_counts_a_disk_without_writing_to_it() {
    let tiny = Tiny::new();
    let (host, _) = roomy(&tiny);
    let free = durable::free_bytes(tiny.path()).expect("the disk tells");
    let plan = |budget: &str, more: &[&str]| {
        let settings = [&SETTINGS[..], &[&host, "memory.disk=drive", budget]].concat();
        let set: Vec<_> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        let plan = ["plan", "--config", "tiny.json", "--json"];
        tiny.train(&[&plan[..], &set, more].concat())
    };
    let here = plan("memory.disk_budget=90%", &["--device", "cpu"]);
    assert_success(&here);

    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let taken = number(&json(&here)["machine"]["disk_budget"]);
    assert!(taken > free / 2 && number(&json(&here)["sinks"]) > 0, "{taken} of {free}");

    let most = format!("memory.disk_budget={}B", free * 2);
    let above = plan(&most, &["--device", "cpu"]);
    assert_code(&above, 2);
    assert!(stderr(&above).contains("are free at drive"), "{}", stderr(&above));

    let elsewhere = plan("memory.disk_budget=90%", &["--on", "1GiB,1GiB"]);
    assert_code(&elsewhere, 2);
    assert!(stderr(&elsewhere).contains("give it in bytes"), "{}", stderr(&elsewhere));
}

#[test]
fn a_killed_run_leaves_nothing_on_the_disk() {
    let tiny = Tiny::new();
    let (host, _) = roomy(&tiny);
    let settings = [&SETTINGS[..2], &["train.steps=4000", &host], &DISK].concat();
    let mut command = tiny.command("run", &settings);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let begun = || tiny.journal("run").contains("disk_written");
    for _ in 0..6000 {
        if begun() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(begun(), "no step wrote to the disk");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert_eq!(fs::read_dir(tiny.join("drive")).expect("a folder").count(), 0);
}

/// A file system of `mib` MiB is at `drive`, the command is `"$@"`; `None` without mounts.
fn run_on_a_small_disk(command: &Command, mib: u32, script: &str) -> Option<Output> {
    let folder = command.get_current_dir().expect("the test's folder");
    let mount = format!("mount -t tmpfs -o size={mib}m tmpfs drive");
    if !can_mount(folder, &mount) {
        return None;
    }
    let mut shell = with_own_mounts(folder, &format!("{mount}; {script}"));
    shell.arg(command.get_program()).args(command.get_args());
    Some(shell.output().expect("it starts"))
}

/// Prints free blocks before, during and after, and the number of names left.
const KILLED: &str = "free() { stat -f -c %f drive; }; \
    before=$(free); \
    \"$@\" >/dev/null 2>said & run=$!; \
    tries=0; \
    until grep -qs disk_written run/metrics.jsonl || [ $((tries += 1)) -gt 6000 ]; do sleep 0.01; done; \
    beside=$(free); \
    kill -KILL $run; wait $run; \
    tries=0; \
    until [ $(free) -eq $before ] || [ $((tries += 1)) -gt 1000 ]; do sleep 0.01; done; \
    echo $before $beside $(free) $(ls -A drive | wc -l)";

#[test]
fn a_killed_run_frees_all_its_disk_space() {
    const PAGE: u64 = 4096;
    for states in [false, true] {
        let tiny = Tiny::new();
        let settings = if states {
            let settings = ["memory.optimizer=host", "model.n_layer=2"];
            fs::create_dir(tiny.join("drive")).expect("a folder");
            let host = short(&tiny, &settings, 12);
            settings.map(str::to_owned).into_iter().chain([host]).collect::<Vec<_>>()
        } else {
            let (host, _) = roomy(&tiny);
            SETTINGS[..2].iter().map(|setting| (*setting).to_owned()).chain([host]).collect()
        };
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        let below = ["train.steps=100000", "memory.disk=drive", "memory.disk_budget=16MiB"];
        let run = tiny.command("run", &[&settings[..], &below].concat());
        let Some(output) = run_on_a_small_disk(&run, 24, KILLED) else { return };
        let printed = stdout(&output);
        let numbers: Vec<u64> =
            printed.split_whitespace().map(|number| number.parse().expect(&printed)).collect();
        let [before, beside, after, names] = numbers[..] else { panic!("{printed}") };
        assert!(before - beside >= (16 << 20) / PAGE, "the run had its space: {printed}");
        assert_eq!((after, names), (before, 0), "{printed}");
        let steps = tiny.records("run", "step");
        assert!(
            steps.iter().any(|step| step["disk_written"].as_u64() > Some(0)),
            "it was killed in its steps"
        );
    }
}

#[test]
fn a_full_disk_is_refused_at_the_start_and_one_that_fills_up_later_does_no_harm() {
    let tiny = Tiny::new();
    let (host, whole) = roomy(&tiny);
    let settings = |budget: &'static str| [&SETTINGS[..], &[&host, "memory.disk=drive", budget]].concat();
    let refused = tiny.command("refused", &settings("memory.disk_budget=64MiB"));
    let Some(refused) = run_on_a_small_disk(&refused, 24, "exec \"$@\"") else { return };
    assert_code(&refused, 1);

    let error = last_words(&refused, tiny.path());
    assert!(error.contains("taking 64.00 MiB on the disk at DIR/drive failed"), "{error}");
    assert!(!tiny.join("refused").exists());

    let fill = "\"$@\" & run=$!; \
                until grep -q disk_written run/metrics.jsonl; do sleep 0.01; done; \
                head -c 32M /dev/zero > drive/filler && exit 99; \
                wait $run";
    let run = tiny.command("run", &settings("memory.disk_budget=16MiB"));
    let run = run_on_a_small_disk(&run, 24, fill).expect("it was mounted before");
    assert_success(&run);
    assert_eq!(bits(&json(&run)), whole);
    let warning = "drive is on a file system in memory: it is no disk below host memory";
    assert!(stderr(&run).contains(warning), "{}", stderr(&run));
}
