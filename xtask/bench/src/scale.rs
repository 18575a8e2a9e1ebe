//! `cargo xtask bench-scale`: measures exchanges between ranks over TCP on loopback and shared memory, and one rank's
//! step. A fitted model simulates up to 1,024 ranks.
//!
//! Only `ranks` and `training` start processes.

mod cards;
mod cell;
mod fit;
mod page;
mod plot;
mod ranks;
mod sample;
mod simulation;
mod table;
mod training;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::records::{
    self,
    bytes::Bytes,
    machine::{self, Machine},
};

use cards::Card;
use page::Findings;
use ranks::{Launcher, Program, Workload};
use sample::{Link, Sample};
use simulation::{Network, Step};
use training::Training;

#[derive(Args)]
pub(crate) struct BenchScale {
    /// Bytes of gradients to exchange
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64KiB,1MiB,16MiB,64MiB")]
    sizes: Vec<Bytes>,
    /// Numbers of ranks to start on this machine
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2,4", value_parser = clap::value_parser!(u16).range(2..))]
    ranks: Vec<u16>,
    /// Repetitions of an exchange; large ones are repeated less often, but at least five times
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    turns: u16,
    /// Measure between simulated hosts, too, each behind a card of this rate, as `1gbit`; needs root, `ip` and `tc`
    #[arg(long, value_name = "RATE")]
    card: Option<Card>,
    /// The record's folder; by default `benchmarks/runs/<date>-<device>-scale`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A trainer that is already built; the record then cannot name its commit
    #[arg(long, value_name = "PATH")]
    train: Option<PathBuf>,
    /// Measure and record nothing: simulate from this record, with the options below
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["sizes", "ranks", "turns", "card", "out", "train"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    simulated: Simulated,
}

/// The simulated step and network.
#[derive(Args)]
struct Simulated {
    /// Simulated: seconds that one rank computes per step. By default about GPT-2 124M, half a million tokens, 40
    /// TFLOP/s
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    compute: f64,
    /// Simulated: bytes of gradients per step
    #[arg(long, value_name = "BYTES", default_value = "498MB")]
    gradient: Bytes,
    /// Simulated: local steps per exchange, where ranks exchange rarely
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Simulated: bytes per second of an assumed network behind the measured link
    #[arg(long, value_name = "BYTES", default_value = "125MB")]
    network: Bytes,
    /// Simulated: latency of that network in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100.0)]
    latency: f64,
}

const LINKS: [Link; 2] = [Link::Tcp, Link::SharedMemory];

const SAMPLES: &str = "samples.csv";
const FILES: [&str; 3] = [SAMPLES, "plot.svg", "README.md"];

impl BenchScale {
    pub(crate) fn run(self) -> Result<()> {
        let (step, network) = self.simulated.step_and_network()?;
        if let Some(record) = &self.from {
            let findings = Findings::from_samples(&read(record)?, step, network);
            println!("{}", findings.simulation());
            return Ok(());
        }

        let machine = Machine::probe();
        let launcher = Launcher::find()?;
        let program = Program::build("release")?;
        let training = Training::new(self.train.as_deref(), &launcher)?;
        let date = records::today()?;
        let name = format!("{} scale", machine.processor);
        let folder = match &self.out {
            Some(folder) => records::claim(folder, &FILES)?,
            None => records::fresh_folder(&records::runs(), &date, &name)?,
        };

        let workload = Workload { sizes: self.sizes, turns: self.turns, card: self.card };
        let worlds: Vec<usize> = self.ranks.into_iter().map(usize::from).collect();
        let measured = || {
            let (engine, mut samples) = measure(&program, &launcher, &worlds, &workload)?;
            println!("a step of training in a world of one");
            samples.extend(training.measure()?);
            Ok::<_, anyhow::Error>((engine, samples))
        };
        let (engine, samples) = measured().inspect_err(|_| {
            // An empty folder would look like a record.
            _ = fs::remove_dir(&folder);
        })?;

        let findings = Findings::from_samples(&samples, step, network).behind(workload.card.clone());
        let mut facts = machine.facts;
        facts.extend([("load after, this benchmark in it", machine::load()), ("engine", engine)]);
        facts.push(("trainer", training.origin().to_owned()));
        let mut started = ranks::shown(&launcher, &worlds, &workload)?;
        started.extend(training::shown(&launcher)?);
        let origin = page::Origin {
            heading: format!("{}, {date}", machine.processor),
            command: records::command().to_string(),
            commit: program.commit.clone(),
            facts,
            started,
        };

        write(&folder, &samples, &findings, &origin)?;
        println!("\n{}\nrecorded in {}", findings.measurements(), folder.display());
        Ok(())
    }
}

impl Simulated {
    fn step_and_network(&self) -> Result<(Step, Network)> {
        ensure!(self.compute > 0.0, "a step computes for some time: --compute 10");
        ensure!(self.latency >= 0.0, "no message arrives before it is sent: --latency 100");
        let step = Step { compute: self.compute, gradient: self.gradient.0, every: self.every };
        let bytes_per_second = self.network.0 as f64;
        Ok((step, Network::Assumed { bytes_per_second, latency: self.latency / 1e6 }))
    }
}

fn measure(
    program: &Program,
    launcher: &Launcher,
    worlds: &[usize],
    workload: &Workload,
) -> Result<(String, Vec<Sample>)> {
    println!("a world of one");
    let mut samples = program.alone(workload)?;
    let mut version = String::new();
    for (link, &ranks) in LINKS.iter().flat_map(|link| worlds.iter().map(move |ranks| (*link, ranks))) {
        println!("{ranks} ranks over {link}");
        let (engine, own) = program.between(launcher, link, ranks, workload)?;
        version = engine;
        samples.extend(own);
    }
    for (card, &ranks) in workload.card.iter().flat_map(|card| worlds.iter().map(move |ranks| (card, ranks)))
    {
        println!("{ranks} simulated hosts behind cards of {card}");
        samples.extend(program.on_hosts(card, ranks, workload)?);
    }
    Ok((version, samples))
}

fn write(folder: &Path, samples: &[Sample], findings: &Findings, origin: &page::Origin) -> Result<()> {
    let texts = [sample::to_csv(samples), findings.plot(), findings.page(origin, SAMPLES)];
    for (name, text) in FILES.iter().zip(texts) {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("{} could not be written", path.display()))?;
    }
    Ok(())
}

