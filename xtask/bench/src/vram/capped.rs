//! `bench-vram --peer pytorch` on a GPU: the trainer and PyTorch in turn, under equal memory caps.
//!
//! PyTorch keeps all on the device, or activations or parameters and moments in host memory. Columns that it does not
//! report stay empty.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use xtask::invocation::Invocation;

use crate::{
    process::{self, Ended},
    records::{self, csv, machine::Machine},
};

use super::{
    budget::{Budget, Limit},
    cell::{self, Cell, Outcome},
    limits::Limits,
    suite::{Model, Place},
    sweep,
    trainer::Trainer,
};

/// The script's `--mode`, and its name in a record.
const WAYS: [(&str, &str); 3] = [
    ("memory", "PyTorch"),
    ("activations", "PyTorch, activations in host memory"),
    ("fsdp", "PyTorch, FSDP2 with its parameters in host memory"),
];

struct Shape {
    config: &'static str,
    settings: &'static [&'static str],
    words: &'static [&'static str],
}

/// Both compute in f32 with TF32 factors and recompute nothing.
const SHAPES: [Shape; 1] = [Shape {
    config: "gpt-124m",
    settings: &[
        "train.micro_batch=8",
        "train.accumulate=1",
        "train.sequence=1024",
        "train.recompute=null",
        "model.compute=f32",
    ],
    words: &["--batch", "8", "--time", "1024"],
}];

/// Each runs the trainer and all `WAYS` at every budget.
const ROUNDS: usize = 3;

const ROWS: &str = "peer.csv";
const PAGE: &str = "peer.md";

const OUT_OF_MEMORY: i32 = 4;

pub(super) fn default_models() -> Vec<String> {
    SHAPES.iter().map(|shape| shape.config.to_owned()).collect()
}

pub(super) fn settings(models: &[String]) -> Result<Vec<String>> {
    let known = || SHAPES.iter().map(|shape| shape.config).collect::<Vec<_>>().join(" and ");
    for model in models {
        ensure!(
            SHAPES.iter().any(|shape| shape.config == model),
            "{model} has no twin in {} on a GPU, which has {} there",
            super::peer::SCRIPT,
            known()
        );
    }
    let chosen = SHAPES.iter().filter(|shape| models.iter().any(|model| model == shape.config));
    Ok(chosen.flat_map(|shape| shape.settings).map(|setting| (*setting).to_owned()).collect())
}

pub(super) struct Capped<'a> {
    pub(super) script: &'a Invocation,
    pub(super) steps: u64,
    pub(super) device: &'a str,
    pub(super) trainer: &'a Trainer,
    pub(super) limits: &'a Limits,
}

impl Capped<'_> {
    pub(super) fn run(
        &self,
        models: &[Model],
        budgets: &[Budget],
        mut after_each: impl FnMut(&[Vec<String>]) -> Result<()>,
    ) -> Result<Vec<Vec<String>>> {
        let mut rows = vec![cell::header()];
        for model in models {
            let mut peak = None;
            let turns = (0..ROUNDS).flat_map(|_| sweep::with_reference(budgets));
            for budget in turns {
                let ours = self.ours(model, budget, peak)?;
                peak = peak.or(ours.summary().map(|run| run.peak_device_bytes));
                let parameters = ours.summary().map(|run| run.parameters);
                rows.push(cell::row(&ours));
                for (mode, way) in WAYS {
                    let theirs = self.theirs(model, mode, ours.limit, parameters)?;
                    println!("{}, {way}, at {budget}: {}", model.name, theirs.outcome.name());
                    rows.push(theirs.row(&rows[0], &format!("{}, {way}", model.name), budget, ours.limit));
                }
                after_each(&rows)?;
            }
        }
        Ok(rows)
    }

    fn ours(&self, model: &Model, budget: Budget, peak: Option<u64>) -> Result<Cell> {
        let (limit, outcome) = match (budget.resolve(peak), self.limits.next()) {
            (Err(reason), _) => (None, Outcome::Skipped(reason.to_string())),
            (Ok(limit), Err(reason)) => (limit, Outcome::Skipped(reason)),
            (Ok(limit), Ok(time)) => (limit, self.trainer.train(model, limit, &[], time)?),
        };
        println!("{} at {budget}: {}", model.name, outcome.name());
        Ok(Cell { model: model.name.clone(), budget, limit, outcome })
    }

    fn theirs(&self, model: &Model, mode: &str, limit: Limit, parameters: Option<u64>) -> Result<PeerRun> {
        let time = match self.limits.next() {
            Ok(time) => time,
            Err(reason) => return Ok(PeerRun::nothing(Outcome::Skipped(reason))),
        };
        let asked = self.command(model, mode, limit);
        let ended = self.trainer.in_scratch(|scratch| process::run(&asked, "pytorch", scratch, time))?;
        let run = judge(&ended, time);
        if let (Some(Value::Object(report)), Some(ours)) = (&run.report, parameters) {
            ensure!(
                report.get("parameters") == Some(&Value::from(ours)),
                "{} has {ours} parameters and its twin {:?}: two different models cannot be compared",
                model.name,
                report.get("parameters")
            );
        }
        Ok(run)
    }

    fn command(&self, model: &Model, mode: &str, limit: Limit) -> Invocation {
        let shape = SHAPES.iter().find(|shape| shape.config == model.config);
        let words = shape.map_or(&[][..], |shape| shape.words);
        let cap = limit.map(|bytes| ["--cap-bytes".to_owned(), bytes.to_string()]);
        self.script
            .clone()
            .arguments([
                "--shape",
                &model.config,
                "--steps",
                &self.steps.to_string(),
                "--device",
                self.device,
            ])
            .arguments(["--mode", mode])
            .arguments(words.iter().copied())
            .arguments(cap.into_iter().flatten())
    }
}

