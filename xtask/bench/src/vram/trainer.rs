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

/// In the run's folder.
const JOURNAL: &str = "metrics.jsonl";

/// Variables of the adapter override settings, cost time or change what is measured.
const WITHHELD: &str = "OFFLOAD_";

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
        let program = program.withhold_all(WITHHELD);
        Self { origin, program, device: device.to_owned(), scratch, gpu: None }
    }

    pub(crate) fn launched(&self, by: impl FnOnce(&[String]) -> Result<Invocation>) -> Result<Self> {
        let program = by(&self.program.argv())?;
        Ok(Self::new(program, self.origin.clone(), &self.device, self.scratch.clone()))
    }

    pub(crate) fn timed(&self, model: &Model, time: Duration) -> Result<Timed> {
        self.in_scratch(|scratch| match self.run(self.program.clone(), model, None, &[], scratch, time)? {
            Outcome::Fits(run) => {
                let journal = fs::read_to_string(scratch.join(RUN).join(JOURNAL));
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
        let ended = process::run_watched(&program, "train", scratch, time, look)?;
        let mut outcome = judge(&ended, time, &run);
        if let Outcome::Fits(summary) = &mut outcome {
            let per_step = summary.tokens as f64 / summary.steps.max(1) as f64;
            summary.joules_per_kilotoken = meter.per_kilotoken(per_step);
            let journal = fs::read_to_string(Path::new(&run).join(JOURNAL)).unwrap_or_default();
            note_choices(summary, &journal, &ended.said);
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

/// In errors of missing memory, as the adapter prints them; other exits with code 1 say nothing about memory.
const MISSING_MEMORY: [&str; 5] = [
    "needs more device memory at once than the budget allows",
    "would push blocks to the host, whose budget is used up",
    "of host memory are wanted and",
    "was refused device memory by the driver although the budget allows it",
    "the device binds at most",
];

/// In errors of CUDA's driver.
const OUT_OF_MEMORY: &str = "out of memory";

fn lacks_memory(complaint: &str) -> bool {
    MISSING_MEMORY.iter().chain([&OUT_OF_MEMORY]).any(|said| complaint.contains(said))
}

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
        Some(1) if lacks_memory(&complaint) => Outcome::DoesNotFit(complaint),
        Some(2) if complaint.starts_with(PLAN_REFUSES) => Outcome::DoesNotFit(complaint),
        Some(_) => Outcome::Failed(format!("{status}: {complaint}")),
        None => Outcome::Killed(status.to_string()),
    }
}

/// The plan prints a group of micro-batches, and nothing of single ones.
fn note_choices(summary: &mut Summary, journal: &str, said: &str) {
    let mut lines = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    if let Some(start) = lines.find(|line| line["kind"] == "start") {
        summary.optimizer_on = start["optimizer_on"].as_str().map(str::to_owned);
        summary.device_blocks = start["device_blocks"].as_u64();
    }
    let before = said.split_once(TOGETHER).map(|(before, _)| before);
    summary.together = before.and_then(|before| before.rsplit(' ').next()?.parse().ok());
}

const TOGETHER: &str = " micro-batches together";

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

    pub(in super::super) const NO_ROOM: &str = "mul needs more device memory at once than the budget allows";

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
        let settings = vec!["train.steps=2".into()];
        Model { name: "toy".into(), shape: "toy".into(), config: "toy".into(), settings }
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
    fn exit_code_1_for_want_of_memory_means_it_does_not_fit() {
        let script = format!("echo 'step 1' >&2\necho \"train: step 1 in $7: {NO_ROOM}\" >&2\nexit 1\n");
        let reason = format!("step 1 in DIR: {NO_ROOM}");
        assert_eq!(outcome("no-room", &script), Outcome::DoesNotFit(reason));
    }

    #[test]
    fn errors_of_missing_memory_are_known_by_what_the_adapter_prints() {
        let page = workspace::root().join("docs/reference/errors.md");
        let page = fs::read_to_string(page).unwrap();
        for said in MISSING_MEMORY {
            assert!(page.contains(said), "`{said}` is in no message");
        }
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
        let other_error = failed("other-error", "echo 'train: writing model: No such file' >&2; exit 1");
        assert_eq!(other_error, "exit status: 1: writing model: No such file");
        assert!(failed("silent", "exit 0").starts_with("it printed no JSON"));
        assert!(failed("cut-off", "echo '{\"outcome\": '").starts_with("it printed no JSON"));
        let stopped = failed("stopped", &finishing(&PRINTED.replace("\"done\"", "\"interrupted\"")));
        assert_eq!(stopped, "its outcome is \"interrupted\", not \"done\"");
        let other = failed("other-json", &finishing("{\"outcome\": \"done\"}"));
        assert!(other.contains("missing field"), "{other}");
    }

    #[test]
    fn choices_of_the_plan_come_from_the_journal_and_the_printed_plan() {
        let mut run = Summary::parse(PRINTED).unwrap();
        let journal =
            "{\"kind\": \"start\", \"optimizer_on\": \"host\", \"device_blocks\": 3}\n{\"kind\": \"step\"}\n";
        note_choices(&mut run, journal, "tokens  8 per step (4 × 8 of 16, 4 micro-batches together), 9\n");
        let choices = (run.optimizer_on.as_deref(), run.device_blocks, run.together);
        assert_eq!(choices, (Some("host"), Some(3), Some(4)));
        note_choices(&mut run, "", "tokens  8 per step (8 of 16), 9\n");
        assert_eq!(run.together, None);
        let plan = fs::read_to_string(workspace::root().join("train/src/plan/table.rs")).unwrap();
        assert!(plan.contains(TOGETHER));
    }

    #[test]
    fn no_variable_of_the_adapter_reaches_the_trainer() {
        const NAME: &str = "OFFLOAD_OVERLAP";
        if std::env::var_os(NAME).is_none() {
            // Only another process can have it.
            let program = std::env::current_exe().unwrap();
            let test = "vram::trainer::tests::no_variable_of_the_adapter_reaches_the_trainer";
            let again = Invocation::new(program.to_string_lossy()).arguments(["--exact", test]);
            let said = again.environment(NAME, "0").output(Path::new(".")).unwrap();
            assert!(said.contains("1 passed"), "{said}");
            return;
        }
        let script = format!("[ -z \"${{{NAME}+set}}\" ] || exit 3\n{}", finishing(PRINTED));
        let outcome = outcome("withheld", &script);
        assert!(outcome.summary().is_some(), "{outcome:?}");
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
        let stand_in = StandIn::new("no-speed", &format!("echo 'train: {NO_ROOM}' >&2\nexit 1\n"));
        let error = stand_in.trainer.timed(&toy(), Duration::from_mins(1)).unwrap_err();
        assert_eq!(error.to_string(), format!("toy does not fit: {NO_ROOM}"));
    }

    #[test]
    fn a_program_that_is_missing_is_an_error_that_names_it() {
        let error = Trainer::get(Some(Path::new("no/such/train")), "cpu").err().unwrap();
        assert_eq!(error.to_string(), "there is no trainer at no/such/train");
    }
}
