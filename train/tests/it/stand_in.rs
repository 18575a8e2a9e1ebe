//! The trainer on CUDA, on the stand-in for its driver, which `cargo xtask stand-in` builds and locates.

use std::{
    env, fs,
    io::{Write as _, stderr},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

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

/// Trains there under `budget`, with queued work run in the order that `mode` names, and ends without a finding.
fn train(tiny: &Tiny, installation: &Path, mode: &str, budget: &str, settings: &[&str]) -> Value {
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
        .env("STAND_IN_REPORT", &report);
    let output = command.output().expect("the program starts");
    assert_success(&output);
    let told: Value = serde_json::from_slice(&fs::read(report).expect("a report at exit")).expect("JSON");
    assert_eq!(told["findings"].to_string(), "{}", "{out}");
    json(&output)
}

#[test]
fn a_budget_changes_no_bit_of_eight_bits_on_cuda() {
    let installation = match installation() {
        Ok(installation) => installation,
        Err(why) => {
            let required = env::var("OFFLOAD_REQUIRE_STAND_IN").is_ok_and(|value| value == "1");
            assert!(!required, "this test has to run, but {why}");
            writeln!(stderr(), "NOT RUN: the trainer on the stand-in: {why}").expect("standard error");
            return;
        }
    };
    let tiny = Tiny::new();
    // Autotune's results are timings of a CPU, and must not reach the cache of a machine with a GPU.
    let settings = "[autotune]\ncache = \"local\"\nlevel = \"minimal\"\n";
    fs::write(tiny.join("cubecl.toml"), settings).expect("writing");
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
    let roomy = train(&tiny, &installation, "lazy", "unlimited", &settings);
    assert_eq!(roomy["evictions"], 0);
    for mode in ["eager", "lazy"] {
        let tight = train(&tiny, &installation, mode, "800KiB", &settings);
        assert!(tight["restores"].as_u64() > Some(20), "{mode} did not spill: {tight:#}");
        assert!(tight["peak_device_bytes"].as_u64() <= tight["device_budget"].as_u64(), "{mode}: {tight:#}");
        assert_eq!(bits(&tight), bits(&roomy), "{mode}");
    }
}
