//! The trainer as a program: a peak belongs to a process.

use std::{
    env::consts::EXE_SUFFIX,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use pager::Recording;
use serde_json::Value;

use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

use crate::process::{self, Ended};

use super::{
    budget::Limit,
    cell::Outcome,
    energy::{Gpu, Meter},
    simulation,
    suite::Model,
    summary::Summary,
};

pub(crate) struct Trainer {
    /// Its commit, if known.
    pub(crate) origin: String,
    program: Invocation,
    device: String,
    /// Lies on the build's disk: temporary folders may lie in the measured host memory.
    scratch: PathBuf,
    gpu: Option<Gpu>,
}

/// Enough to find one that repeats.
const RECORDED: &str = "train.steps=4";

const RUN: &str = "run";

/// They would override settings or cost time.
const WITHHELD: [&str; 3] = ["OFFLOAD_DEVICE_BUDGET", "OFFLOAD_HOST_BUDGET", "OFFLOAD_PARANOID"];

impl Trainer {
    pub(crate) fn get(given: Option<&Path>, device: &str) -> Result<Self> {
        let (binary, origin, folder) = if let Some(path) = given {
            let missing = || format!("there is no trainer at {}", path.display());
            let binary = path.canonicalize().with_context(missing)?;
            let folder = binary.parent().unwrap_or(Path::new(".")).to_owned();
            let origin =
                commit_of_carried(&folder).unwrap_or_else(|| "with a trainer built elsewhere".to_owned());
            (binary, origin, folder)
        } else {
            let target = Workspace::read()?.target;
            let commit = workspace::commit()?;
            (build(&target, device)?, format!("built at commit {commit}"), target)
        };
        Ok(Self::new(
            Invocation::new(binary.to_string_lossy()),
            origin,
            device,
            folder.join("bench-vram-scratch"),
        ))
    }

    fn new(program: Invocation, origin: String, device: &str, scratch: PathBuf) -> Self {
        Self { origin, program: program.withhold(&WITHHELD), device: device.to_owned(), scratch, gpu: None }
    }

    pub(crate) fn launched(&self, by: impl FnOnce(&[String]) -> Result<Invocation>) -> Result<Self> {
        let program = by(&self.program.argv())?;
        Ok(Self::new(program, self.origin.clone(), &self.device, self.scratch.clone()))
    }

    pub(crate) fn timed(&self, model: &Model, time: Duration) -> Result<Timed> {
        self.in_scratch(|scratch| match self.run(self.program.clone(), model, None, &[], scratch, time)? {
            Outcome::Fits(run) => {
                let journal = fs::read_to_string(scratch.join(RUN).join("metrics.jsonl"));
                let fastest = fastest_step(&journal.context("reading the trainer's journal")?)?;
                Ok(Timed { parameters: run.parameters, step_seconds: fastest, weights: run.weights_sha256 })
            }
            other => bail!("{} {}: {}", model.name, other.name(), other.reason().unwrap_or_default()),
        })
    }

    pub(super) fn with_energy(self, gpu: Option<Gpu>) -> Self {
        Self { gpu, ..self }
    }

    pub(super) fn train(
        &self,
        model: &Model,
        limit: Limit,
        further: &[String],
        time: Duration,
    ) -> Result<Outcome> {
        self.in_scratch(|scratch| self.run(self.program.clone(), model, limit, further, scratch, time))
    }

    pub(super) fn record(
        &self,
        model: &Model,
        limit: Limit,
        further: &[String],
        time: Duration,
    ) -> Result<Recording> {
        self.in_scratch(|scratch| {
            let trace = scratch.join("trace");
            let program = self.program.clone().environment("OFFLOAD_TRACE", trace.to_string_lossy());
            let further = [further, &[RECORDED.to_owned()]].concat();
            match self.run(program, model, limit, &further, scratch, time)? {
                Outcome::Fits(_) => simulation::read(&trace),
                other => bail!("{}: {}", other.name(), other.reason().unwrap_or_default()),
            }
        })
    }

    /// Removes the folder afterwards.
    pub(super) fn in_scratch<T>(&self, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        // Two benchmarks may run at once.
        let scratch = self.scratch.join(std::process::id().to_string());
        fs::create_dir_all(&scratch).with_context(|| format!("{} could not be made", scratch.display()))?;
        let done = work(&scratch);
        fs::remove_dir_all(&scratch)
            .with_context(|| format!("{} could not be removed", scratch.display()))?;
        done
    }

    fn run(
        &self,
        program: Invocation,
        model: &Model,
        limit: Limit,
        further: &[String],
        scratch: &Path,
        time: Duration,
    ) -> Result<Outcome> {
        let budget = limit.map_or_else(|| UNLIMITED.to_owned(), |bytes| format!("{bytes}B"));
        let run = scratch.join(RUN).to_string_lossy().into_owned();
        let program = program.arguments(arguments(model, &self.device, &budget, further, &run));
        let program = program.arguments(["--log-every", "1"]);
        let mut meter = Meter::default();
        let look = |said: &Path| {
            if let Some(gpu) = &self.gpu {
                meter.look(said, || gpu.joules().ok());
            }
        };
        let mut outcome = judge(&process::run_watched(&program, "train", scratch, time, look)?, time, &run);
        if let Outcome::Fits(summary) = &mut outcome {
            let per_step = summary.tokens as f64 / summary.steps.max(1) as f64;
            summary.joules_per_kilotoken = meter.per_kilotoken(per_step);
        }
        Ok(outcome)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Timed {
    pub(crate) parameters: u64,
    /// Fastest: other load only adds time.
    pub(crate) step_seconds: f64,
    pub(crate) weights: String,
}

pub(crate) fn unlimited_arguments(model: &Model, device: &str) -> Vec<String> {
    arguments(model, device, UNLIMITED, &[], "DIR")
}

const UNLIMITED: &str = "unlimited";

pub(super) fn shown(model: &Model, device: &str) -> String {
    Invocation::new("train").arguments(arguments(model, device, "BUDGET", &[], "DIR")).to_string()
}

fn arguments(model: &Model, device: &str, budget: &str, further: &[String], run: &str) -> Vec<String> {
    let settings = model.settings.iter().chain(further).cloned();
    let settings = settings.chain([format!("memory.device_budget={budget}")]);
    let fixed = ["run", "--config", &model.config, "--device", device, "--out", run, "--json"];
    fixed
        .map(str::to_owned)
        .into_iter()
        .chain(settings.flat_map(|setting| ["--set".to_owned(), setting]))
        .collect()
}

fn commit_of_carried(folder: &Path) -> Option<String> {
    let commit = fs::read_to_string(folder.join("commit")).ok()?;
    Some(format!("built by `cargo xtask gpu-check` at commit {}", commit.trim()))
}

fn build(target: &Path, device: &str) -> Result<PathBuf> {
    let build = Invocation::cargo("build --release --package train");
    let feature = (device == "vulkan").then_some(["--features", "vulkan"]);
    build.arguments(feature.into_iter().flatten()).run(workspace::root())?;
    Ok(target.join("release").join(format!("train{EXE_SUFFIX}")))
}

/// The plan's refusal; other exits with code 2 are bad input.
const PLAN_REFUSES: &str = "this run cannot work here";

fn judge(ended: &Ended, time: Duration, run: &str) -> Outcome {
    let complaint = ended.complaint.replace(run, "DIR");
    let Some(status) = ended.status else {
        return Outcome::OutOfTime(format!("stopped after {} s", time.as_secs()));
    };
    match status.code() {
        Some(0) => match finished(&ended.printed) {
            Ok(summary) => Outcome::Fits(Box::new(summary)),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        },
        Some(1) => Outcome::DoesNotFit(complaint),
        Some(2) if complaint.starts_with(PLAN_REFUSES) => Outcome::DoesNotFit(complaint),
        Some(_) => Outcome::Failed(format!("{status}: {complaint}")),
        None => Outcome::Killed(status.to_string()),
    }
}

fn fastest_step(journal: &str) -> Result<f64> {
    let lines = journal.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    let lines = lines.context("the trainer's journal is no JSON")?;
    let steps = lines.iter().filter(|line| line["kind"] == "step").filter_map(|line| line["ms"].as_f64());
    Ok(steps.min_by(f64::total_cmp).context("the trainer's journal has no step")? / 1e3)
}

fn finished(printed: &str) -> Result<Summary> {
    let said: Value = serde_json::from_str(printed.trim()).context("it printed no JSON")?;
    anyhow::ensure!(said["outcome"] == "done", "its outcome is {}, not \"done\"", said["outcome"]);
    Summary::parse(printed)
}

#[cfg(all(test, unix))]
pub(super) mod tests {
    use serde_json::json;

    use super::{super::summary::tests::PRINTED, *};

    pub(in super::super) struct StandIn {
        pub(in super::super) trainer: Trainer,
        pub(in super::super) folder: PathBuf,
    }

    impl StandIn {
        pub(in super::super) fn new(test: &str, script: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("bench-vram-{test}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join("train.sh");
            fs::write(&path, script).unwrap();
            let program = Invocation::new("sh").arguments([path.to_string_lossy()]);
            Self { trainer: Trainer::new(program, String::new(), "cpu", folder.join("scratch")), folder }
        }
    }

    impl Drop for StandIn {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.folder).unwrap();
        }
    }

    pub(in super::super) fn toy() -> Model {
        Model { name: "toy".into(), config: "toy".into(), settings: vec!["train.steps=2".into()] }
    }

    fn outcome(test: &str, script: &str) -> Outcome {
        let stand_in = StandIn::new(test, script);
        stand_in.trainer.train(&toy(), Some(4096), &[], Duration::from_mins(1)).unwrap()
    }

    fn finishing(printed: &str) -> String {
        format!("echo 'step 1' >&2\ncat <<'END'\n{printed}\nEND\n")
    }

    #[test]
    fn a_finished_run_yields_its_summary() {
        let outcome = outcome("finished", &finishing(PRINTED));
        assert_eq!(outcome.summary().map(|run| run.steps), Some(10));
    }

    #[test]
    fn exit_code_1_means_it_does_not_fit() {
        let script = "echo 'step 1' >&2\necho \"train: step 1 in $7: no room\" >&2\nexit 1\n";
        assert_eq!(outcome("no-room", script), Outcome::DoesNotFit("step 1 in DIR: no room".to_owned()));
    }

    #[test]
    fn a_refusing_plan_means_it_does_not_fit() {
        let script = "printf 'train: this run cannot work here:\\n  too large\\n  no disk\\n' >&2\nexit 2\n";
        let refused = "this run cannot work here: too large no disk".to_owned();
        assert_eq!(outcome("refused", script), Outcome::DoesNotFit(refused));
    }

    #[test]
    fn other_exits_say_nothing_about_memory() {
        let failed = |test, script: &str| match outcome(test, script) {
            Outcome::Failed(reason) => reason,
            other => panic!("{other:?}"),
        };
        let bad_input = failed("bad-input", "echo 'train: unknown key' >&2; exit 2");
        assert_eq!(bad_input, "exit status: 2: unknown key");
        assert!(failed("silent", "exit 0").starts_with("it printed no JSON"));
        assert!(failed("cut-off", "echo '{\"outcome\": '").starts_with("it printed no JSON"));
        let stopped = failed("stopped", &finishing(&PRINTED.replace("\"done\"", "\"interrupted\"")));
        assert_eq!(stopped, "its outcome is \"interrupted\", not \"done\"");
        let other = failed("other-json", &finishing("{\"outcome\": \"done\"}"));
        assert!(other.contains("missing field"), "{other}");
    }

    #[test]
    fn a_signal_is_named() {
        let Outcome::Killed(reason) = outcome("killed", "kill -9 $$") else { panic!("it was killed") };
        assert!(reason.contains('9'), "{reason}");
    }

    #[test]
    fn a_run_is_stopped_at_its_limit_even_if_its_children_go_on_and_it_prints_endlessly() {
        let script = "sleep 30 &\nwhile :; do echo still here; echo still here >&2; sleep 0.01; done";
        let stand_in = StandIn::new("endless", script);
        let outcome = stand_in.trainer.train(&toy(), None, &[], Duration::from_millis(200)).unwrap();
        assert!(matches!(outcome, Outcome::OutOfTime(_)), "{outcome:?}");
    }

    #[test]
    fn a_cell_leaves_no_files_behind() {
        let stand_in =
            StandIn::new("files", &format!("mkdir -p $7; echo weights > $7/model\n{}", finishing(PRINTED)));
        let outcome = stand_in.trainer.train(&toy(), None, &[], Duration::from_mins(1)).unwrap();
        assert!(outcome.summary().is_some(), "{outcome:?}");
        assert_eq!(fs::read_dir(stand_in.folder.join("scratch")).unwrap().count(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_run_reports_the_energy_between_its_first_and_last_step() {
        let folder = super::super::energy::tests::Folder::new("trainer");
        let Some(library) = folder.library(1, 0) else { return };
        let read = folder.0.join("read").display().to_string();
        let step = |number: u32| {
            format!(
                "rm -f {read}; echo 'step 0000{number}/00003 | loss 2' >&2; while [ ! -e {read} ]; do sleep 0.02; done\n"
            )
        };
        let mut stand_in = StandIn::new("energy", &[step(1), step(3), finishing(PRINTED)].concat());
        stand_in.trainer.gpu = Some(Gpu::open(&library).unwrap());
        let outcome = stand_in.trainer.train(&toy(), None, &[], Duration::from_mins(1)).unwrap();
        // One joule for two steps of 1,024 tokens.
        let joules = outcome.summary().and_then(|run| run.joules_per_kilotoken);
        assert!(joules.is_some_and(|joules| (joules - 1e3 / 2048.0).abs() < 1e-9), "{outcome:?}");
    }

    #[test]
    fn the_trainer_gets_model_device_changes_and_budget() {
        let further = ["model.n_layer=3".to_owned()];
        let words = arguments(&toy(), "cpu", "4096B", &further, "DIR").join(" ");
        assert_eq!(
            words,
            "run --config toy --device cpu --out DIR --json --set train.steps=2 --set model.n_layer=3 \
             --set memory.device_budget=4096B"
        );
    }

    #[test]
    fn a_launcher_starts_the_trainer_with_the_same_arguments() {
        let script = finishing(&PRINTED.replace("\"bb\"", "\"$3 $LAUNCHED\"")).replace("'END'", "END");
        let steps = [420.0, 350.5, 351.0].map(|ms| json!({"kind": "step", "ms": ms}).to_string()).join("\n");
        let journal = format!(
            "mkdir \"$7\"\ncat > \"$7/metrics.jsonl\" <<'END'\n{{\"kind\": \"start\"}}\n{steps}\nEND\n"
        );
        let stand_in = StandIn::new("launched", &(journal + &script));
        let launched = stand_in.trainer.launched(|words| {
            let front = Invocation::new("sh").arguments(["-c", "LAUNCHED=yes exec \"$@\"", "sh"]);
            Ok(front.arguments(words.iter().cloned()))
        });
        let timed = launched.unwrap().timed(&toy(), Duration::from_mins(1)).unwrap();
        let expected = Timed { parameters: 1_200_000, step_seconds: 0.3505, weights: "toy yes".to_owned() };
        assert_eq!(timed, expected);
    }

    #[test]
    fn a_run_that_does_not_fit_gives_its_reason_instead_of_a_speed() {
        let stand_in = StandIn::new("no-speed", "echo 'train: no room' >&2\nexit 1\n");
        let error = stand_in.trainer.timed(&toy(), Duration::from_mins(1)).unwrap_err();
        assert_eq!(error.to_string(), "toy does not fit: no room");
    }

    #[test]
    fn a_program_that_is_missing_is_an_error_that_names_it() {
        let error = Trainer::get(Some(Path::new("no/such/train")), "cpu").err().unwrap();
        assert_eq!(error.to_string(), "there is no trainer at no/such/train");
    }
}
