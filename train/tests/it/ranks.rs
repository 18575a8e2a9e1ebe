//! Several processes over Open MPI, started by the user's command: one process's bits, and an end to every run.

use std::fs;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use suite::Need;

use crate::program::{
    CACHE, LIMIT, PROGRAM, assert_code, assert_success, json, last_words, processes_in, stderr,
};
use crate::tiny::{TIGHT, Tiny, bits};

pub(crate) const SHARED: [&str; 2] = ["train.accumulate=4", "train.micro_batch=1"];

pub(crate) fn on(ranks: &str) -> [&str; 4] {
    ["--ranks", ranks, "--interface", "lo"]
}

pub(crate) fn has_mpi() -> bool {
    Need::Mpi.found(release()).is_some()
}

/// Whether a lost rank ends the run, as under release 4.
pub(crate) fn losses_end_runs() -> bool {
    let survived =
        |release| if release < 5 { Ok(release) } else { Err("release 4 of Open MPI is needed".to_owned()) };
    Need::Mpi.found(release().and_then(survived)).is_some()
}

fn release() -> Result<u32, String> {
    exchange::launch::installed().map(|(_, release)| release).map_err(|error| error.to_string())
}

impl Tiny {
    pub(crate) fn attempt_on(&self, ranks: &str, out: &str, settings: &[&str]) -> Output {
        self.train_on_ranks(&[&begin(out, ranks)[..], &set(settings)].concat())
    }

    pub(crate) fn train_on_ranks(&self, arguments: &[&str]) -> Output {
        self.run_to_end(Command::new(PROGRAM).args(arguments))
    }

