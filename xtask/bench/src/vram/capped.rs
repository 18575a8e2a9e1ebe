//! `bench-vram --peer pytorch` on a GPU: the trainer and PyTorch in turn, under equal memory caps.
//!
//! PyTorch keeps all on the device, or activations or parameters and moments in host memory. The trainer keeps moments on
//! the device or on the host. Columns that PyTorch does not report stay empty.

mod turns;
mod twins;

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
    trainer::Trainer,
};

use turns::Runner;

pub(crate) use twins::Way;
pub(super) use twins::{default_models, settings};

pub(super) const ROWS: &str = "peer.csv";
const PAGE: &str = "peer.md";

const OUT_OF_MEMORY: i32 = 4;

pub(super) struct Capped<'a> {
    pub(super) script: &'a Invocation,
    pub(super) steps: u64,
    pub(super) device: &'a str,
    pub(super) trainer: &'a Trainer,
    pub(super) limits: &'a Limits,
    pub(super) rounds: usize,
    pub(super) ways: &'a [Way],
}

/// Measured by the trainer without a limit; `None` if nothing fits.
#[derive(Default)]
struct Known {
    peak: Option<u64>,
    parameters: Option<u64>,
}

impl Capped<'_> {
    /// A group is one model, with its optimizer in each place: shares are of the first one's peak, so that all have the
    /// same cap.
    pub(super) fn run(
        &self,
        groups: &[Vec<Model>],
        budgets: &[Budget],
        mut after_each: impl FnMut(&[Vec<String>]) -> Result<()>,
    ) -> Result<Vec<Vec<String>>> {
        let mut rows = vec![cell::header()];
        for group in groups {
            let mut known = Known::default();
            let turns = (0..self.rounds).flat_map(|_| turns::round(group.len(), self.ways, budgets));
            for (budget, runner) in turns {
                let row = match runner {
                    Runner::Ours(number) => self.ours(&group[number], number, budget, &mut known)?,
                    Runner::Theirs(way) => self.theirs(&group[0].shape, way, budget, &known)?,
                };
                rows.push(row);
                after_each(&rows)?;
            }
        }
        Ok(rows)
    }

    fn ours(&self, model: &Model, number: usize, budget: Budget, known: &mut Known) -> Result<Vec<String>> {
        let (limit, time) = self.room(budget, known);
        let outcome = match time {
            Err(reason) => Outcome::Skipped(reason),
            Ok(time) => self.trainer.train(model, limit, &[], time)?,
        };
        println!("{} at {budget}: {}", model.name, outcome.name());
        if let Some(run) = outcome.summary() {
            known.parameters.get_or_insert(run.parameters);
            if number == 0 && budget == Budget::Unlimited {
                known.peak.get_or_insert(run.peak_device_bytes);
            }
        }
        Ok(cell::row(&Cell { model: model.name.clone(), budget, limit, outcome }))
    }

    fn theirs(&self, shape: &str, way: Way, budget: Budget, known: &Known) -> Result<Vec<String>> {
        let (limit, time) = self.room(budget, known);
        let run = match time {
            Err(reason) => PeerRun::nothing(Outcome::Skipped(reason)),
            Ok(time) => self.ask(shape, way, limit, time)?,
        };
        let name = format!("{shape}, {}", way.name());
        println!("{name} at {budget}: {}", run.outcome.name());
        if let (Some(report), Some(ours)) = (&run.report, known.parameters) {
            ensure!(
                report["parameters"] == ours,
                "{shape} has {ours} parameters and its twin {}: two different models cannot be compared",
                report["parameters"]
            );
        }
        Ok(run.row(&cell::header(), &name, budget, limit))
    }

    /// Device memory and time; an error says why the run is skipped.
    fn room(&self, budget: Budget, known: &Known) -> (Limit, Result<Duration, String>) {
        match budget.resolve(known.peak) {
            Ok(limit) => (limit, self.limits.next()),
            Err(reason) => (None, Err(reason.to_string())),
        }
    }

    fn ask(&self, shape: &str, way: Way, limit: Limit, time: Duration) -> Result<PeerRun> {
        let asked = self.command(shape, way, limit)?;
        let ended = self.trainer.in_scratch(|scratch| process::run(&asked, "pytorch", scratch, time))?;
        Ok(judge(&ended, time))
    }

    fn command(&self, shape: &str, way: Way, limit: Limit) -> Result<Invocation> {
        let cap = limit.map(|bytes| ["--cap-bytes".to_owned(), bytes.to_string()]);
        let steps = self.steps.to_string();
        let command = self.script.clone().arguments(["--shape", shape, "--steps", &steps]);
        Ok(command
            .arguments(["--device", self.device, "--mode", way.mode()])
            .arguments(twins::words(shape)?.iter().copied())
            .arguments(cap.into_iter().flatten()))
    }
}