/// An error if no run of the trainer, or none of PyTorch, fits, and one failed for a reason other than memory.
pub(super) fn require_runs(rows: &[Vec<String>], models: &[Model]) -> Result<()> {
    let (header, rows) = rows.split_first().context("there are no runs")?;
    let place = |name: &str| header.iter().position(|column| column == name).context("a column is missing");
    let (named, outcome, reason) = (place("model")?, place("outcome")?, place("reason")?);
    for ours in [true, false] {
        let is_own = |row: &&Vec<String>| ours == models.iter().any(|model| model.name == row[named]);
        let fits = rows.iter().filter(is_own).any(|row| row[outcome] == "fits");
        let failed = rows.iter().filter(is_own).find(|row| row[outcome] == "failed");
        if let Some(row) = failed.filter(|_| !fits) {
            bail!("nothing was compared, as no run of {} ended well: {}", row[named], row[reason]);
        }
    }
    Ok(())
}

struct PeerRun {
    outcome: Ending,
    report: Option<Value>,
}

enum Ending {
    Fits,
    Other(Outcome),
}

impl Ending {
    fn name(&self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Other(outcome) => outcome.name(),
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Fits => "",
            Self::Other(outcome) => outcome.reason().unwrap_or_default(),
        }
    }
}

impl PeerRun {
    fn nothing(outcome: Outcome) -> Self {
        Self { outcome: Ending::Other(outcome), report: None }
    }

    fn row(&self, header: &[String], model: &str, budget: Budget, limit: Limit) -> Vec<String> {
        let column = |name: &str| match name {
            "model" => model.to_owned(),
            "budget" => budget.to_string(),
            "budget_bytes" => limit.map(|bytes| bytes.to_string()).unwrap_or_default(),
            "outcome" => self.outcome.name().to_owned(),
            "reason" => self.outcome.reason().to_owned(),
            other => match self.report.as_ref().and_then(|report| report.get(other)) {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
            },
        };
        header.iter().map(|name| column(name)).collect()
    }
}

fn judge(ended: &Ended, time: Duration) -> PeerRun {
    let complaint = || ended.complaint.clone();
    let Some(status) = ended.status else {
        return PeerRun::nothing(Outcome::OutOfTime(format!("stopped after {} s", time.as_secs())));
    };
    match status.code() {
        Some(0) => match serde_json::from_str(ended.printed.trim()) {
            Ok(report) => PeerRun { outcome: Ending::Fits, report: Some(report) },
            Err(_) => PeerRun::nothing(Outcome::Failed("it printed no JSON".to_owned())),
        },
        Some(OUT_OF_MEMORY) => PeerRun::nothing(Outcome::DoesNotFit(complaint())),
        Some(_) => PeerRun::nothing(Outcome::Failed(format!("{status}: {}", complaint()))),
        None => PeerRun::nothing(Outcome::Killed(status.to_string())),
    }
}