    pub(crate) fn run_to_end(&self, command: &mut Command) -> Output {
        // A pipe stays open until all children end.
        let mut printed = [(), ()].map(|()| tempfile::tempfile().expect("a file"));
        let [stdout, stderr] = printed.each_ref().map(|file| file.try_clone().expect("the file once more"));
        command.current_dir(self.path()).envs([CACHE]);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let status = wait_for_end(&mut command.spawn().expect("it starts"));
        let [stdout, stderr] = printed.each_mut().map(|file| {
            let mut bytes = Vec::new();
            file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("reading");
            bytes
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let status = status.unwrap_or_else(|| panic!("{HANGS}: {}\n{}", text(&stdout), text(&stderr)));
        Output { status, stdout, stderr }
    }

    pub(crate) fn run_on(&self, ranks: &str, out: &str, settings: &[&str]) -> [String; 2] {
        let output = self.attempt_on(ranks, out, settings);
        assert_success(&output);
        bits(&json(&output))
    }

    pub(crate) fn planned_on_two(&self, settings: &[&str]) -> Value {
        json(&self.train(&[&begin("planned", "2")[..], &["--dry-run"], &set(settings)].concat()))
    }

    /// The mean of the last 10 of 60 losses. Exact losses must fall by more than 2.
    pub(crate) fn assert_learns_on_two_nearly_as_well_as_exact(&self, exchange: &[&str], margin: f64) {
        let settings = [&SHARED[..], &["train.steps=60", "train.optimizer=adamw"]].concat();
        let last = |run: &str| {
            let losses = self.losses(run);
            losses[losses.len() - 10..].iter().sum::<f64>() / 10.0
        };
        self.run("exact", &settings);
        self.run_on("2", "other", &[&settings[..], exchange].concat());
        let (first, exact, other) = (self.losses("exact")[0], last("exact"), last("other"));
        println!("from {first} to {exact} exact and {other} by {exchange:?}");
        assert!(first - exact > 2.0 && other < exact + margin, "{first} {exact} {other}");
    }

    pub(crate) fn assert_divergence_stops_two(&self, settings: &[&str]) {
        let diverging = ["train.lr=1e30", "train.bad_steps=2", "train.steps=9"];
        let output = self.attempt_on("2", "run", &[&SHARED[..], &diverging, settings].concat());
        assert_code(&output, 4);
        for journal in ["run", "run/ranks/1"] {
            assert_eq!(self.records(journal, "withheld").len(), 2, "{journal}");
        }
    }

    pub(crate) fn resume_on(&self, ranks: &str, out: &str, settings: &[&str]) -> [String; 2] {
        bits(&self.resume_with_log(ranks, out, settings).0)
    }

    pub(crate) fn resume_with_log(&self, ranks: &str, out: &str, settings: &[&str]) -> (Value, String) {
        let begin = ["--resume", out, "--device", "cpu", "--json"];
        let output = self.train_on_ranks(&[&begin[..], &on(ranks), &set(settings)].concat());
        assert_success(&output);
        (json(&output), stderr(&output))
    }

    pub(crate) fn start_on(&self, ranks: &str, out: &str, more: &[&str]) -> Child {
        let settings = [&SHARED[..], &["train.steps=2000", "checkpoint.every=5"]].concat();
        self.start(self.command(out, &settings).args(on(ranks)).args(more), out)
    }

    pub(crate) fn start(&self, command: &mut Command, out: &str) -> Child {
        let log = fs::File::create(self.join(&format!("{out}.log"))).expect("a file");
        command.envs([CACHE]).stdout(Stdio::null()).stderr(log).spawn().expect("the program starts")
    }

    pub(crate) fn log(&self, out: &str) -> String {
        fs::read_to_string(self.join(&format!("{out}.log"))).expect("reading")
    }

    pub(crate) fn steps_taken(&self, out: &str) -> u64 {
        self.journal(out).matches(r#"{"kind":"step""#).count() as u64
    }

    /// In order, once a checkpoint is saved.
    pub(crate) fn processes(&self, out: &str) -> Vec<u32> {
        let latest = self.join(out).join("checkpoints/latest");
        self.wait_until(out, || latest.exists(), "no checkpoint was saved");
        self.ranks()
    }

    pub(crate) fn wait_until(&self, out: &str, mut holds: impl FnMut() -> bool, otherwise: &str) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < LIMIT, "{otherwise}: {}", self.log(out));
            sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn ended(&self, child: &mut Child, out: &str) -> Option<i32> {
        let status = wait_for_end(child).unwrap_or_else(|| panic!("{HANGS}: {}", self.log(out)));
        status.code()
    }

    pub(crate) fn bits_at_end(&self, child: &mut Child, out: &str) -> [String; 2] {
        assert_eq!(self.ended(child, out), Some(0), "{}", self.log(out));
        self.saved_bits(out)
    }

    pub(crate) fn saved_bits(&self, out: &str) -> [String; 2] {
        let summary = fs::read(self.join(out).join("summary.json")).expect("it has ended");
        bits(&serde_json::from_slice(&summary).expect("JSON"))
    }

    pub(crate) fn ranks(&self) -> Vec<u32> {
        let rank_of = |id: u32| {
            let own = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            let own = String::from_utf8_lossy(&own).into_owned();
            let rank = |pair: &str| pair.strip_prefix("OMPI_COMM_WORLD_RANK=")?.parse::<u32>().ok();
            Some((own.split('\0').find_map(rank)?, id))
        };
        let mut found: Vec<_> = processes_in(self.path()).into_iter().filter_map(rank_of).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }
}

pub(crate) fn begin<'a>(out: &'a str, ranks: &'a str) -> [&'a str; 11] {
    begin_with("cpu", out, ranks)
}

pub(crate) fn begin_with<'a>(device: &'a str, out: &'a str, ranks: &'a str) -> [&'a str; 11] {
    let [by, ranks, over, interface] = on(ranks);
    ["--config", "tiny.json", "--device", device, "--json", "--out", out, by, ranks, over, interface]
}

pub(crate) fn set<'a>(settings: &[&'a str]) -> Vec<&'a str> {
    settings.iter().flat_map(|setting| ["--set", setting]).collect()
}

const HANGS: &str = "it hangs, and is ended";

/// `None` after the limit. A drop of the folder ends its processes.
fn wait_for_end(child: &mut Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        let status = child.try_wait().expect("waiting");
        if status.is_some() || begun.elapsed() > LIMIT {
            return status;
        }
        sleep(Duration::from_millis(10));
    }
}

pub(crate) fn signal(name: Signal, process: u32) {
    assert!(try_signal(name, process), "process {process} is gone");
}

pub(crate) fn try_signal(name: Signal, process: u32) -> bool {
    Pid::from_raw(process as i32).is_some_and(|process| kill_process(process, name).is_ok())
}

