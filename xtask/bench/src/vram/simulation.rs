//! Replays recorded steps under budgets with the real pager, against a bound. No device, no measurement.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, ensure};
use pager::{Limit, Policy, Recording};
use pager_replay::{Elapsed, Machine, Pace, Replay, bound};

use xtask::{invocation::Invocation, workspace};

use crate::records::{self, bytes::Bytes, csv};

use super::{
    budget::Budget,
    disk_traffic::{self, DiskTraffic},
    timeline,
};

/// The first round learns the step; the last is steady.
pub(super) const ROUNDS: usize = 4;

pub(super) const POLICIES: [(&str, Policy); 2] = [("planned", Policy::Planned), ("recency", Policy::Recency)];

struct Row {
    trace: String,
    budget: Budget,
    bytes: u64,
    policy: &'static str,
    /// Bytes in and out, in the second and last round; `None` if an operation does not fit.
    moved: Option<[(u64, u64); 2]>,
    /// In the last round.
    trims: u64,
    least: (u64, u64),
}

pub(super) struct Simulation<'a> {
    pub(super) traces: &'a [PathBuf],
    pub(super) budgets: &'a [Budget],
    /// Above a disk. Without it, unlimited.
    pub(super) host_budget: Option<Budget>,
    /// Of blocks recorded without one.
    pub(super) pools: bool,
    pub(super) rates: Rates,
    pub(super) keep: Option<&'a Path>,
    pub(super) out: Option<&'a Path>,
}

/// Speeds of the simulated [`Machine`]; `None` if not given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) link: Option<u64>,
    pub(super) memory: Option<u64>,
    pub(super) flops: Option<f64>,
    pub(super) host: Option<u64>,
    pub(super) disk: Option<u64>,
    /// Seconds in which spare memory goes back to the driver, each time.
    pub(super) trim: f64,
}

impl Rates {
    /// `None` unless both operations and copies take time.
    fn machine(self) -> Option<Machine> {
        let computes = self.memory.is_some() || self.flops.is_some();
        let bytes = |rate: Option<u64>| rate.map_or(f64::INFINITY, |rate| rate as f64);
        self.link.filter(|_| computes).map(|link| Machine {
            link: link as f64,
            memory: bytes(self.memory),
            flops: self.flops.unwrap_or(f64::INFINITY),
            host: bytes(self.host),
            disk: bytes(self.disk),
            trim: self.trim,
            ..Machine::INSTANT
        })
    }
}

impl Simulation<'_> {
    pub(super) fn run(&self) -> Result<()> {
        ensure!(
            self.keep.is_none() || self.traces.len() == 1,
            "--keep writes the step of one recording, and --simulate names {}: name one",
            self.traces.len()
        );
        let claimed = self.out.map(|folder| records::claim(folder, &FILES)).transpose()?;
        let traces = if self.traces.is_empty() { committed()? } else { self.traces.to_vec() };
        let machine = self.rates.machine();
        let (mut rows, mut drawn, mut traffic) = (Vec::new(), Vec::new(), Vec::new());

        for path in &traces {
            let step = read(path)?;
            if let Some(keep) = self.keep {
                fs::write(keep, step.to_bytes())
                    .with_context(|| format!("{} cannot be written", keep.display()))?;
            }
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let peak = peak(&name, &step)?;
            let host = self.host_budget.map_or(Ok(None), |host| host.resolve(Some(peak)))?;
            for budget in self.budgets {
                let bytes = budget.resolve(Some(peak))?.unwrap_or(peak);
                let (name, step, pools) = (&name, &step, self.pools);
                let under = BudgetedStep { name, step, budget: *budget, bytes, host, pools };
                rows.extend(replays(under));
                traffic.extend(host.map(|host| DiskTraffic::replays(under, host)));
                drawn.extend(machine.and_then(|machine| TimedStep::replay(under, machine)));
            }
        }

        let traffic: Vec<DiskTraffic> = traffic.into_iter().flatten().collect();
        let mut table = markdown(&rows, self.rates.link);
        if !traffic.is_empty() {
            table += &disk_traffic::markdown(&traffic);
        }
        if !drawn.is_empty() {
            table += &times(&drawn, self.host_budget.is_some());
        }
        println!("{table}");

        let folder = match claimed {
            Some(folder) => folder,
            None => records::fresh_folder(&records::runs(), &records::today()?, "simulated")?,
        };

        let page = format!(
            "# Steps replayed under budgets\n\n`{}`{}. Raw data: [{CELLS}]({CELLS}).\n\n{table}\n{CAVEATS}",
            records::command(),
            commit()
        );
        let files = [(CELLS.to_owned(), csv::write(&cells(&rows))), (PAGE.to_owned(), page)];
        let on_disk = (!traffic.is_empty())
            .then(|| (disk_traffic::CELLS.to_owned(), csv::write(&disk_traffic::cells(&traffic))));

        for (name, text) in
            files.into_iter().chain(on_disk).chain(drawn.into_iter().map(|drawn| (drawn.file, drawn.svg)))
        {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("{} could not be written", path.display()))?;
        }
        println!("recorded in {}", folder.display());
        Ok(())
    }
}

