//! `cargo xtask bench-vram`: the cost of a device budget. A cell is a model at a budget, run by a process of the
//! release trainer and compared with no limit.
//!
//! `budget`, `suite`, `limits`, `bisection`, `table` and `plot` are pure.

mod bisection;
mod bounds;
mod budget;
mod capped;
mod cell;
mod disk_traffic;
mod energy;
mod limits;
mod max_params;
mod peer;
mod plot;
mod record;
mod simulation;
mod speeds;
mod suite;
mod summary;
mod sweep;
mod table;
mod timeline;
mod trainer;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};

use crate::records::machine::Machine;
use budget::Budget;

use limits::Limits;
use record::Record;
use simulation::{Rates, Simulation};
use suite::{Crossing, Optimizer, Place, Turns};

pub(crate) use capped::Way;
pub(crate) use peer::{CARRIED as CARRIED_PEER, SCRIPT as PEER};
pub(crate) use speeds::{By, Speed, is_record, read as read_speeds};
pub(crate) use suite::Model;
pub(crate) use trainer::{Timed, Trainer, unlimited_arguments};

#[derive(Args)]
pub(crate) struct BenchVram {
    #[command(flatten)]
    trained: Trained,
    #[command(flatten)]
    memory: Memory,
    /// The record's folder; by default `benchmarks/runs/<date>-<device>`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    process: TrainerOptions,
    #[command(flatten)]
    search: Search,
    #[command(flatten)]
    comparison: PeerOptions,
    #[command(flatten)]
    simulated: Simulated,
    /// Measure nothing: put this record's table into docs/guide/what-fits.md
    #[arg(long, value_name = "RECORD", exclusive = true)]
    readme: Option<PathBuf>,
}

/// Models, and the settings that each runs with.
#[derive(Args)]
struct Trained {
    /// A preset or a file; may be repeated. By default a suite that takes this machine ten minutes
    #[arg(long = "config", value_name = "NAME")]
    configs: Vec<String>,
    /// Steps per cell; the speed is that of the median step, without the first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    steps: Option<u64>,
    /// Where the optimizer runs, each in turn; by default as each configuration says
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    optimizer: Vec<Optimizer>,
    /// How matrices and gradients cross the link to an optimizer on the host, each in turn; by default as each
    /// configuration says
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "optimizer")]
    crossing: Vec<Crossing>,
    /// Micro-batches that pass each segment together, each in turn; `--set` then gives `train.accumulate` and
    /// `train.recompute`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    together: Vec<u64>,
    /// A further change to every configuration; may be repeated
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    settings: Vec<String>,
}

/// Budgets of the cells.
#[derive(Args)]
struct Memory {
    /// Bytes, or shares of the peak without a limit
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = BUDGETS)]
    budgets: Vec<Budget>,
    /// Host memory for spilled tensors of cells with a device budget; with `--simulate`, an unlimited disk lies below
    /// it
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["max_params", "peer"])]
    host_budget: Option<Budget>,
    /// A folder on the disk that cells with a device budget spill to when `--host-budget` is used up
    #[arg(long, value_name = "DIR", conflicts_with_all = ["max_params", "peer", "simulate"])]
    disk: Option<PathBuf>,
}

/// The trainer, its device and its time.
#[derive(Args)]
struct TrainerOptions {
    /// auto, cpu, vulkan, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: String,
    /// A trainer that is already built; the record then cannot name its commit
    #[arg(long, value_name = "PATH")]
    train: Option<PathBuf>,
    /// Stop a cell after this many seconds
    #[arg(long, value_name = "N", default_value_t = 180)]
    seconds_per_cell: u64,
    /// Skip cells that have not begun after this many minutes
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,
    /// The same in seconds
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    seconds: Option<u64>,
}

