//! The README's picture: a step of the toy under a third of its memory, and losses with and without a limit.
//!
//! Drawn over operations: no clock changes it, and `--check` compares bytes.

use std::{
    env::consts::EXE_SUFFIX,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;
use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

use crate::records::{
    bytes::Bytes,
    svg::{At, Canvas},
};

const PICTURE: &str = "docs/spill.svg";
const STEPS: usize = 60;
const BUDGET: &str = "16MiB";

const LEFT: f64 = 78.0;
const WIDTH: f64 = 380.0;
/// Tops and heights.
const MEMORY: (f64, f64) = (64.0, 150.0);
const BANDS: (f64, f64) = (246.0, 24.0);
const LOSSES: (f64, f64) = (356.0, 130.0);
const SIZE: (f64, f64) = (480.0, 520.0);
const PARTS: usize = 190;
/// Steps between dots.
const DOT_EVERY: usize = 3;

#[derive(Args)]
pub(crate) struct Picture {
    /// Only check that the committed picture is what two runs draw
    #[arg(long)]
    check: bool,
    /// A trainer, instead of building one
    #[arg(long, value_name = "FILE")]
    trainer: Option<PathBuf>,
}

impl Picture {
    pub(crate) fn run(self) -> Result<()> {
        let target = Workspace::read()?.target;
        let trainer = match self.trainer {
            Some(trainer) => trainer,
            None => build(&target)?,
        };
        let drawn = draw(&trainer, &target.join("picture-scratch"))?;

        let path = workspace::root().join(PICTURE);
        if self.check {
            let committed = fs::read_to_string(&path).with_context(|| format!("{PICTURE} is missing"))?;
            ensure!(
                committed == drawn,
                "{PICTURE} is not what the runs draw; `cargo xtask picture` draws it anew"
            );
            println!("{PICTURE} is what two runs of {STEPS} steps draw");
            return Ok(());
        }
        fs::write(&path, drawn).with_context(|| format!("writing {PICTURE}"))?;
        println!("{PICTURE} is drawn from two runs of {STEPS} steps");
        Ok(())
    }
}

fn build(target: &Path) -> Result<PathBuf> {
    Invocation::cargo("build --release --package train").run(workspace::root())?;
    Ok(target.join("release").join(format!("train{EXE_SUFFIX}")))
}

/// The picture of two runs, which leave their folders in `scratch`.
fn draw(trainer: &Path, scratch: &Path) -> Result<String> {
    let [limited, unlimited] =
        [BUDGET, "unlimited"].map(|budget| Run::train(trainer, budget, &scratch.join(budget)));
    svg(&limited?, &unlimited?)
}

#[derive(Debug, Clone, PartialEq)]
struct Run {
    losses: Vec<f64>,
    peak: u64,
    budget: Option<u64>,
    /// Bytes on the device, copied out, copied in.
    step: Vec<[u64; 3]>,
}

impl Run {
    fn train(trainer: &Path, budget: &str, folder: &Path) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
        }
        let settings = [
            format!("train.steps={STEPS}"),
            format!("memory.device_budget={budget}"),
            "eval.every=0".to_owned(),
            "eval.sample_every=0".to_owned(),
            "eval.quiz=0".to_owned(),
        ];
        let trainer = Invocation::new(trainer.to_string_lossy())
            .arguments(["run", "--config", "toy", "--device", "cpu", "--out"])
            .arguments([folder.to_string_lossy()])
            .arguments(settings.iter().flat_map(|setting| ["--set", setting]));
        println!("$ {trainer}");
        // Its summary would run into the lines of a test's program.
        trainer.output(workspace::root())?;
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        Self::parse(&read("metrics.jsonl")?, &read("summary.json")?)
    }

    fn parse(journal: &str, summary: &str) -> Result<Self> {
        let lines = journal.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
        let lines = lines.context("the trainer's journal is no JSON")?;
        let of_kind = |kind: &'static str| lines.iter().filter(move |line| line["kind"] == kind);
        let losses: Vec<f64> = of_kind("step").filter_map(|step| step["loss"].as_f64()).collect();
        ensure!(losses.len() > 1, "the trainer's journal has {} losses", losses.len());

        // A run that moves nothing has none.
        let timeline = of_kind("timeline").next().unwrap_or(&Value::Null);
        let numbers = |key: &str| -> Vec<u64> {
            timeline[key].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
        };
        let [resident, out, back] = ["resident", "bytes_out", "bytes_in"].map(numbers);
        let step =
            resident.into_iter().zip(out).zip(back).map(|((held, out), back)| [held, out, back]).collect();
        let summary: Value = serde_json::from_str(summary).context("the trainer's summary is no JSON")?;
        let peak = summary["peak_device_bytes"].as_u64().context("the summary has no peak")?;
        Ok(Self { losses, peak, budget: timeline["device_budget"].as_u64(), step })
    }
}

