//! The trainer on the stand-in for the CUDA driver: it takes what its plan says, and a budget at the plan's floor is enough.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;

use crate::program::{PROGRAM, assert_success, json, stderr};
use crate::tiny::{Tiny, bits};

/// Wide enough that no tensor of importance is too small to be counted; few kernels, since each is compiled first.
const SETTINGS: [&str; 6] = [
    r#"model={"preset":"llama-160m","n_layer":2,"n_head":2,"n_embd":128,"n_inner":256,"n_positions":64,"vocab_size":264}"#,
    "train.optimizer=adamw",
    "train.micro_batch=8",
    "train.sequence=64",
    "eval.questions=[]",
    "train.steps=2",
];

/// The folder that plays a CUDA installation; `None` where there can be none, which fails where it must not be.
fn installation() -> Option<PathBuf> {
    let mut command = std::process::Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--package", "xtask", "--", "stand-in"]);
    let built = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo starts");
    if built.status.success() {
        return Some(PathBuf::from(String::from_utf8_lossy(&built.stdout).trim()));
    }
    let why = String::from_utf8_lossy(&built.stderr);
    let required = std::env::var("OFFLOAD_REQUIRE_STAND_IN").is_ok_and(|value| value == "1");
    assert!(!required, "there is no stand-in for CUDA: {why}");
    eprintln!("NOT RUN: nothing was trained on CUDA, since its stand-in cannot be built: {why}");
    None
}

/// Trains on CUDA as `installation` has it; the summary, and what was said beside it.
fn on_cuda(installation: &Path, tiny: &Tiny, out: &str, budget: &str) -> (serde_json::Value, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["--config", "tiny.json", "--device", "cuda", "--json", "--out", out, "--set", budget]);
    command.args(SETTINGS.iter().flat_map(|setting| ["--set", setting])).current_dir(tiny.path());
    command.env("CUDA_PATH", installation).env("LD_LIBRARY_PATH", installation.join("lib"));
    command.env("STAND_IN_CACHE", installation.join("kernels"));
    let output = command.output().expect("the program starts");
    assert_success(&output);
    (json(&output), stderr(&output))
}

#[test]
fn on_cuda_a_run_takes_what_its_plan_says() {
    let Some(installation) = installation() else { return };
    let tiny = Tiny::new();
    let tuning = "[autotune]\ncache = \"local\"\nlevel = \"minimal\"\n";
    fs::write(tiny.join("cubecl.toml"), tuning).expect("writing");
    let (roomy, said) = on_cuda(&installation, &tiny, "roomy", "memory.device_budget=unlimited");
    let compared = |what: &str| {
        let mut lines = said.lines().skip_while(|line| !line.contains("predicted"));
        let line =
            lines.find(|line| line.starts_with(what)).unwrap_or_else(|| panic!("no {what} in\n{said}"));
        line.split_whitespace().last().and_then(|ratio| ratio.parse::<f64>().ok()).expect("a ratio")
    };
    for what in ["device", "largest operation"] {
        assert!((0.85..=1.15).contains(&compared(what)), "{said}");
    }

    let floor = roomy["largest_launch"].as_u64().expect("a number");
    let (tight, _) = on_cuda(&installation, &tiny, "tight", &format!("memory.device_budget={floor}B"));
    assert!(tight["restores"].as_u64() > Some(100), "{tight:#}");
    assert!(tight["peak_device_bytes"].as_u64() <= Some(floor), "{tight:#}");
    assert_eq!(bits(&tight), bits(&roomy));
}