/// The search for the deepest model.
#[derive(Args)]
struct Search {
    /// Find the deepest model that trains in `--budget`, without spilling and with it
    #[arg(long, requires = "budget", conflicts_with_all = ["budgets", "steps", "out"])]
    max_params: bool,
    /// Device memory for `--max-params`, in bytes
    #[arg(long, value_name = "BYTES", requires = "max_params")]
    budget: Option<Budget>,
}

/// The other framework.
#[derive(Args)]
struct PeerOptions {
    /// Compare with the same models in another framework, in turn: on the CPU only the speed, unrecorded; on a GPU
    /// everything, under the same caps of device memory
    #[arg(long, value_name = "NAME", conflicts_with = "max_params")]
    peer: Option<peer::Peer>,
    /// The Python that runs the peer
    #[arg(long, value_name = "PATH", default_value = "python3", requires = "peer")]
    python: String,
    /// How it trains on a GPU, each in turn; by default in every way
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "peer")]
    ways: Vec<Way>,
    /// Turns of both sides on a GPU
    #[arg(long, value_name = "N", default_value_t = 3, requires = "peer")]
    rounds: usize,
}

/// Recorded steps, and the machine that they are replayed on.
#[derive(Args)]
struct Simulated {
    /// Measure nothing: replay recorded steps (`OFFLOAD_TRACE`) under the budgets with the real pager; by default those
    /// in `backend-offload/pager/replay/traces`
    #[arg(long, value_name = "TRACE", num_args = 0.., conflicts_with_all = ["configs", "max_params", "steps", "train", "peer"])]
    simulate: Option<Vec<PathBuf>>,
    /// Bytes per second of the link in `--simulate`: 25GB
    #[arg(long, value_name = "BYTES", requires = "simulate")]
    link: Option<Budget>,
    /// Bytes per second of operands that operations process: with a `--link`, `--simulate` computes a step's time and
    /// draws it
    #[arg(long, value_name = "BYTES", requires = "link")]
    memory: Option<Budget>,
    /// Floating-point operations per second: 80TFLOP/s. Older recordings do not count them
    #[arg(long, value_name = "RATE", requires = "link", value_parser = flops_per_second)]
    flops: Option<f64>,
    /// Bytes per second of new weights from an optimizer on the host. At 40GB per second of memory and 20 bytes per
    /// bf16 parameter, that is 4GB
    #[arg(long, value_name = "BYTES", requires = "link")]
    host_step: Option<Budget>,
    /// Bytes per second of the disk below `--host-budget`, both directions together: 3GB
    #[arg(long, value_name = "BYTES", requires_all = ["link", "host_budget"])]
    disk_speed: Option<Budget>,
    /// Give the blocks of `--simulate` the memory pool of a CubeCL stream, in which a freed slice serves its own size
    /// alone; recordings of the CPU have none
    #[arg(long, requires = "simulate")]
    pools: bool,
    /// Time in which such a pool gives spare slices back to the driver. By default an estimate of a call that unmaps
    #[arg(long, value_name = "TIME", requires = "link", value_parser = microseconds, default_value = "50us")]
    trim: f64,
    /// Write the step that `--simulate` found in a longer recording to this file
    #[arg(long, value_name = "FILE", requires = "simulate")]
    keep: Option<PathBuf>,
}

fn flops_per_second(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("TFLOP/s").and_then(|number| number.trim().parse::<f64>().ok());
    let rate = number.filter(|rate| *rate > 0.0 && rate.is_finite());
    rate.map(|rate| rate * 1e12).ok_or_else(|| format!("`{text}` is no rate such as 80TFLOP/s"))
}

/// In seconds.
fn microseconds(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("us").and_then(|number| number.trim().parse::<f64>().ok());
    let time = number.filter(|time| *time >= 0.0 && time.is_finite());
    time.map(|time| time * 1e-6).ok_or_else(|| format!("`{text}` is no time such as 50us"))
}

impl BenchVram {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(record) = &self.readme {
            return xtask::readme_table::rewrite(record);
        }