pub(super) struct Comparison {
    pub(super) folder: PathBuf,
}

impl Comparison {
    pub(super) fn begin(
        out: Option<&Path>,
        machine: &Machine,
        place: &Place,
        peer: &str,
        trainer: &str,
    ) -> Result<Self> {
        let (date, device) = (records::today()?, place.name(machine));
        let folder = match out {
            Some(folder) => records::claim(folder, &[ROWS, PAGE])?,
            None => records::fresh_folder(&records::runs(), &date, &format!("{device} beside PyTorch"))?,
        };
        let page = folder.join(PAGE);
        fs::write(&page, text(machine, &date, &device, peer, trainer))
            .with_context(|| format!("{} could not be written", page.display()))?;
        Ok(Self { folder })
    }

    pub(super) fn write(&self, rows: &[Vec<String>]) -> Result<()> {
        let path = self.folder.join(ROWS);
        fs::write(&path, csv::write(rows)).with_context(|| format!("{} could not be written", path.display()))
    }
}

fn text(machine: &Machine, date: &str, device: &str, peer: &str, trainer: &str) -> String {
    let facts: Vec<_> = machine.facts.iter().map(|(name, value)| format!("| {name} | {value} |")).collect();
    let settings: Vec<_> =
        SHAPES.iter().map(|shape| format!("{}: {}", shape.config, shape.settings.join(" "))).collect();
    format!(
        "# Beside {peer}: {device}, {date}\n\n`{}`, {trainer}. Raw data: [{ROWS}]({ROWS}), in the order of the runs, with the columns of a \
         sweep; a column that PyTorch does not tell is empty.\n\n| Machine | |\n|---|---|\n{}\n\nThe trainer is set to {}.\n\n\
         ## Bear in mind\n\n\
         - PyTorch's cap is on what its allocator reserves, ours on managed buffers; neither counts the context and its libraries.\n\
         - Both compute in f32 with factors rounded to TF32. PyTorch runs eagerly, with its fused attention.\n\
         - `peak_host_bytes` is of the whole process for PyTorch, and of what spills and optimizers keep for ours.\n",
        records::command(),
        facts.join("\n"),
        settings.join("; ")
    )
}

#[cfg(all(test, unix))]
mod tests {
    use crate::records::machine::tests::cpu_machine;

    use super::{
        super::{summary::tests::PRINTED, trainer::tests::StandIn},
        *,
    };

    const HOUR: Duration = Duration::from_hours(1);

    fn model() -> Model {
        Model { name: "gpt-124m".into(), config: "gpt-124m".into(), settings: Vec::new() }
    }

    fn compared(test: &str, script: &str, limits: &Limits) -> Result<Vec<Vec<String>>> {
        let trainer = StandIn::new(test, &format!("cat <<'END'\n{PRINTED}\nEND\n"));
        let twin = trainer.folder.join("twin.sh");
        fs::write(&twin, script).unwrap();
        let script = Invocation::new("sh").arguments([twin.to_string_lossy()]);
        let capped = Capped { script: &script, steps: 8, device: "cuda", trainer: &trainer.trainer, limits };
        let mut kept = Vec::new();
        let rows = capped.run(&[model()], &["50%".parse().unwrap()], |all| {
            kept = all.to_vec();
            Ok(())
        })?;
        assert_eq!(kept, rows, "the record holds every row");
        Ok(rows)
    }

