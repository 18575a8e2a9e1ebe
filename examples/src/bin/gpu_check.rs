//! Checks whether spilling changes a number on this GPU, and its cost. The target needs no compiler.
//!
//! ```sh
//! cargo xtask gpu-check          # builds this and says where to carry it
//! gpu_check --budgets 100%,50%,25% --json
//! ```
//!
//! `gpu_check tune` chooses kernels beforehand: on the stand-in for CUDA that takes a fraction of the time if its values
//! may be wrong (`STAND_IN_HASTE`).
//!
//! Each program runs twice on the plain backend, to see whether it is deterministic. Then it runs offloaded, without a
//! budget and under shares of its own peak, with overlapping copies and "in line". Each run is a process.
//!
//! Standard output is JSON lines; the last one holds the copy bandwidth. A failed part leaves a line with the verdict
//! `fail` and its error, and the exit code is 1.

#[expect(dead_code, reason = "the tests of backend-offload use all of it")]
#[path = "../../../backend-offload/tests/it/numbers.rs"]
mod numbers;
#[expect(dead_code, reason = "the tests of backend-offload use all of it")]
#[path = "../../../backend-offload/tests/it/programs/mod.rs"]
mod programs;

use anyhow::{Context, Result, bail, ensure};
use backend_offload::{Budget, Offload, OffloadConfig, stats};
use burn::backend::Autodiff;
use burn::prelude::*;
use examples::{Device, Inner};
use programs::{Run, Size, programs};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Instant;

const STEPS: usize = 20;

/// Room for three tensors of [`bandwidth`].
const BANDWIDTH_BUDGET: &str = "800MiB";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["run", program, budget] => run(program, budget, STEPS),
        ["tune", program, budget] => run(program, budget, 0),
        ["tune"] => tune(),
        ["bandwidth"] => bandwidth(),
        ["--budgets", budgets, "--json"] => check(budgets),
        _ => bail!("usage: gpu_check --budgets 100%,50%,25% --json"),
    }
}

fn check(budgets: &str) -> Result<()> {
    let shares: Vec<f64> = budgets.split(',').map(share).collect::<Result<_>>()?;
    let mut failed = false;
    for program in programs::<Autodiff<Offload<Inner>>>() {
        let name = program.name;

        let plain = child(&["run", name, "plain"])?;
        let again = child(&["run", name, "plain"])?;
        let deterministic = same(&plain, &again, "losses") && same(&plain, &again, "weights");
        failed |= !report(name, "plain", &plain, &again, deterministic, true);
        let unlimited = child(&["run", name, "unlimited"])?;
        let passed_through = unlimited["stats"]["bytes_out"] == 0 && unlimited["stats"]["bytes_in"] == 0;
        failed |= !report(name, "unlimited", &unlimited, &plain, deterministic, passed_through);

        let peak = unlimited["stats"]["device_peak"].as_u64().unwrap_or(0);
        let floor = unlimited["stats"]["largest_launch"].as_u64().unwrap_or(0);
        for share in &shares {
            let budget = ((peak as f64 * share) as u64).max(floor + floor / 20);
            let spilled = child(&["run", name, &budget.to_string()])?;
            let kept = spilled["stats"]["device_peak_reserved"].as_u64().is_some_and(|held| held <= budget);
            let title = format!("{}%", share * 100.0);
            failed |= !report(name, &title, &spilled, &plain, deterministic, kept);
            let in_line = child_with(&["run", name, &budget.to_string()], &[("OFFLOAD_OVERLAP", "0")])?;
            let title = format!("{title} in line");
            failed |= !report(name, &title, &in_line, &plain, deterministic, true);
        }
    }

    let bandwidth = child(&["bandwidth"])?;
    if bandwidth["error"].is_null() {
        println!("{bandwidth}");
    } else {
        failed = true;
        let error = &bandwidth["error"];
        println!(
            "{}",
            json!({ "program": "bandwidth", "budget": BANDWIDTH_BUDGET, "verdict": "fail", "error": error })
        );
    }

    ensure!(!failed, "at least one check failed");
    Ok(())
}

/// Chooses kernels for later processes in this folder.
fn tune() -> Result<()> {
    for program in programs::<Autodiff<Offload<Inner>>>() {
        for budget in ["plain", "unlimited"] {
            let tuned = child(&["tune", program.name, budget])?;
            ensure!(tuned["error"].is_null(), "{} could not be tuned: {}", program.name, tuned["error"]);
        }
    }
    Ok(())
}

fn share(text: &str) -> Result<f64> {
    match text.parse()? {
        Budget::Share(share) => Ok(share),
        other => bail!("budgets are shares of a program's own peak, such as 50%: {other}"),
    }
}