#[test]
fn ranks_end_with_the_bits_of_one_process() {
    if !has_mpi() {
        return;
    }

    let cases: [(&[&str], &[&str]); 8] = [
        (&["train.optimizer=adamw", TIGHT], &["2", "4"]),
        (
            &["memory.optimizer=host", "memory.optimizer_state=compact", "model.compute=bf16", TIGHT],
            &["3", "2"],
        ),
        (&["train.optimizer=muon", "train.recompute=1", "model.resid_pdrop=0.1", TIGHT], &["2", "4"]),
        (&["train.optimizer=sgd", TIGHT], &["4", "2"]),
        (&["model.longest_match=true", "train.recompute=1"], &["2"]),
        // Rank 0 only steps.
        (&["memory.optimizer=host", "train.accumulate=1"], &["2"]),
        // The second of four ranks begins with an odd micro-batch of six.
        (&["memory.optimizer=host", "train.accumulate=6"], &["4"]),
        // Rounding of a share depends on its number among all.
        (
            &["memory.optimizer=host", "memory.stream=int8", "memory.gradients=int8", "train.accumulate=6"],
            &["4"],
        ),
    ];
    let tiny = Tiny::new();

    for (n, (settings, worlds)) in suite::first(2, &cases).iter().enumerate() {
        let settings = [&SHARED, *settings].concat();
        let one = tiny.run(&format!("one-{n}"), &settings);
        let tried = suite::size().pick(1, if n == 0 { 2 } else { 1 }, 2).min(worlds.len());
        for world in &worlds[..tried] {
            let output = tiny.attempt_on(world, &format!("of-{world}-{n}"), &settings);
            assert_success(&output);
            let several = json(&output);
            assert_eq!(bits(&several), bits(&one), "{settings:?} on {world}");
            let idle = settings.contains(&"train.accumulate=1");
            assert_eq!(
                stderr(&output).contains("so some have nothing to do"),
                idle,
                "{settings:?} on {world}"
            );
            let spilled = |summary: &Value| summary["restores"].as_u64() > Some(0);
            let tight = settings.contains(&TIGHT);
            assert!(!tight || spilled(&one) && spilled(&several), "{settings:?} on {world}: nothing spilled");
        }
    }
    let own = fs::read_to_string(tiny.join("of-3-1/ranks/2/metrics.jsonl")).expect("each rank has a journal");
    assert_eq!(own.lines().filter(|line| line.starts_with(r#"{"kind":"step""#)).count(), 4);
}

/// A user's `mpirun` command, with the variables of `--ranks` and `--interface`.
pub(crate) fn plain_mpirun() -> Command {
    let mut mpirun = Command::new("mpirun");
    mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    mpirun.env("OMPI_MCA_btl_tcp_if_include", "lo").env("OMPI_MCA_oob_tcp_if_include", "lo");
    mpirun.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    mpirun.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    mpirun
}

#[test]
fn ranks_under_a_plain_mpirun_have_the_bits_of_one_process() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let one = bits(&tiny.run("one", &SHARED));
    let train = tiny.command("two", &SHARED);
    let mut mpirun = plain_mpirun();
    mpirun.args(["-n", "2"]).arg(train.get_program()).args(train.get_args());
    let output = tiny.run_to_end(&mut mpirun);
    assert_success(&output);
    assert_eq!(bits(&json(&output)), one);
    assert_eq!(tiny.records("two/ranks/1", "step").len(), tiny.records("two", "step").len());
}

#[test]
fn each_rank_sends_as_many_bytes_as_the_gradients_have() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let output = tiny.attempt_on("2", "run", &SHARED);
    assert_success(&output);

    let gradients = 4 * json(&output)["parameters"].as_u64().expect("a number");
    let planned = tiny.planned_on_two(&SHARED);
    let alike = ["plan", "--config", "tiny.json", "--device", "cpu", "--ranks", "2", "--json"];
    let asked = tiny.train(&[&alike[..], &set(&SHARED)].concat());
    assert_eq!(json(&asked)["bytes_sent_per_step"], planned["bytes_sent_per_step"], "{}", stderr(&asked));
    assert_eq!(
        (&planned["bytes_sent_per_step"], &planned["machine"]["other_ranks"]),
        (&gradients.into(), &1.into())
    );

    for journal in ["run", "run/ranks/1"] {
        let steps = tiny.records(journal, "step");
        assert!(!steps.is_empty(), "{journal} has no journal");
        for step in steps {
            let sent = step["ranks_sent"].as_u64().expect("a number");
            assert!((gradients..gradients + 256).contains(&sent), "{sent} bytes, not {gradients}");
        }
    }

    assert!(
        tiny.attempt("alone", &[]).status.success()
            && tiny.records("alone", "step")[0].get("ranks_sent").is_none()
    );
}

#[test]
fn a_dry_run_divides_each_host_among_its_planned_ranks() {
    let tiny = Tiny::new();
    let settings =
        [&SHARED[..], &["train.accumulate=4", "memory.disk=.", "memory.disk_budget=64MiB"]].concat();
    let of_disk = |hosts: &[&str]| {
        let given = [&begin("planned", "4")[..], &["--dry-run"], hosts, &set(&settings)].concat();
        json(&tiny.train(&given))["machine"]["disk_budget"].as_u64().expect("a number") >> 20
    };
    assert_eq!(of_disk(&[]), 16);
    assert_eq!(of_disk(&["--hosts", "one:2,other:2"]), 32);
    let unnamed = tiny.train(&[&begin("planned", "4")[..], &["--dry-run", "--hosts", "one:none"]].concat());
    assert_code(&unnamed, 2);
}

#[test]
fn a_run_resumes_with_other_ranks_and_another_optimizer_place() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    let settings = [&SHARED[..], &["train.grad_clip=null"]].concat();
    let whole = bits(&tiny.run("whole", &[&settings[..], &["train.steps=6"]].concat()));
    tiny.run_on("4", "run", &[&settings[..], &["train.steps=2"]].concat());
    tiny.resume_on("2", "run", &["train.steps=4", "memory.optimizer=host"]);
    let resumed = tiny.resume("run", &["train.steps=6", "memory.optimizer=device"]);
    assert_eq!(bits(&resumed), whole);
}