/// A step planned with moves ahead.
struct TimedStep {
    said: String,
    elapsed: Elapsed,
    trims: u64,
    /// Lower bound of the seconds.
    least: f64,
    file: String,
    svg: String,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct BudgetedStep<'a> {
    pub(super) name: &'a str,
    pub(super) step: &'a Recording,
    pub(super) budget: Budget,
    pub(super) bytes: u64,
    pub(super) host: Option<u64>,
    pub(super) pools: bool,
}

impl<'a> BudgetedStep<'a> {
    pub(super) fn replay(self, policy: Policy) -> Replay<'a> {
        let replay = Replay::new(self.step, Limit::bytes(self.bytes), policy);
        let replay = if self.pools { replay.with_pool() } else { replay };
        match self.host {
            Some(host) => replay.above_a_disk(host),
            None => replay,
        }
    }
}

impl TimedStep {
    /// `None` if an operation does not fit.
    fn replay(under: BudgetedStep, machine: Machine) -> Option<Self> {
        let BudgetedStep { name, step, budget, bytes, host, .. } = under;
        let replay = under.replay(Policy::Planned).on(machine).run(ROUNDS).ok()?;
        let (elapsed, trims) = (*replay.elapsed().last()?, *replay.trim_steps().last()?);
        let above = host.map(|host| format!(" above {} of the host", Bytes(host))).unwrap_or_default();
        let said = format!("{name} under {budget} = {}{above}", Bytes(bytes));
        let svg = timeline::svg(&said, replay.timeline()?, elapsed.step, bytes);
        let share = budget.to_string().replace('%', "");
        let pace = Pace::of(step, machine);
        let least = host.map_or_else(|| pace.least(bytes), |host| pace.least_above_a_disk(bytes, host));
        Some(Self { said, elapsed, trims, least, file: format!("timeline-{name}-{share}.svg"), svg })
    }
}

fn times(drawn: &[TimedStep], above_a_disk: bool) -> String {
    let (disk, line, longest) = if above_a_disk { (" Disk |", "---|", "four") } else { ("", "", "three") };
    let mut text = format!(
        "\n| Planned, moves ahead | Operations | In | Out |{disk} Step | Of the longest of the {longest} | Of the least | Waited | Trims |\n\
         |---|---|---|---|{line}---|---|---|---|---|\n",
    );
    for TimedStep { said, elapsed, trims, least, file, .. } in drawn {
        let Elapsed { step, arithmetic, out, back, disk, .. } = *elapsed;
        let disk = if above_a_disk { vec![disk] } else { Vec::new() };
        let parts = [&[arithmetic, back, out], &disk[..]].concat();
        let longest = parts.iter().copied().fold(0.0, f64::max);
        let times = [parts, vec![step]].concat();
        let times = times.iter().map(|time| format!("{:.1} ms", time * 1e3)).collect::<Vec<_>>().join(" | ");
        let ratios = [step / longest, step / least].map(|ratio| format!("{ratio:.3}")).join(" | ");
        let waited = format!("{:.1} ms", (step - arithmetic) * 1e3);
        let fields = [format!("[{said}]({file})"), times, ratios, waited, trims.to_string()];
        text += &["| ", &fields.join(" | "), " |\n"].concat();
    }
    text
}

const CELLS: &str = "simulation.csv";
const PAGE: &str = "README.md";

/// Any of them makes a folder a record.
const FILES: [&str; 3] = [CELLS, PAGE, disk_traffic::CELLS];

const CAVEATS: &str = "\
Budgets are shares of what the step takes without one. *Second* is the first step after the one in which everything was
seen for the first time; *steady* is the fourth, and those after it are the same. The bound is a lower bound: the least
that any way of moving could copy in, plus the least that any way could copy out, blocks cut into bytes. The replay
counts bytes; how long they take depends on the link and on what runs beside them. Where times of a step are told, an operation takes
the longer of the times for its floating-point operations (`--flops`; older recordings have none) and for its operands' bytes
(`--memory`), each as far as a rate was given, and the step is the fourth; *waited* is what is left of copying beside them, and of an
optimizer's step on the host (`--host-step`). *Trims*: times in the step that the pool gave all spare memory back to the driver, for
a block whose size no spare slice has; recordings of the CPU have pools with `--pools` alone, and each time takes `--trim`. *The least* is a lower bound, too: between any two operations whatever
contents these and those between them use beyond the budget have to come in, and what they make beyond it has to leave. Above a disk, its bound is that of the device's link with device and
host together in the place of the device; it reads or writes one block at a time, and the program waits for all but the last 24 MiB
of what sinks without having been written before, and for what is raised without having come before (`--disk-speed`).
";