fn svg(limited: &Run, unlimited: &Run) -> Result<String> {
    ensure!(
        limited.losses == unlimited.losses,
        "the runs have other losses, so the picture would not be true"
    );
    let budget = limited.budget.context("the limited run has no budget")?;
    ensure!(!limited.step.is_empty(), "the limited run's journal has no timeline");

    let title =
        format!("The toy trains with {} in {}, with the same losses", Bytes(unlimited.peak), Bytes(budget));
    let mut canvas = Canvas::new(SIZE.0, SIZE.1, &title);
    canvas.text("title", (LEFT, 24.0), "One step: bytes on the device");
    let most = unlimited.peak.max(limited.peak) as f64;
    let level = |bytes: u64| MEMORY.0 + MEMORY.1 * (1.0 - bytes as f64 / most);
    for (bytes, said) in [(unlimited.peak, "without a limit"), (budget, "budget")] {
        canvas.line("limit", (LEFT, level(bytes)), (LEFT + WIDTH, level(bytes)));
        canvas.text("y", (LEFT - 8.0, level(bytes) + 4.0), &Bytes(bytes).to_string());
        canvas.text("", (LEFT + 4.0, level(bytes) - 6.0), said);
    }
    canvas.line("grid", (LEFT, level(0)), (LEFT + WIDTH, level(0)));
    let held = parts(&limited.step, 0, u64::max);
    let at = |n: usize| LEFT + WIDTH * n as f64 / (PARTS - 1) as f64;
    let levels: Vec<At> = held.iter().enumerate().map(|(n, bytes)| (at(n), level(*bytes))).collect();
    canvas.path("line c2", &levels);

    for (n, (said, which, colour)) in [("to RAM", 1, "c1"), ("back", 2, "c0")].into_iter().enumerate() {
        let moved = parts(&limited.step, which, |sum, bytes| sum + bytes);
        let top = moved.iter().copied().max().unwrap_or_default().max(1) as f64;
        let floor = BANDS.0 + BANDS.1 + (BANDS.1 + 12.0) * n as f64;
        canvas.text("y", (LEFT - 8.0, floor - 8.0), said);
        canvas.line("grid", (LEFT, floor), (LEFT + WIDTH, floor));
        let bars = moved.iter().enumerate().map(|(n, bytes)| (at(n), floor - BANDS.1 * *bytes as f64 / top));
        canvas.path(&format!("line {colour}"), &bars.collect::<Vec<At>>());
    }

    let (losses, last) = (&unlimited.losses, unlimited.losses.len() - 1);
    let highest = losses.iter().copied().fold(0.0, f64::max);
    let point =
        |n: usize| (LEFT + WIDTH * n as f64 / last as f64, LOSSES.0 + LOSSES.1 * (1.0 - losses[n] / highest));
    canvas.text("title", (LEFT, LOSSES.0 - 12.0), &format!("Losses of {} steps", losses.len()));
    canvas.line("grid", (LEFT, LOSSES.0 + LOSSES.1), (LEFT + WIDTH, LOSSES.0 + LOSSES.1));
    canvas.text("y", (LEFT - 8.0, LOSSES.0 + 8.0), &format!("{highest:.1}"));
    canvas.text("y", (LEFT - 8.0, LOSSES.0 + LOSSES.1 + 4.0), "0");
    canvas.path("line c0", &(0..=last).map(point).collect::<Vec<At>>());
    for n in (0..=last).step_by(DOT_EVERY) {
        canvas.dot("c1", point(n), &format!("step {}: {:.4} in both runs", n + 1, losses[n]));
    }
    let legend = LOSSES.0 + LOSSES.1 + 24.0;
    canvas.text("", (LEFT, legend), &format!("line: without a limit; dots: in {}", Bytes(budget)));
    Ok(canvas.finish())
}