/// An error if no run of the trainer, or none of PyTorch, fits, and one failed for a reason other than memory.
pub(super) fn require_runs(rows: &[Vec<String>], groups: &[Vec<Model>]) -> Result<()> {
    let (header, rows) = rows.split_first().context("there are no runs")?;
    let place = |name: &str| header.iter().position(|column| column == name).context("a column is missing");
    let (named, outcome, reason) = (place("model")?, place("outcome")?, place("reason")?);
    for ours in [true, false] {
        let is_own =
            |row: &&Vec<String>| ours == groups.iter().flatten().any(|model| model.name == row[named]);
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
    format!(
        "# Beside {peer}: {device}, {date}\n\n`{}`, {trainer}. Raw data: [{ROWS}]({ROWS}), in the order of the runs, with the columns of a \
         sweep; a column that PyTorch does not tell is empty.\n\n| Machine | |\n|---|---|\n{}\n\nThe trainer is set to {}.\n\n\
         ## Bear in mind\n\n\
         - A share is of our peak without a limit, and all runs of a model have the same cap, wherever the optimizer is.\n\
         - PyTorch's cap is on what its allocator reserves, ours on managed buffers; neither counts the context and its libraries.\n\
         - Both compute in f32 with factors rounded to TF32. PyTorch runs eagerly, with its fused attention.\n\
         - `peak_host_bytes` is of the whole process for PyTorch, and of what spills and optimizers keep for ours.\n",
        records::command(),
        facts.join("\n"),
        twins::shown()
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

    const ROUNDS: usize = 2;
    const WAYS: [Way; 3] = [Way::Memory, Way::Activations, Way::Fsdp];

    /// With its optimizer on the device and on the host.
    fn group() -> Vec<Model> {
        let model = |name: &str| Model {
            name: name.into(),
            shape: "gpt-124m".into(),
            config: "gpt-124m".into(),
            settings: Vec::new(),
        };
        vec![model("gpt-124m"), model("gpt-124m, optimizer on the host")]
    }

    /// Runs of a round, without a limit and at 50 %.
    const RUNS: usize = 2 * (2 + WAYS.len());

    fn compared(test: &str, script: &str, limits: &Limits) -> Result<Vec<Vec<String>>> {
        let trainer = StandIn::new(test, &format!("cat <<'END'\n{PRINTED}\nEND\n"));
        let twin = trainer.folder.join("twin.sh");
        fs::write(&twin, script).unwrap();
        let script = Invocation::new("sh").arguments([twin.to_string_lossy()]);
        let capped = Capped {
            script: &script,
            steps: 8,
            device: "cuda",
            trainer: &trainer.trainer,
            limits,
            rounds: ROUNDS,
            ways: &WAYS,
        };
        let mut kept = Vec::new();
        let rows = capped.run(&[group()], &["50%".parse().unwrap()], |all| {
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
        assert_eq!(rows.len() - 1, ROUNDS * RUNS);
        let models = column(&rows, "model");
        assert!(models.chunks(RUNS).all(|found| found == &models[..RUNS]), "{models:?}");
        let theirs = WAYS.map(|way| format!("gpt-124m, {}", way.name()));
        let ours = group().into_iter().map(|model| model.name);
        let under_the_cap: Vec<String> = ours.chain(theirs.iter().cloned()).collect();
        assert_eq!(models[..2], ["gpt-124m", theirs[0].as_str()]);
        assert_eq!(models[2..7], under_the_cap);
        let caps = &column(&rows, "budget_bytes")[..RUNS];
        assert_eq!(caps, [&[""; 2][..], &["20000000"; 5], &[""; 3]].concat());
        let outcomes = &column(&rows, "outcome")[..RUNS];
        assert_eq!(outcomes[..5], ["fits"; 5]);
        assert_eq!(outcomes[5..], ["does not fit", "failed", "fits", "fits", "fits"]);
        assert_eq!(column(&rows, "reason")[5], "CUDA out of memory.");
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
            rounds: 1,
            ways: &WAYS,
        };
        let command = |shape, way, cap| capped.command(shape, way, cap).unwrap().to_string();
        assert_eq!(
            command("gpt-124m", Way::Fsdp, Some(5)),
            "script --shape gpt-124m --steps 8 --device cuda:1 --mode fsdp --batch 8 --time 1024 --cap-bytes 5"
        );
        let whole = command("llama-1.1b", Way::Memory, None);
        assert!(whole.ends_with("--mode memory --batch 1 --time 512"), "{whole}");
    }

    #[test]
    fn a_twin_of_another_size_is_refused() {
        let other = r#"echo '{"parameters": 7}'"#;
        let error = compared("capped-other", other, &Limits::begin(HOUR, HOUR)).unwrap_err().to_string();
        assert!(error.contains("two different models"), "{error}");
    }

    #[test]
    fn a_peer_that_fails_in_every_run_is_no_comparison() {
        let limits = Limits::begin(HOUR, HOUR);
        let broken = compared("capped-broken", "echo 'no torch' >&2\nexit 1\n", &limits).unwrap();
        let error = require_runs(&broken, &[group()]).unwrap_err().to_string();
        assert_eq!(
            error,
            "nothing was compared, as no run of gpt-124m, PyTorch ended well: exit status: 1: no torch"
        );
        require_runs(&compared("capped-some", TWIN, &limits).unwrap(), &[group()]).unwrap();
    }

    #[test]
    fn a_run_without_time_left_is_a_skipped_row() {
        let rows = compared("capped-late", TWIN, &Limits::begin(HOUR, Duration::ZERO)).unwrap();
        require_runs(&rows, &[group()]).unwrap();
        assert!(column(&rows, "outcome").iter().all(|outcome| *outcome == "skipped"));
        assert_eq!(rows.len() - 1, ROUNDS * RUNS);
    }

    #[test]
    fn nothing_runs_without_a_cap_under_the_name_of_a_share_that_has_no_peak() {
        let trainer = StandIn::new("capped-no-peak", "echo 'train: no room' >&2; exit 2\n");
        let limits = Limits::begin(HOUR, HOUR);
        let script = Invocation::new("sh").arguments(["-c", "echo '{\"parameters\": 7}'"]);
        let (device, trainer) = ("cuda", &trainer.trainer);
        let capped =
            Capped { script: &script, steps: 8, device, trainer, limits: &limits, rounds: 1, ways: &WAYS };
        let rows = capped.run(&[group()], &["50%".parse().unwrap()], |_| Ok(())).unwrap();
        let outcomes = column(&rows, "outcome");
        assert_eq!(outcomes[2..7], ["skipped"; 5], "{outcomes:?}");
        assert_eq!(outcomes[7..], ["failed", "fits", "fits"], "the model may still fit without a limit");
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