        if let Some(traces) = &self.simulated.simulate {
            let rate = |rate: Option<Budget>| match rate {
                Some(Budget::Bytes(bytes)) => Ok(Some(bytes)),
                Some(_) => bail!(
                    "a --link, a --memory, a --host-step and a --disk-speed have bytes per second: 25GB"
                ),
                None => Ok(None),
            };
            let (link, memory) = (rate(self.simulated.link)?, rate(self.simulated.memory)?);
            let (host, disk) = (rate(self.simulated.host_step)?, rate(self.simulated.disk_speed)?);
            let (keep, out, budgets) =
                (self.simulated.keep.as_deref(), self.out.as_deref(), self.memory.budgets.as_slice());
            let Simulated { flops, pools, trim, .. } = self.simulated;
            let rates = Rates { link, memory, flops, host, disk, trim };
            let host_budget = self.memory.host_budget;
            return Simulation { traces, budgets, host_budget, pools, rates, keep, out }.run();
        }

        let machine = Machine::probe();
        let place = Place::choose(&self.process.device, &machine);
        println!("{}; device {}", machine.evidence, place.device);
        if !place.has_gpu && place.device == "cpu" {
            println!(
                "the CPU's memory plays the device: budgets and bits are real, speeds say nothing about a GPU"
            );
        }

        if let Some(peer::Peer::Pytorch) = self.comparison.peer {
            return self.compare_with_pytorch(&machine, &place);
        }

        let models = suite::models(
            &self.trained.configs,
            self.trained.steps,
            self.turns(),
            &self.trained.settings,
            &place,
        );
        if let Some(budget) = self.search.budget {
            let Budget::Bytes(budget) = budget else { bail!("--max-params needs a --budget in bytes: 8GiB") };
            let model = models.first().context("there is no model")?;
            let trainer = Trainer::get(self.process.train.as_deref(), &place.device)?;
            return max_params::run(&trainer, model, budget, &self.limits());
        }

        let limited = self.host_and_disk_settings()?;
        let planned = sweep::cell_count(&models, &self.memory.budgets);
        let trainer = Trainer::get(self.process.train.as_deref(), &place.device)?
            .with_energy(open_energy_counter(&place));
        let record = Record::begin(self.out.as_deref(), &machine, &place, &models, &trainer.origin, planned)?;
        let cells = sweep::run(&trainer, &models, &self.memory.budgets, &limited, &self.limits(), |cells| {
            record.write(cells)
        })?;

