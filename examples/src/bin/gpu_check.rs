//! Checks whether spilling changes a number on this GPU, and its cost. The target needs no compiler.
//!
//! ```sh
//! cargo xtask gpu-check          # builds this and says where to carry it
//! gpu_check --budgets 100%,50%,25%,floor --json --seconds 240
//! ```
//!
//! `gpu_check tune` chooses kernels beforehand: on the stand-in for CUDA that takes a fraction of the time if its values
//! may be wrong (`STAND_IN_HASTE`).
//!
//! Each program runs twice on the plain backend, to see whether it is deterministic, and twice offloaded without a budget;
//! a step's time is the faster run's. On the stand-in the latter runs once. Then it runs under shares of its own peak and at
//! the floor: its largest launch, with a twentieth for what a launch needs besides its operands. Last, all programs run "in
//! line", without overlap, under the budgets that made them move bytes. Each run is a process; runs that would begin after
//! `--seconds` are left out, with the verdict `skipped`.
//!
//! Standard output is JSON lines; the last one holds the copy bandwidth. A failed part leaves a line with the verdict
//! `fail` and its error, later parts run nevertheless, and the exit code is 1.

#[expect(dead_code, reason = "the tests of backend-offload use all of it")]
#[path = "../../../backend-offload/tests/it/numbers.rs"]
mod numbers;
#[expect(dead_code, reason = "the tests of backend-offload use all of it")]
#[path = "../../../backend-offload/tests/it/programs/mod.rs"]
mod programs;

use anyhow::{Context, Result, bail, ensure};
use backend_offload::{Budget, Offload, OffloadConfig, Stats, stats};
use burn::backend::Autodiff;
use burn::prelude::*;
use examples::{Device, Inner};
use programs::{Run, Size, programs};
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

/// Steps that compile and tune kernels; counters have them, too.
const WARM_UP: usize = 2;

const STEPS: usize = 20;

/// Room for three tensors of [`bandwidth`].
const BANDWIDTH_BUDGET: &str = "800MiB";

type Spilling = Offload<Inner>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["run", program, budget] => run(program, budget, STEPS),
        ["tune", program, budget] => run(program, budget, 0),
        ["tune"] => tune(),
        ["bandwidth"] => bandwidth(),
        ["--budgets", budgets, "--json"] => check(budgets, None),
        ["--budgets", budgets, "--json", "--seconds", seconds] => check(budgets, Some(seconds.parse()?)),
        _ => bail!("usage: gpu_check --budgets 100%,50%,25%,floor --json [--seconds N]"),
    }
}

fn check(budgets: &str, seconds: Option<u64>) -> Result<()> {
    let budgets: Vec<Asked> = budgets.split(',').map(Asked::parse).collect::<Result<_>>()?;
    let mut check = Check { begun: Instant::now(), seconds, passed: true };
    let programs = programs::<Autodiff<Spilling>>().map(|program| program.name);
    let spilled = programs.map(|name| check.overlapped(name, &budgets));
    for program in spilled {
        check.in_line(&program);
    }

    let bandwidth = child(&["bandwidth"], &[]);
    if bandwidth["error"].is_null() {
        println!("{bandwidth}");
    } else {
        check.passed = false;
        let error = &bandwidth["error"];
        println!(
            "{}",
            json!({ "program": "bandwidth", "budget": BANDWIDTH_BUDGET, "verdict": "fail", "error": error })
        );
    }

    ensure!(check.passed, "at least one check failed");
    Ok(())
}

#[derive(Clone, Copy)]
enum Asked {
    /// Of the program's own peak, but at least the floor.
    Share(f64),
    Floor,
}

impl Asked {
    fn parse(text: &str) -> Result<Self> {
        if text == "floor" {
            return Ok(Self::Floor);
        }
        match text.parse()? {
            Budget::Share(share) => Ok(Self::Share(share)),
            other => bail!("budgets are `floor` and shares of a program's own peak, such as 50%: {other}"),
        }
    }

    fn title(self) -> String {
        match self {
            Self::Share(share) => format!("{}%", share * 100.0),
            Self::Floor => "floor".to_owned(),
        }
    }

    fn bytes(self, peak: u64, largest_launch: u64) -> u64 {
        let floor = largest_launch + largest_launch / 20;
        match self {
            Self::Share(share) => ((peak as f64 * share) as u64).max(floor),
            Self::Floor => floor,
        }
    }
}

struct Check {
    begun: Instant,
    /// Later runs are left out.
    seconds: Option<u64>,
    passed: bool,
}

/// The run that others must equal.
struct Reference {
    run: Value,
    is_deterministic: bool,
}

struct Spilled {
    name: &'static str,
    plain: Reference,
    /// Budgets under which bytes moved.
    budgets: Vec<(String, u64)>,
}