/// Smallest first.
fn committed() -> Result<Vec<PathBuf>> {
    let folder = workspace::root().join("backend-offload/pager/replay/traces");
    let entries = fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let mut traces: Vec<(u64, PathBuf)> = paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "trace"))
        .map(|path| Ok((fs::metadata(&path)?.len(), path)))
        .collect::<Result<_>>()?;
    traces.sort();
    Ok(traces.into_iter().map(|(_, path)| path).collect())
}

/// A step that repeats, the latest of a longer recording.
pub(super) fn read(path: &Path) -> Result<Recording> {
    let bytes = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let recording = Recording::from_bytes(&bytes).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    recording.repeating().map_err(|error| anyhow!("{} has no step that repeats: {error}", path.display()))
}

fn peak(name: &str, step: &Recording) -> Result<u64> {
    let free = Replay::new(step, Limit::NONE, Policy::Planned).run(2);
    let free = free.map_err(|stop| anyhow!("{name} contradicts itself: {stop:?}"))?;
    Ok(free.pager().ledger().resident_peak())
}

fn replays(under: BudgetedStep) -> Vec<Row> {
    let BudgetedStep { name, step, budget, bytes, .. } = under;
    let least = bound(step, bytes, ROUNDS)[ROUNDS - 1];
    let row = |(policy, rule)| {
        let played = under.replay(rule).run(ROUNDS);
        let round = |played: &Replay, round: usize| {
            let moved = played.steps()[round];
            (moved.bytes_in, moved.bytes_out)
        };
        let played = played.ok();
        let moved = played.as_ref().map(|played| [round(played, 1), round(played, ROUNDS - 1)]);
        let trims = played.map_or(0, |played| played.trim_steps()[ROUNDS - 1]);
        let least = (least.bytes_in, least.bytes_out);
        Row { trace: name.to_owned(), budget, bytes, policy, moved, trims, least }
    };
    POLICIES.into_iter().map(row).collect()
}

pub(super) fn ratio(moved: (u64, u64), least: (u64, u64)) -> String {
    match (moved.0 + moved.1, least.0 + least.1) {
        (0, 0) => "1.000".to_owned(),
        (_, 0) => "none must".to_owned(),
        (moved, least) => format!("{:.3}", moved as f64 / least as f64),
    }
}

fn markdown(rows: &[Row], link: Option<u64>) -> String {
    let mut text = String::from(
        "| Step | Budget | Policy | In, steady | Out, steady | Trims | Of the bound, second | steady |",
    );
    text += if link.is_some() { " Over the link, waited for |\n" } else { "\n" };
    text += "|---|---|---|---|---|---|---|---|";
    text += if link.is_some() { "---|\n" } else { "\n" };
    for row in rows {
        let mut fields =
            vec![row.trace.clone(), format!("{} = {}", row.budget, Bytes(row.bytes)), row.policy.to_owned()];
        let figures = match row.moved {
            None => ["does not fit", "", "", "", ""].map(str::to_owned),
            Some([second, steady]) => [
                Bytes(steady.0).to_string(),
                Bytes(steady.1).to_string(),
                row.trims.to_string(),
                ratio(second, row.least),
                ratio(steady, row.least),
            ],
        };
        fields.extend(figures);
        if let Some(link) = link {
            let waits = row.moved.map(|[_, (in_, out)]| (in_ + out) as f64 / link as f64 * 1e3);
            fields.push(waits.map_or_else(String::new, |waits| format!("{waits:.1} ms")));
        }
        text += &["| ", &fields.join(" | "), " |\n"].concat();
    }
    text
}

fn cells(rows: &[Row]) -> Vec<Vec<String>> {
    let header = [
        "trace",
        "budget",
        "budget_bytes",
        "policy",
        "second_in",
        "second_out",
        "steady_in",
        "steady_out",
        "least_in",
        "least_out",
        "steady_trims",
    ];
    let mut cells = vec![header.map(str::to_owned).to_vec()];
    for row in rows {
        let moved = row.moved.map(|[second, steady]| [second.0, second.1, steady.0, steady.1]);
        let moved = moved
            .map_or_else(|| vec![String::new(); 4], |moved| moved.map(|bytes| bytes.to_string()).to_vec());
        let mut cell =
            vec![row.trace.clone(), row.budget.to_string(), row.bytes.to_string(), row.policy.to_owned()];
        cell.extend(moved);
        let trims = row.moved.map_or_else(String::new, |_| row.trims.to_string());
        cell.extend([row.least.0.to_string(), row.least.1.to_string(), trims]);
        cells.push(cell);
    }
    cells
}