    fn column<'a>(rows: &'a [Vec<String>], name: &str) -> Vec<&'a str> {
        let at = rows[0].iter().position(|column| column == name).unwrap();
        rows[1..].iter().map(|row| row[at].as_str()).collect()
    }

    const TWIN: &str = r#"case "$*" in
        *"--mode activations"*--cap-bytes*) echo "CUDA out of memory." >&2; exit 4;;
        *"--mode fsdp"*--cap-bytes*) echo "no gloo" >&2; exit 1;;
        esac
        echo '{"peer": "PyTorch 2", "parameters": 1200000, "step_ms_median": 12.5, "peak_device_bytes": 7, "loss": null, "asked": "'"$*"'"}'"#;

    #[test]
    fn trainer_and_peer_train_in_turn_under_the_same_cap_with_the_same_columns() {
        let rows = compared("capped", TWIN, &Limits::begin(HOUR, HOUR)).unwrap();
        assert_eq!(rows[0], cell::header());
        assert_eq!(rows.len() - 1, ROUNDS * 2 * (1 + WAYS.len()));
        let models = column(&rows, "model");
        let turn = [&["gpt-124m".to_owned()][..], &WAYS.map(|(_, way)| format!("gpt-124m, {way}"))].concat();
        assert!(models.chunks(turn.len()).all(|found| found == turn), "{models:?}");
        let once = &column(&rows, "budget_bytes")[..8];
        assert_eq!(once, ["", "", "", "", "20000000", "20000000", "20000000", "20000000"]);
        let outcomes = &column(&rows, "outcome")[..8];
        assert_eq!(outcomes, ["fits", "fits", "fits", "fits", "fits", "fits", "does not fit", "failed"]);
        assert_eq!(column(&rows, "reason")[6], "CUDA out of memory.");
        assert_eq!(&column(&rows, "step_ms_median")[..2], ["350.5", "12.5"]);
        assert_eq!(
            (column(&rows, "evictions")[1], column(&rows, "loss")[1]),
            ("", ""),
            "PyTorch reports neither"
        );
    }

    #[test]
    fn the_script_gets_shape_device_mode_and_cap() {
        let limits = Limits::begin(HOUR, HOUR);
        let trainer = StandIn::new("capped-words", "");
        let script = Invocation::new("script");
        let capped = Capped {
            script: &script,
            steps: 8,
            device: "cuda:1",
            trainer: &trainer.trainer,
            limits: &limits,
        };
        assert_eq!(
            capped.command(&model(), "fsdp", Some(5)).to_string(),
            "script --shape gpt-124m --steps 8 --device cuda:1 --mode fsdp --batch 8 --time 1024 --cap-bytes 5"
        );
        assert!(!capped.command(&model(), "memory", None).to_string().contains("--cap-bytes"));
    }

    #[test]
    fn a_twin_of_another_size_and_a_model_without_a_twin_are_refused() {
        let other = r#"echo '{"parameters": 7}'"#;
        let error = compared("capped-other", other, &Limits::begin(HOUR, HOUR)).unwrap_err().to_string();
        assert!(error.contains("two different models"), "{error}");
        let error = settings(&["gpt-7b".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("gpt-7b has no twin") && error.ends_with("which has gpt-124m there"),
            "{error}"
        );
        assert!(settings(&default_models()).unwrap().contains(&"model.compute=f32".to_owned()));
    }

    #[test]
    fn a_peer_that_fails_in_every_run_is_no_comparison() {
        let limits = Limits::begin(HOUR, HOUR);
        let broken = compared("capped-broken", "echo 'no torch' >&2\nexit 1\n", &limits).unwrap();
        let error = require_runs(&broken, &[model()]).unwrap_err().to_string();
        assert_eq!(
            error,
            "nothing was compared, as no run of gpt-124m, PyTorch ended well: exit status: 1: no torch"
        );
        require_runs(&compared("capped-some", TWIN, &limits).unwrap(), &[model()]).unwrap();
    }

    #[test]
    fn a_run_without_time_left_is_a_skipped_row() {
        let rows = compared("capped-late", TWIN, &Limits::begin(HOUR, Duration::ZERO)).unwrap();
        require_runs(&rows, &[model()]).unwrap();
        assert!(column(&rows, "outcome").iter().all(|outcome| *outcome == "skipped"));
        assert_eq!(rows.len() - 1, ROUNDS * 2 * (1 + WAYS.len()));
    }

    #[test]
    fn rows_join_a_sweeps_record_but_overwrite_no_rows() {
        let folder = std::env::temp_dir().join(format!("capped-record-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cells.csv"), "a sweep").unwrap();
        let machine = cpu_machine();
        let place = Place::choose("cuda", &machine);
        let begin = || Comparison::begin(Some(&folder), &machine, &place, "PyTorch 2", "built at commit abc");
        let first = begin().and_then(|comparison| comparison.write(&[cell::header()]));
        let second = begin().err().map(|error| error.to_string());
        let page = fs::read_to_string(folder.join(PAGE)).unwrap();
        let sweep = fs::read_to_string(folder.join("cells.csv")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        first.unwrap();
        assert!(second.unwrap().contains("never overwritten"));
        assert!(page.starts_with("# Beside PyTorch 2: ") && page.contains("built at commit abc"), "{page}");
        assert_eq!(sweep, "a sweep");
    }
}