impl Check {
    fn overlapped(&mut self, name: &'static str, budgets: &[Asked]) -> Spilled {
        let [plain, again] = [(); 2].map(|()| self.child(&["run", name, "plain"], &[]));
        let is_deterministic = same(&plain, &again, "losses") && same(&plain, &again, "weights");
        let plain = Reference { run: faster(plain, &again), is_deterministic };
        self.report(name, "plain", &plain.run, &Reference { run: again, is_deterministic }, true);

        let unlimited = self.unlimited(name);
        let passed_through = unlimited["stats"]["bytes_out"] == 0 && unlimited["stats"]["bytes_in"] == 0;
        self.report(name, "unlimited", &unlimited, &plain, passed_through);

        let counted = |name: &str| unlimited["stats"][name].as_u64();
        let sizes = counted("device_peak").zip(counted("largest_launch"));
        let mut moved: Vec<(String, u64)> = Vec::new();
        let mut latest: Option<(u64, Value)> = None;
        for budget in budgets {
            let title = budget.title();
            let Some((peak, largest_launch)) = sizes else {
                let skipped = skipped("the run without a budget left no peak");
                self.report(name, &title, &skipped, &plain, false);
                continue;
            };

            let bytes = budget.bytes(peak, largest_launch);
            let known = latest.filter(|(before, _)| *before == bytes).map(|(_, run)| run);
            let is_known = known.is_some();
            let mut run = known.unwrap_or_else(|| self.child(&["run", name, &bytes.to_string()], &[]));
            run["budget_bytes"] = json!(bytes);
            let kept = run["stats"]["device_peak_reserved"].as_u64().is_some_and(|held| held <= bytes);
            self.report(name, &title, &run, &plain, kept);
            let bytes_moved = ["bytes_out", "bytes_in"].map(|name| run["stats"][name].as_u64().unwrap_or(0));
            if !is_known && bytes_moved != [0, 0] {
                moved.push((title, bytes));
            }
            latest = Some((bytes, run));
        }
        Spilled { name, plain, budgets: moved }
    }

    /// Twice, as plain, where times mean something.
    fn unlimited(&self, name: &str) -> Value {
        let run = || self.child(&["run", name, "unlimited"], &[]);
        let first = run();
        if std::env::var_os("STAND_IN_CACHE").is_some() { first } else { faster(first, &run()) }
    }

    fn in_line(&mut self, program: &Spilled) {
        for (title, bytes) in &program.budgets {
            let budget = bytes.to_string();
            let mut run = self.child(&["run", program.name, &budget], &[("OFFLOAD_OVERLAP", "0")]);
            run["budget_bytes"] = json!(bytes);
            self.report(program.name, &format!("{title} in line"), &run, &program.plain, true);
        }
    }