/// Empty if git fails or the tree has changes.
fn commit() -> String {
    let git =
        |arguments: [&str; 2]| Invocation::new("git").arguments(arguments).output(workspace::root()).ok();
    match (git(["status", "--porcelain"]), git(["rev-parse", "HEAD"])) {
        (Some(changes), Some(commit)) if changes.trim().is_empty() => {
            format!(", commit {}", &commit.trim()[..12])
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(moved: Option<[(u64, u64); 2]>) -> Row {
        let (trace, budget, least) = ("toy".to_owned(), Budget::Share(50.0), (100, 50));
        Row { trace, budget, bytes: 1 << 20, policy: "planned", moved, trims: 7, least }
    }

    #[test]
    fn a_row_states_its_ratios_to_the_bound_and_the_time_on_the_link() {
        let text = markdown(&[row(Some([(150, 150), (100, 65)]))], Some(1000));
        assert!(
            text.contains("| 50% = 1.00 MiB | planned | 100 B | 65 B | 7 | 2.000 | 1.100 | 165.0 ms |"),
            "{text}"
        );
        let none = markdown(&[row(None)], None);
        assert!(none.contains("does not fit"), "{none}");
    }

    #[test]
    fn a_timed_step_is_compared_with_its_longest_part_and_drawn() {
        let elapsed =
            Elapsed { step: 0.3, arithmetic: 0.2, out: 0.15, back: 0.25, disk: 0.3, ..Elapsed::default() };
        let (said, file) = ("toy under 50%".to_owned(), "timeline-toy-50.svg".to_owned());
        let drawn = [TimedStep { said, elapsed, trims: 7, least: 0.25, file, svg: String::new() }];
        let above_a_disk = times(&drawn, true);
        assert!(
            above_a_disk.contains("| 150.0 ms | 300.0 ms | 300.0 ms | 1.000 | 1.200 |"),
            "{above_a_disk}"
        );
        let text = times(&drawn, false);
        assert!(
            text.contains(
                "| [toy under 50%](timeline-toy-50.svg) | 200.0 ms | 250.0 ms | 150.0 ms | 300.0 ms | 1.200 | 1.200 | 100.0 ms | 7 |"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_record_is_never_overwritten_and_one_step_is_kept_of_one_recording() {
        let folder = std::env::temp_dir().join(format!("simulation-{}", std::process::id()));
        let toy = workspace::root().join("backend-offload/pager/replay/traces/toy.trace");
        let (out, kept) = (folder.join("record"), folder.join("kept.trace"));
        let rates = Rates { link: None, memory: None, flops: None, host: None, disk: None, trim: 0.0 };
        let run = |traces: &[PathBuf], keep: Option<&Path>, out: Option<&Path>| {
            let (budgets, host_budget, pools) = (&[Budget::Share(50.0)], None, false);
            let simulation = Simulation { traces, budgets, host_budget, pools, rates, keep, out };
            simulation.run().map_err(|error| error.to_string())
        };
        run(std::slice::from_ref(&toy), None, Some(&out)).unwrap();
        let page = fs::read_to_string(out.join(PAGE)).unwrap();
        let again = run(std::slice::from_ref(&toy), None, Some(&out)).unwrap_err();
        let named = [&[toy.clone(), toy][..], &[]].map(|traces| run(traces, Some(&kept), None).unwrap_err());
        let was_kept = kept.exists();
        fs::remove_dir_all(&folder).unwrap();

        assert!(page.contains("`cargo xtask") && page.contains("| toy | 50% = "), "{page}");
        assert!(again.contains("never overwritten"), "{again}");
        assert!(named[0].contains("names 2: name one") && named[1].contains("names 0"), "{named:?}");
        assert!(!was_kept);
    }

    #[test]
    fn a_bound_of_zero_is_compared_without_dividing() {
        assert_eq!(
            (ratio((0, 0), (0, 0)), ratio((7, 0), (0, 0))),
            ("1.000".to_owned(), "none must".to_owned())
        );
    }

    #[test]
    fn every_row_of_the_table_has_a_line_of_exact_bytes() {
        let cells = cells(&[row(Some([(3, 4), (1, 2)])), row(None)]);
        assert_eq!(cells[1].join(","), "toy,50%,1048576,planned,3,4,1,2,100,50,7");
        assert!(cells.iter().all(|line| line.len() == cells[0].len()));
    }
}