#[test]
fn ranks_evaluate_together_to_the_bits_of_one() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let settings = [&SHARED[..], &["train.steps=3", "eval.every=1", "eval.sequences=3"]].concat();
    tiny.run("one", &settings);
    let keys = ["step", "loss", "bits_per_byte", "sequences"];
    let numbers = |record: &Value| keys.map(|key| record[key].to_string()).join(" ");
    let evaluations = |run: &str| tiny.records(run, "eval").iter().map(numbers).collect::<Vec<_>>();
    let one = evaluations("one");
    assert_eq!(one.len(), 3, "{one:?}");
    for ranks in ["2", "4"] {
        for more in [&[][..], &["memory.shard=true"]] {
            let run = format!("on-{ranks}-{}", more.len());
            tiny.run_on(ranks, &run, &[&settings[..], more].concat());
            assert_eq!(evaluations(&run), one, "{ranks} ranks {more:?}");
        }
    }
}

#[test]
fn sharded_moments_change_no_bit_and_take_a_share_of_the_bytes() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let saving = ["memory.shard=true", "checkpoint.every=2"];
    let moments = |run: &str| tiny.records(run, "moments")[0]["bytes"].as_u64().expect("a number");

    for (n, optimizer) in suite::first(1, &["adamw", "muon"]).iter().enumerate() {
        let optimizer = format!("train.optimizer={optimizer}");
        let settings = [&SHARED[..], &[&optimizer, TIGHT, "model.n_layer=2"]].concat();
        let whole = tiny.run(&format!("whole-{n}"), &[&settings[..], &["train.steps=6"]].concat());
        let run = format!("run-{n}");
        let four = tiny.run_on("4", &run, &[&settings[..], &saving].concat());
        // Rank 0 alone decides after an evaluation that a save is due.
        let often = [&settings[..], &saving, &["eval.every=1", "checkpoint.every=0"]].concat();
        assert_eq!(tiny.run_on("2", &format!("often-{n}"), &often), four);
        let each: Vec<_> =
            ["", "/ranks/1", "/ranks/2", "/ranks/3"].map(|rank| moments(&format!("{run}{rank}"))).to_vec();
        let parameters = whole["parameters"].as_u64().expect("a number");
        if n == 0 {
            assert_eq!(each.iter().sum::<u64>(), 8 * parameters, "{each:?}");
            // Embedding and head are each as large as a whole share.
            assert!(each.iter().all(|bytes| bytes * 3 < 8 * parameters), "{each:?}");
        }
        tiny.resume_on("2", &run, &["train.steps=5"]);
        let one = tiny.resume(&run, &["train.steps=6", "memory.shard=false"]);
        assert_eq!(bits(&one), bits(&whole), "{optimizer}");
    }
}