fn read(record: &Path) -> Result<Vec<Sample>> {
    let path = record.join(SAMPLES);
    let text = fs::read_to_string(&path).with_context(|| format!("{} is unreadable", path.display()))?;
    sample::from_csv(&text).with_context(|| format!("{} is no raw data of bench-scale", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: Network = Network::Assumed { bytes_per_second: 125e6, latency: 1e-4 };
    const STEP: Step = Step { compute: 10.0, gradient: 500_000_000, every: 8 };

    #[test]
    fn a_record_reads_back_to_the_findings_it_was_made_from() {
        let folder = std::env::temp_dir().join(format!("bench-scale-record-{}", std::process::id()));
        let folder = records::claim(&folder, &FILES).unwrap();
        let samples = sample::tests::samples();
        let findings = Findings::from_samples(&samples, STEP, NETWORK);
        write(&folder, &samples, &findings, &page::tests::origin()).unwrap();
        let again = Findings::from_samples(&read(&folder).unwrap(), STEP, NETWORK);
        let page = fs::read_to_string(folder.join("README.md")).unwrap();
        let refused = records::claim(&folder, &FILES).err();
        fs::remove_dir_all(&folder).unwrap();

        assert_eq!(findings.simulation(), again.simulation());
        assert!(page.contains(&findings.simulation()));
        assert!(refused.unwrap().to_string().contains("never overwritten"));
        assert!(format!("{:#}", read(&folder).unwrap_err()).contains(SAMPLES));
    }

    #[cfg(unix)]
    mod gate {
        use super::*;

        #[test]
        #[ignore = "gate: compiles the program that the ranks run"]
        fn a_record_is_made_of_ranks_that_really_exchange() {
            let Some(launcher) = suite::Need::Mpi.found(Launcher::find()) else { return };
            let program = Program::build("release").unwrap();
            let workload = Workload { sizes: vec![Bytes(4096), Bytes(65536)], turns: 3, card: None };
            let (engine, samples) = measure(&program, &launcher, &[2], &workload).unwrap();
            assert!(engine.contains("Open MPI"), "{engine}");
            assert_eq!(samples.len(), 3 * (2 * (2 * 7 + 2) + 2 * 3));
            let sent = |kind| samples.iter().filter(move |sample| sample.kind == kind);
            for sample in sent(sample::Kind::Exact) {
                assert_eq!(sample.sent, sample.bytes, "two ranks send half of it to each other, twice");
            }
            for sample in sent(sample::Kind::ReduceScatter) {
                assert_eq!(2 * sample.sent, sample.bytes, "two ranks send half of it to each other, once");
            }
            let findings = Findings::from_samples(&samples, STEP, NETWORK);
            assert!(findings.simulation().contains("| 1024 |"), "{}", findings.simulation());
        }
    }
}