    fn child(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Value {
        match self.seconds {
            Some(seconds) if self.begun.elapsed() >= Duration::from_secs(seconds) => {
                skipped(&format!("the {seconds} s for all programs were used up"))
            }
            _ => child(arguments, environment),
        }
    }

    /// Bits must equal those of `reference` only on a deterministic backend.
    fn report(&mut self, name: &str, budget: &str, run: &Value, reference: &Reference, kept: bool) {
        let [losses, weights] = ["losses", "weights"].map(|what| same(run, &reference.run, what));
        let equal = !reference.is_deterministic || (losses && weights);
        let reason = if run["error"].is_null() { &run["skipped"] } else { &run["error"] };
        let verdict = if run["error"].is_null() && !run["skipped"].is_null() {
            "skipped"
        } else if reason.is_null() && kept && equal {
            "pass"
        } else {
            "fail"
        };
        self.passed &= verdict != "fail";
        let line = json!({
            "program": name,
            "budget": budget,
            "budget_bytes": run["budget_bytes"],
            "verdict": verdict,
            "deterministic": reference.is_deterministic,
            "losses_equal": losses,
            "weights_equal": weights,
            "seconds_per_step": run["seconds_per_step"],
            "seconds_per_step_each": run["seconds_per_step_each"],
            "launches_per_step": run["launches_per_step"],
            "stats": run["stats"],
            "error": reason,
        });
        println!("{line}");
    }
}

fn skipped(reason: &str) -> Value {
    json!({ "skipped": reason })
}

/// The first run with the faster one's time, since other work only adds time, and with the other's failure.
fn faster(mut first: Value, again: &Value) -> Value {
    let each = [&first, again].map(|run| run["seconds_per_step"].as_f64());
    first["seconds_per_step"] = json!(each.into_iter().flatten().reduce(f64::min));
    first["seconds_per_step_each"] = json!(each);
    for failure in ["error", "skipped"] {
        if first[failure].is_null() {
            first[failure] = again[failure].clone();
        }
    }
    first
}

/// Chooses kernels for later processes in this folder.
fn tune() -> Result<()> {
    for program in programs::<Autodiff<Spilling>>() {
        for budget in ["plain", "unlimited"] {
            let tuned = child(&["tune", program.name, budget], &[]);
            ensure!(tuned["error"].is_null(), "{} could not be tuned: {}", program.name, tuned["error"]);
        }
    }
    Ok(())
}

fn same(a: &Value, b: &Value, what: &str) -> bool {
    !a[what].is_null() && a[what] == b[what]
}

/// The object that the process printed, or its `error`: one process must not end the check.
fn child(arguments: &[&str], environment: &[(&str, &str)]) -> Value {
    printed(arguments, environment).unwrap_or_else(|error| json!({ "error": format!("{error:#}") }))
}

fn printed(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Value> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(arguments).envs(environment.iter().copied()).output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let run: Value = serde_json::from_str(text.lines().last().unwrap_or_default())
        .with_context(|| format!("{arguments:?} printed {text:?}"))?;
    ensure!(run.is_object(), "{arguments:?} printed no object: {text:?}");
    Ok(run)
}

fn run(program: &str, budget: &str, steps: usize) -> Result<()> {
    let device = Device::default();
    let (run, seconds) = if budget == "plain" {
        train::<Inner>(program, &device, steps)
    } else {
        // Fused kernels are cut alike at every budget.
        OffloadConfig::new().device_budget(budget.parse()?).max_bindings(16).install::<Inner>(&device)?;
        train::<Spilling>(program, &device, steps)
    };

    let weights: Vec<&Vec<u32>> = run.weights.iter().map(|(_, bits)| bits).collect();
    let mut line = json!({
        "losses": format!("{:016x}", hash(&run.losses)),
        "weights": format!("{:016x}", hash(weights.into_iter().flatten())),
        "seconds_per_step": seconds,
    });

    if budget != "plain" {
        let stats = stats::<Inner>(&device);
        line["launches_per_step"] = json!(stats.launches as f64 / (WARM_UP + steps) as f64);
        line["stats"] = counters(&stats);
    }
    println!("{line}");
    Ok(())
}

fn train<B: Backend>(program: &str, device: &B::Device, steps: usize) -> (Run, f64) {
    let program = programs::<Autodiff<B>>().into_iter().find(|p| p.name == program).expect("a program");
    (program.train)(device, Size::Usual, WARM_UP, 1);
    let start = Instant::now();
    let run = (program.train)(device, Size::Usual, steps, 1);
    (run, start.elapsed().as_secs_f64() / steps.max(1) as f64)
}

fn hash<'a>(bits: impl IntoIterator<Item = &'a u32>) -> u64 {
    bits.into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, bits| (hash ^ u64::from(*bits)).wrapping_mul(0x100_0000_01b3))
}

fn counters(stats: &Stats) -> Value {
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

/// Rounds of [`bandwidth`] that page-lock host memory and show the planner what repeats, and rounds that are timed.
const ROUNDS: [usize; 2] = [2, 3];

/// Eight tensors of 256 MiB take turns on a device with room for three. An addition takes a small part of a copy's time, so
/// the rate is over all time.
///
/// # Errors
/// If nothing moved.
fn bandwidth() -> Result<()> {
    let device = Device::default();
    // Fusion would join several additions.
    let config = OffloadConfig::new().device_budget(BANDWIDTH_BUDGET.parse()?).max_bindings(3);
    config.install::<Inner>(&device)?;
    let mut tensors: Vec<_> =
        (0..8).map(|n| Tensor::<Spilling, 2>::full([8192, 8192], n as f32, &device)).collect();

    let mut add = |rounds: usize| -> Result<Stats> {
        for _ in 0..rounds {
            tensors = std::mem::take(&mut tensors).into_iter().map(|tensor| tensor + 1.0).collect();
            Spilling::sync(&device)?;
        }
        Ok(stats::<Inner>(&device))
    };
    let [first, timed] = ROUNDS;
    let before = add(first)?;
    let begun = Instant::now();
    let moved = add(timed)?.since(&before);
    let seconds = begun.elapsed().as_secs_f64();

    ensure!(moved.bytes_out > 0 && moved.bytes_in > 0, "no tensor moved: {moved}");
    let bytes = moved.bytes_out + moved.bytes_in;
    let gigabytes_per_second = bytes as f64 / seconds / 1e9;
    println!(
        "{}",
        json!({ "bandwidth": {
            "bytes": bytes,
            "seconds": seconds,
            "gigabytes_per_second": gigabytes_per_second,
            "stats": counters(&moved),
        } })
    );
    Ok(())
}