fn same(a: &Value, b: &Value, what: &str) -> bool {
    !a[what].is_null() && a[what] == b[what]
}

/// Bits must equal those of `reference` only on a deterministic backend.
fn report(name: &str, budget: &str, run: &Value, reference: &Value, exact: bool, kept: bool) -> bool {
    let (losses, weights) = (same(run, reference, "losses"), same(run, reference, "weights"));
    let passed = run["error"].is_null() && kept && (!exact || (losses && weights));
    let line = json!({
        "program": name,
        "budget": budget,
        "verdict": if passed { "pass" } else { "fail" },
        "deterministic": exact,
        "losses_equal": losses,
        "weights_equal": weights,
        "seconds_per_step": run["seconds_per_step"],
        "stats": run["stats"],
        "error": run["error"],
    });
    println!("{line}");
    passed
}

fn child(arguments: &[&str]) -> Result<Value> {
    child_with(arguments, &[])
}

fn child_with(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Value> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(arguments).envs(environment.iter().copied()).output()?;
    if !output.status.success() {
        return Ok(json!({ "error": String::from_utf8_lossy(&output.stderr) }));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default())
        .with_context(|| format!("{arguments:?} printed {text:?}"))
}

fn run(program: &str, budget: &str, steps: usize) -> Result<()> {
    let device = Device::default();
    let (run, seconds) = if budget == "plain" {
        train::<Inner>(program, &device, steps)
    } else {
        // Fused kernels are cut alike at every budget.
        OffloadConfig::new().device_budget(budget.parse()?).max_bindings(16).install::<Inner>(&device)?;
        train::<Offload<Inner>>(program, &device, steps)
    };

    let weights: Vec<&Vec<u32>> = run.weights.iter().map(|(_, bits)| bits).collect();
    let mut line = json!({
        "losses": format!("{:016x}", hash(&run.losses)),
        "weights": format!("{:016x}", hash(weights.into_iter().flatten())),
        "seconds_per_step": seconds,
    });

    if budget != "plain" {
        line["stats"] = counters();
    }
    println!("{line}");
    Ok(())
}

fn train<B: Backend>(program: &str, device: &B::Device, steps: usize) -> (Run, f64) {
    let program = programs::<Autodiff<B>>().into_iter().find(|p| p.name == program).expect("a program");
    // The first run compiles and tunes kernels.
    (program.train)(device, Size::Usual, 2, 1);
    let start = Instant::now();
    let run = (program.train)(device, Size::Usual, steps, 1);
    (run, start.elapsed().as_secs_f64() / steps.max(1) as f64)
}

fn hash<'a>(bits: impl IntoIterator<Item = &'a u32>) -> u64 {
    bits.into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, bits| (hash ^ u64::from(*bits)).wrapping_mul(0x100_0000_01b3))
}

fn counters() -> Value {
    let stats = stats::<Inner>(&Device::default());
    json!({
        "device_peak": stats.device.peak,
        "device_peak_reserved": stats.device.peak_reserved,
        "largest_launch": stats.largest_launch,
        "evictions": stats.evictions,
        "clean_drops": stats.clean_drops,
        "restores": stats.restores,
        "bytes_out": stats.bytes_out,
        "bytes_in": stats.bytes_in,
        "left_ahead": stats.left_ahead,
        "brought_ahead": stats.brought_ahead,
        "brought_in_vain": stats.brought_in_vain,
        "stall_seconds": stats.stall.as_secs_f64(),
        "pageable_fallbacks": stats.pageable_fallbacks,
        "launches": stats.launches,
    })
}

/// Eight tensors of 256 MiB take turns on a device with room for three.
///
/// # Errors
/// If nothing moved.
fn bandwidth() -> Result<()> {
    type B = Offload<Inner>;
    let device = Device::default();
    // Fusion would join several additions.
    let config = OffloadConfig::new().device_budget(BANDWIDTH_BUDGET.parse()?).max_bindings(3);
    config.install::<Inner>(&device)?;
    let mut tensors: Vec<_> = (0..8).map(|n| Tensor::<B, 2>::full([8192, 8192], n as f32, &device)).collect();

    for _ in 0..3 {
        tensors = tensors.into_iter().map(|tensor| tensor + 1.0).collect();
        B::sync(&device)?;
    }

    let stats = stats::<Inner>(&device);
    ensure!(stats.bytes_out > 0 && stats.bytes_in > 0, "no tensor moved: {stats}");
    let (out, back) = (stats.bytes_out as f64, stats.bytes_in as f64);
    let gigabytes_per_second = (out + back) / stats.stall.as_secs_f64() / 1e9;
    println!(
        "{}",
        json!({ "bandwidth": { "gigabytes_per_second": gigabytes_per_second, "stats": counters() } })
    );
    Ok(())
}