#[test]
fn sharded_host_states_change_no_bit_and_take_a_share_of_the_bytes() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let cases: [(&str, &[&str]); 3] = [
        ("f32", &["train.recompute=1", TIGHT]),
        ("bf16", &["model.compute=bf16", "train.optimizer=muon"]),
        ("compact", &["model.compute=bf16", TIGHT]),
    ];

    for (n, (state, more)) in suite::first(1, &cases).iter().enumerate() {
        let state = format!("memory.optimizer_state={state}");
        let settings = [&SHARED[..], &["memory.optimizer=host", &state], *more].concat();
        let whole = tiny.run(&format!("whole-{n}"), &[&settings[..], &["train.steps=6"]].concat());
        let (run, divided) = (format!("run-{n}"), [&settings[..], &["memory.shard=true"]].concat());
        let saving = [&divided[..], &["train.steps=2", "checkpoint.every=1"]].concat();
        tiny.run_on("4", &run, &saving);
        let each: Vec<u64> = ["", "/ranks/1", "/ranks/2", "/ranks/3"]
            .map(|rank| tiny.records(&format!("{run}{rank}"), "moments")[0]["host_bytes"].as_u64())
            .map(|bytes| bytes.expect("a number"))
            .to_vec();
        let parameters = whole["parameters"].as_u64().expect("a number");
        if n == 0 {
            assert_eq!(each.iter().sum::<u64>(), 12 * parameters, "{each:?}");
            assert!(each.iter().all(|bytes| bytes * 3 < 12 * parameters), "{each:?}");
        }
        tiny.resume_on("2", &run, &["train.steps=4"]);
        let one = tiny.resume(&run, &["train.steps=6", "memory.shard=false"]);
        assert_eq!(bits(&one), bits(&whole), "{settings:?}");
    }
}

#[test]
fn a_sharded_gradient_goes_to_its_owner_only_and_the_weight_comes_back() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();

    for place in ["memory.optimizer=device", "memory.optimizer=host"] {
        let settings = [&SHARED[..], &["memory.shard=true", place]].concat();
        let output = tiny.attempt_on("2", place, &settings);
        assert_success(&output);
        let weights = 4 * json(&output)["parameters"].as_u64().expect("a number");
        assert_eq!(tiny.planned_on_two(&settings)["bytes_sent_per_step"], weights);
        let steps = [place.to_owned(), format!("{place}/ranks/1")].map(|run| tiny.records(&run, "step"));
        assert!(!steps[0].is_empty() && steps[0].len() == steps[1].len(), "each rank keeps a journal");
        for (one, other) in steps[0].iter().zip(&steps[1]) {
            let sent = [one, other].map(|step| step["ranks_sent"].as_u64().expect("a number"));
            let both: u64 = sent.iter().sum();
            assert!((2 * weights..2 * weights + 2048).contains(&both), "{sent:?} for {weights}");
        }
    }
}

#[test]
fn a_diverging_step_is_skipped_by_all_ranks() {
    if has_mpi() {
        Tiny::new().assert_divergence_stops_two(&[]);
    }
}

#[test]
fn a_frozen_rank_is_named() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    for mode in suite::first(1, &["memory.shard=false", "memory.shard=weights", "ranks.pipeline=2"]) {
        let settings = set(&[*mode, "train.recompute=1", "model.n_layer=2", "eval.questions=[]"]);
        let mut child = tiny.start_on("2", mode, &[&["--rank-timeout", "8"], &settings[..]].concat());
        let processes = tiny.processes(mode);
        signal(Signal::STOP, processes[1]);
        assert_eq!(tiny.ended(&mut child, mode), Some(1), "{}", tiny.log(mode));
        assert!(tiny.log(mode).contains("rank 1 did not arrive"), "{}", tiny.log(mode));
    }
}

