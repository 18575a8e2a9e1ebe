//! The trainer on CUDA, on the stand-in for its driver, which `cargo xtask stand-in` builds and locates.

use std::{
    collections::HashSet,
    env, fs,
    io::{Write as _, stderr},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use crate::plan::{SHAPES, assert_as_planned};
use crate::program::{PROGRAM, assert_success, json};
use crate::tiny::{Tiny, bits};

/// The folder that plays a CUDA installation, or why there is none.
fn installation() -> Result<PathBuf, String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the stand-in for CUDA runs on x86-64 Linux only".to_owned());
    }
    let mut built = Command::new(env!("CARGO"));
    built.args(["run", "--quiet", "--package", "xtask", "--", "stand-in"]);
    let built = built.current_dir(env!("CARGO_MANIFEST_DIR")).output().map_err(|error| error.to_string())?;
    if built.status.success() {
        Ok(PathBuf::from(String::from_utf8_lossy(&built.stdout).trim()))
    } else {
        Err(format!("`cargo xtask stand-in` failed: {}", String::from_utf8_lossy(&built.stderr).trim()))
    }
}

/// The folder, and one for runs whose autotune leaves no timings of a CPU in the cache of a machine with a GPU. `None` where
/// the test cannot run and need not.
fn prepared() -> Option<(PathBuf, Tiny)> {
    let installation = match installation() {
        Ok(installation) => installation,
        Err(why) => {
            let required = env::var("OFFLOAD_REQUIRE_STAND_IN").is_ok_and(|value| value == "1");
            assert!(!required, "this test has to run, but {why}");
            writeln!(stderr(), "NOT RUN: the trainer on the stand-in: {why}").expect("standard error");
            return None;
        }
    };
    let tiny = Tiny::new();
    fs::write(tiny.join("cubecl.toml"), "[autotune]\ncache = \"local\"\nlevel = \"minimal\"\n")
        .expect("writing");
    Some((installation, tiny))
}

/// Trains there under `budget`, with queued work run in the order that `mode` names, and ends without a finding.
fn train(tiny: &Tiny, installation: &Path, mode: &str, budget: &str, settings: &[&str]) -> Output {
    let out = format!("{mode}-{budget}");
    let report = tiny.join(&format!("{out}.json"));
    let mut command = Command::new(PROGRAM);
    command
        .args(["--config", "tiny.json", "--device", "cuda", "--json", "--out", &out])
        .args(["--set", &format!("memory.device_budget={budget}")])
        .args(settings.iter().flat_map(|setting| ["--set", setting]))
        .current_dir(tiny.path())
        .env("CUDA_PATH", installation)
        .env("LD_LIBRARY_PATH", installation.join("lib"))
        .env("STAND_IN_CACHE", installation.join("kernels"))
        .env("STAND_IN_MODE", mode)
        .env("STAND_IN_RACES", if mode == "eager" { "1" } else { "0" })
        .env("STAND_IN_TRACE", tiny.join(&format!("{out}.trace")))
        .env("STAND_IN_REPORT", &report);
    let output = command.output().expect("the program starts");
    assert_success(&output);
    let told: Value = serde_json::from_slice(&fs::read(report).expect("a report at exit")).expect("JSON");
    assert_eq!(told["findings"].to_string(), "{}", "{out}");
    output
}

/// Large reads in a trace of the stand-in, none of which is on a stream that runs kernels.
fn reads_beside_kernels(trace: &Path) -> u64 {
    let text = fs::read_to_string(trace).expect("a trace");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let computing: HashSet<_> =
        lines.iter().filter(|line| line["kind"] == "compute").map(|line| line["stream"].as_u64()).collect();
    let is_read = |line: &&Value| line["kind"] == "to host" && line["bytes"].as_u64() >= Some(64 << 10);
    let reads: Vec<_> = lines.iter().filter(is_read).collect();
    let behind = reads.iter().find(|line| computing.contains(&line["stream"].as_u64()));
    assert_eq!(behind, None, "kernels wait behind it");
    reads.len() as u64
}

#[test]
fn a_budget_changes_no_bit_of_eight_bits_on_cuda() {
    let Some((installation, tiny)) = prepared() else { return };
    let settings = [
        "memory.optimizer=host",
        "memory.stream=int8",
        "memory.gradients=int8",
        "model.compute=bf16",
        "model.n_layer=2",
        "train.recompute=1",
        "train.steps=3",
        "eval.questions=[]",
    ];
    let trained = |mode: &str, budget: &str| json(&train(&tiny, &installation, mode, budget, &settings));
    let roomy = trained("lazy", "unlimited");
    assert_eq!(roomy["evictions"], 0);
    let steps = roomy["steps"].as_u64().expect("a number");
    assert!(reads_beside_kernels(&tiny.join("lazy-unlimited.trace")) >= 8 * steps, "of every large gradient");
    for mode in ["eager", "lazy"] {
        let tight = trained(mode, "800KiB");
        assert!(tight["restores"].as_u64() > Some(20), "{mode} did not spill: {tight:#}");
        assert!(tight["peak_device_bytes"].as_u64() <= tight["device_budget"].as_u64(), "{mode}: {tight:#}");
        assert_eq!(bits(&tight), bits(&roomy), "{mode}");
    }
}

/// The records beside the plan's source hold more shapes; this holds what the program says of itself.
#[test]
fn a_run_on_cuda_takes_what_its_plan_said() {
    let Some((installation, tiny)) = prepared() else { return };
    for settings in SHAPES {
        let settings = [settings, &["eval.questions=[]"]].concat();
        let output = train(&tiny, &installation, "lazy", "unlimited", &settings);
        fs::remove_dir_all(tiny.join("lazy-unlimited")).expect("a run");
        fs::remove_file(tiny.join("lazy-unlimited.json")).expect("a report");
        assert_as_planned(&output, &settings);
    }
}

/// An embedding of 8 MiB: in one piece its update names 48 MiB and more, and by rows 44 at most.
#[test]
fn an_embedding_is_stepped_on_cuda_under_a_budget_that_holds_its_update_by_rows_alone() {
    let Some((installation, tiny)) = prepared() else { return };
    let settings = [
        "train.optimizer=adamw",
        "model.n_embd=256",
        "model.vocab_size=8192",
        "train.micro_batch=1",
        "train.sequence=16",
        "train.steps=3",
        "eval.questions=[]",
    ];
    let trained = |budget: &str| json(&train(&tiny, &installation, "lazy", budget, &settings));
    let roomy = trained("unlimited");
    assert!(roomy["largest_launch"].as_u64() <= Some(45 << 20), "{roomy:#}");
    let tight = trained("46MiB");
    assert!(tight["evictions"].as_u64() > Some(0), "{tight:#}");
    assert!(tight["peak_device_bytes"].as_u64() <= Some(46 << 20), "{tight:#}");
    assert_eq!(bits(&tight), bits(&roomy));
}