        println!("\n{}", table::terminal(&cells));
        for reason in table::reasons(&cells) {
            println!("{reason}");
        }
        println!("recorded in {}", record.folder.display());
        let failed = cells.iter().filter(|cell| matches!(cell.outcome, cell::Outcome::Failed(_))).count();
        let mut faults = table::faults(&cells);
        if failed > 0 {
            faults.push(format!("{failed} of {planned} cells failed for reasons other than memory"));
        }
        if !faults.is_empty() {
            bail!("{}", faults.join("; "));
        }
        Ok(())
    }

    fn turns(&self) -> Turns<'_> {
        Turns {
            optimizers: &self.trained.optimizer,
            crossings: &self.trained.crossing,
            together: &self.trained.together,
        }
    }

    fn host_and_disk_settings(&self) -> Result<Vec<String>> {
        let host = self.memory.host_budget.map(|budget| match budget {
            Budget::Bytes(bytes) => Ok(format!("memory.host_budget={bytes}B")),
            _ => bail!("a --host-budget has bytes: 16GiB"),
        });
        let disk = self.memory.disk.as_deref().map(|folder| {
            let folder = folder
                .canonicalize()
                .with_context(|| format!("--disk {} leads nowhere", folder.display()))?;
            Ok(format!("memory.disk={}", folder.display()))
        });
        host.into_iter().chain(disk).collect()
    }

    fn compare_with_pytorch(&self, machine: &Machine, place: &Place) -> Result<()> {
        let steps = self.trained.steps.unwrap_or(PEER_STEPS);
        if place.device.starts_with("cuda") {
            return self.compare_with_capped_pytorch(machine, place, steps);
        }
        let budgets = self.memory.budgets.iter().map(Budget::to_string).collect::<Vec<_>>().join(",");
        if self.out.is_some() || budgets != BUDGETS {
            bail!(
                "--peer has --budgets and --out on a GPU alone: on the CPU it compares speeds and records nothing"
            );
        }
        let models =
            suite::models(&self.trained.configs, Some(steps), self.turns(), &self.trained.settings, place);
        peer::check(&models, place)?;
        let twin = peer::Twin::pytorch(&self.comparison.python, &place.device, steps)?;
        let trainer = Trainer::get(self.process.train.as_deref(), &place.device)?;
        println!("{}", peer::run(&twin, &trainer, &models, &self.limits())?);
        Ok(())
    }

    fn compare_with_capped_pytorch(&self, machine: &Machine, place: &Place, steps: u64) -> Result<()> {
        let configs = if self.trained.configs.is_empty() {
            capped::default_models()
        } else {
            self.trained.configs.clone()
        };
        let groups = configs.iter().map(|config| {
            let settings = [capped::settings(config)?, self.trained.settings.clone()].concat();
            Ok(suite::models(std::slice::from_ref(config), Some(steps), self.turns(), &settings, place))
        });
        let groups: Vec<Vec<Model>> = groups.collect::<Result<_>>()?;
        let ways = match &self.comparison.ways[..] {
            [] => Way::value_variants(),
            ways => ways,
        };
        let twin = peer::Twin::pytorch(&self.comparison.python, &place.device, steps)?;
        let trainer = Trainer::get(self.process.train.as_deref(), &place.device)?;
        let record =
            capped::Comparison::begin(self.out.as_deref(), machine, place, &twin.name, &trainer.origin)?;
        let capped = capped::Capped {
            script: &twin.program,
            steps: twin.steps,
            device: &place.device,
            trainer: &trainer,
            limits: &self.limits(),
            rounds: self.comparison.rounds,
            ways,
        };
        let rows = capped.run(&groups, &self.memory.budgets, |rows| record.write(rows))?;
        println!("recorded in {}", record.folder.display());
        capped::require_runs(&rows, &groups)
    }

    fn limits(&self) -> Limits {
        Limits::begin(
            Duration::from_secs(self.process.seconds_per_cell),
            Duration::from_secs(self.process.seconds.unwrap_or(60 * self.process.minutes)),
        )
    }
}

fn open_energy_counter(place: &Place) -> Option<energy::Gpu> {
    let gpu = if place.device.starts_with("cuda") {
        energy::Gpu::open(energy::NVML)
    } else {
        Err(anyhow!("only NVIDIA's driver counts it, and the device is {}", place.device))
    };
    gpu.inspect_err(|error| println!("energy is left out: {error:#}")).ok()
}

const BUDGETS: &str = "100%,75%,50%,25%";

const PEER_STEPS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::{flops_per_second, microseconds};

    #[test]
    fn a_rate_of_arithmetic_is_a_positive_number_with_its_unit() {
        assert_eq!(flops_per_second("80TFLOP/s"), Ok(80e12));
        for wrong in ["80", "80GB", "-1TFLOP/s", "infTFLOP/s", "TFLOP/s"] {
            assert!(flops_per_second(wrong).is_err_and(|error| error.contains(wrong)), "{wrong}");
        }
    }

    #[test]
    fn a_time_has_microseconds_and_may_be_none() {
        assert_eq!([microseconds("50us"), microseconds("0us")], [Ok(50.0 * 1e-6), Ok(0.0)]);
        for wrong in ["50", "50ms", "-1us", "infus", "us"] {
            assert!(microseconds(wrong).is_err_and(|error| error.contains(wrong)), "{wrong}");
        }
    }
}