#[test]
fn a_stop_signal_to_one_rank_stops_all_with_a_checkpoint() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    for exchange in suite::first(1, &["exact", "rarely"]) {
        let (by, local) = (format!("ranks.exchange={exchange}"), "ranks.round=4");
        let mut child = tiny.start_on("2", exchange, &["--set", &by, "--set", local]);
        let processes = tiny.processes(exchange);
        signal(Signal::TERM, processes[1]);
        assert_eq!(tiny.ended(&mut child, exchange), Some(3), "{}", tiny.log(exchange));
        let last = tiny.records(exchange, "step").len() as u64;
        assert_eq!(tiny.whole_checkpoints(exchange).iter().max(), Some(&last));
    }
}

#[test]
fn sigint_to_the_launcher_stops_all_ranks_with_a_checkpoint() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();

    for ranks in suite::first(1, &["2", "1"]) {
        let run = format!("of-{ranks}");
        let mut child = tiny.start_on(ranks, &run, &["--rank-timeout", "900"]);
        tiny.processes(&run);
        signal(Signal::INT, child.id());
        let code = tiny.ended(&mut child, &run);
        let said = tiny.log(&run);
        assert_eq!(code, Some(3), "{said}");
        let last = tiny.records(&run, "step").len() as u64;
        assert_eq!(tiny.whole_checkpoints(&run).iter().max(), Some(&last));
        let command =
            format!("train --resume {run} --device cpu --ranks {ranks} --interface lo --rank-timeout 900");
        assert!(said.contains(&command), "{said}");
    }
}

/// Launchers return the first ended rank's code.
#[test]
fn a_refusal_by_rank_0_is_bad_input_and_leaves_nothing() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    for _ in 0..suite::size().pick(1, 2, 20) {
        let output = tiny.attempt_on("2", "run", &["memory.device_budget=1MiB", "memory.host_budget=512KiB"]);
        assert_code(&output, 2);
        assert!(stderr(&output).contains("this run cannot work here"), "{}", stderr(&output));
    }
    assert!(!tiny.join("run").exists());
}

#[test]
fn a_run_with_weights_of_another_restarts_only_after_its_first_save() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    tiny.run("other", &["train.steps=1"]);
    let mut command = tiny.command("run", &["train.steps=4000", "checkpoint.every=0"]);
    let mut child = tiny.start(command.args(["--from", "other", "--restarts", "3"]).args(on("2")), "run");
    tiny.wait_until("run", || tiny.steps_taken("run") > 0, "no step was taken");
    signal(Signal::KILL, tiny.ranks()[1]);
    assert_eq!(tiny.ended(&mut child, "run"), Some(1), "{}", tiny.log("run"));
    assert!(tiny.log("run").contains("before its first checkpoint"), "{}", tiny.log("run"));
    let output = tiny.train(&["--resume", "run", "--device", "cpu"]);
    assert_code(&output, 2);
    let said = last_words(&output, tiny.path());
    assert!(said.contains("began with the weights of") && said.contains("another --out"), "{said}");

    if !losses_end_runs() {
        return;
    }
    let settings = ["train.steps=400", "checkpoint.every=150"];
    let mut command = tiny.command("saved", &settings);
    let mut child = tiny.start(command.args(["--from", "other", "--restarts", "3"]).args(on("2")), "saved");
    let saved = tiny.join("saved/checkpoints/step-00000150");
    tiny.wait_until("saved", || saved.exists(), "nothing was saved");
    signal(Signal::KILL, tiny.ranks()[1]);
    assert_eq!(tiny.ended(&mut child, "saved"), Some(0), "{}", tiny.log("saved"));
    assert!(tiny.log("saved").contains("resuming after step 150"), "{}", tiny.log("saved"));
}

#[test]
fn mpi_is_loaded_only_in_launched_processes() {
    if !has_mpi() {
        return;
    }

    let tiny = Tiny::new();
    let loads = |process: u32| {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("it runs");
        maps.contains("libmpi.so")
    };

    let mut alone = tiny.command("alone", &[&SHARED[..], &["train.steps=4000"]].concat());
    let mut alone = tiny.start(&mut alone, "alone");
    tiny.wait_until("alone", || tiny.steps_taken("alone") > 0, "no step was taken");
    assert!(!loads(alone.id()));

    alone.kill().expect("it runs");
    alone.wait().expect("it has ended");
    let mut launched = tiny.start_on("1", "launched", &[]);
    tiny.wait_until("launched", || tiny.steps_taken("launched") > 0, "no step was taken");
    let rank = tiny.ranks()[0];
    assert!(loads(rank));
    signal(Signal::KILL, rank);
    assert_eq!(tiny.ended(&mut launched, "launched"), Some(1));
}