fn parts(step: &[[u64; 3]], kind: usize, joined: impl Fn(u64, u64) -> u64) -> Vec<u64> {
    let mut parts = vec![0; PARTS];
    for (n, stretch) in step.iter().enumerate() {
        let part = &mut parts[n * PARTS / step.len()];
        *part = joined(*part, stretch[kind]);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(losses: [f64; 2]) -> Run {
        let journal = format!(
            "{}\n{}\n{}\n",
            serde_json::json!({ "kind": "step", "loss": losses[0] }),
            serde_json::json!({ "kind": "timeline", "device_budget": 5, "resident": [4, 5, 3], "bytes_out": [0, 2, 1],
                                "bytes_in": [1, 0, 0] }),
            serde_json::json!({ "kind": "step", "loss": losses[1] }),
        );
        Run::parse(&journal, r#"{"peak_device_bytes": 5}"#).expect("as the trainer writes it")
    }

    #[test]
    fn a_journal_gives_the_losses_and_the_step() {
        let read = run([6.0, 3.0]);
        assert_eq!((&read.losses[..], read.peak, read.budget), (&[6.0, 3.0][..], 5, Some(5)));
        assert_eq!(read.step, [[4, 0, 1], [5, 2, 0], [3, 1, 0]]);
    }

    #[test]
    fn other_losses_are_not_drawn() {
        let drawn = svg(&run([6.0, 3.0]), &Run { peak: 9, ..run([6.0, 3.0]) }).expect("drawn");
        for part in ["The toy trains with 9 B in 5 B", "without a limit", "step 1: 6.0000 in both runs"] {
            assert!(drawn.contains(part), "{part} is missing from {drawn}");
        }
        let error = svg(&run([6.0, 3.0]), &run([6.0, 3.1])).expect_err("they differ").to_string();
        assert!(error.contains("would not be true"), "{error}");
    }

    #[test]
    fn parts_keep_the_sum_and_the_maximum_of_their_stretches() {
        let step: Vec<_> = (0..2 * PARTS as u64 + 7).map(|n| [n, 1, 0]).collect();
        assert_eq!(parts(&step, 1, |sum, bytes| sum + bytes).iter().sum::<u64>(), step.len() as u64);
        assert_eq!(parts(&step, 0, u64::max).last(), Some(&(step.len() as u64 - 1)));
    }

    /// Bytes are the same on every processor. Losses are rounded differently: a point may lie two units away, about 0.1
    /// in the loss.
    fn is_near(committed: &str, drawn: &str) -> bool {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let numbers = |line: &str| -> Vec<f64> {
            line.split(|c: char| !is_number(c)).filter_map(|number| number.parse().ok()).collect()
        };
        let are_near = |one: &str, other: &str| {
            let (ones, others) = (numbers(one), numbers(other));
            let near = ones.iter().zip(&others).all(|(one, other)| (one - other).abs() <= 2.0);
            near && ones.len() == others.len() && one.replace(is_number, "") == other.replace(is_number, "")
        };
        let bytes = committed.lines().take_while(|line| !line.contains("Losses of")).count();
        let mut pairs = committed.lines().zip(drawn.lines()).enumerate();
        committed.lines().count() == drawn.lines().count()
            && pairs.all(|(n, (one, other))| one == other || n > bytes && are_near(one, other))
    }

    #[test]
    fn a_picture_of_other_bytes_or_distant_losses_is_not_near() {
        let drawn = |peak: u64, last: f64| svg(&run([6.0, last]), &Run { peak, ..run([6.0, last]) }).unwrap();
        let committed = drawn(9, 3.0);
        assert!(is_near(&committed, &committed) && is_near(&committed, &drawn(9, 3.05)));
        assert!(!is_near(&committed, &drawn(9, 3.5)) && !is_near(&committed, &drawn(10, 3.0)));
        assert!(!is_near(&committed, &committed.replace("</svg>\n", "")));
    }

    mod full {
        use super::*;

        #[test]
        #[ignore = "full: compiles the trainer and runs it twice"]
        fn the_committed_picture_is_near_what_two_runs_draw() {
            let target = Workspace::read().unwrap().target;
            let drawn = draw(&build(&target).unwrap(), &target.join("picture-test")).unwrap();
            let committed = fs::read_to_string(workspace::root().join(PICTURE)).unwrap();
            assert!(is_near(&committed, &drawn), "{PICTURE} is stale, `cargo xtask picture` draws:\n{drawn}");
        }
    }
}