#[test]
fn without_mpirun_the_error_says_what_to_install_and_one_process_trains() {
    let tiny = Tiny::new();
    let mut command = tiny.command("run", &[]);
    let output = command.args(["--ranks", "2"]).env("PATH", "").output().expect("it starts");
    assert_code(&output, 2);
    assert!(last_words(&output, tiny.path()).contains("apt-get install openmpi-bin"), "{}", stderr(&output));
    assert_success(&tiny.command("run", &["train.steps=1"]).env("PATH", "").output().expect("it starts"));
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: waits for a time limit"]
    fn a_frozen_rank_is_ended_and_the_run_restarts_to_the_bits_of_an_undisturbed_one() {
        if !has_mpi() {
            return;
        }

        let tiny = Tiny::new();
        let settings = [&SHARED[..], &["train.steps=300", "checkpoint.every=100"]].concat();
        let whole = bits(&tiny.run("whole", &settings));
        let mut command = tiny.command("run", &settings);
        let mut child =
            tiny.start(command.args(on("2")).args(["--restarts", "1", "--rank-timeout", "15"]), "run");
        let frozen = tiny.processes("run")[0];
        // While rank 0 saves, others wait without the limit.
        let goes_on = || tiny.steps_taken("run") > 101;
        tiny.wait_until("run", goes_on, "no step followed the checkpoint");
        signal(Signal::STOP, frozen);
        assert_eq!(tiny.bits_at_end(&mut child, "run"), whole);

        let said = tiny.log("run");
        for expected in ["rank 0 did not arrive", "resumes from its last checkpoint", "resuming after step "]
        {
            assert!(said.contains(expected), "{expected} is missing in {said}");
        }
        assert!(!processes_in(tiny.path()).contains(&frozen), "it is still there");
    }

    #[test]
    #[ignore = "gate: restarts a run of many steps"]
    fn a_run_resumed_from_a_named_checkpoint_restarts_from_its_own() {
        if !losses_end_runs() {
            return;
        }

        let tiny = Tiny::new();
        let steps = "train.steps=400";
        let whole = bits(&tiny.run("whole", &[&SHARED[..], &[steps]].concat()));
        tiny.run_on("2", "run", &[&SHARED[..], &["train.steps=20", "checkpoint.every=10"]].concat());
        let mut command = Command::new(PROGRAM);
        command.current_dir(tiny.path());
        command.args(["--resume", "run/checkpoints/step-00000010", "--device", "cpu"]).args(on("2"));
        command.args(["--restarts", "2"]).args(set(&[steps, "checkpoint.every=150"]));
        let mut child = tiny.start(&mut command, "run");

        // It starts at steps 0 and 10, and saves long after its next step.
        let begun = |starts| tiny.journal("run").matches(r#"{"kind":"start""#).count() == starts;
        tiny.wait_until(
            "run",
            || begun(2) && tiny.steps_taken("run") >= 11,
            "the ranks did not get that far",
        );
        signal(Signal::KILL, tiny.ranks()[1]);
        let saved = tiny.join("run/checkpoints/step-00000150");
        tiny.wait_until("run", || begun(3) && saved.exists(), "the restarted ranks saved nothing");
        signal(Signal::KILL, tiny.ranks()[1]);
        let code = tiny.ended(&mut child, "run");
        let said = tiny.log("run");
        assert_eq!(code, Some(0), "{said}");

        let begun: Vec<_> =
            said.lines().filter_map(|line| line.strip_prefix("resuming after step ")).collect();
        assert_eq!(begun.len(), 3, "{said}");
        assert!(
            begun[0].starts_with("10 ") && begun[1].starts_with("10 ") && begun[2].starts_with("150 "),
            "{begun:?}"
        );
        assert_eq!(tiny.saved_bits("run"), whole);
    }
}
