//! `train run`: a whole training run, top to bottom.

mod attempt;
mod lost_ranks;

use std::io::{IsTerminal, stdin, stdout};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use backend_offload::{Offload, Offloadable, dry_run_requested, stats};
use models::Footprint;
use runs::BadInput;
use runs::config::Config;
use runs::device::{self, DeviceChoice, Place, Setup, Work};
use runs::directory::{Beginning, Resume, RunDirectory};

use super::ConfigArgs;
use super::plan::epoch;
use crate::exit::Ending;
use crate::figures::duration;
use crate::interrupt;
use crate::machine::{Measuring, survey};
use crate::optimizer::check_formats;
use crate::plan::{self, Plan};
use crate::ranks::{self, RankArgs, Ranks};
use attempt::Part;
use lost_ranks::LostRanks;

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// The run's directory; by default `runs/` and the configuration's name.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Resume a run: `auto` for the latest checkpoint in the run's directory, or a path to a run or a checkpoint.
    #[arg(long, value_name = "auto|PATH")]
    resume: Option<Resume>,
    /// Begin a new run with the weights and the vocabulary of another: a run's directory, whose latest checkpoint is
    /// taken, or a checkpoint. Data, schedule, batch and optimizer are the new run's.
    #[arg(long, value_name = "PATH", conflicts_with = "resume")]
    from: Option<PathBuf>,
    /// A folder of low-rank adapters in PEFT's layout, which learn on beside the weights of `--from`.
    #[arg(long, value_name = "DIR", requires = "from")]
    adapter: Option<PathBuf>,
    /// auto, cuda, cuda:N, vulkan or cpu.
    #[arg(long, default_value_t)]
    device: DeviceChoice,
    /// Print the summary (or the plan, with --dry-run) as JSON on standard output, and nothing else there.
    #[arg(long)]
    json: bool,
    /// Burn's terminal interface instead of lines.
    #[arg(long, conflicts_with = "json")]
    tui: bool,
    /// Print a line after every N steps; by default every ten seconds.
    #[arg(long, value_name = "N")]
    log_every: Option<NonZeroU64>,
    /// Print the plan and stop.
    #[arg(long)]
    dry_run: bool,
    /// Let every step see the first batch, to check that the model can learn at all.
    #[arg(long)]
    overfit_one_batch: bool,
    #[command(flatten)]
    ranks: RankArgs,
}

impl Args {
    fn find(&self, out: Option<&Path>) -> anyhow::Result<RunDirectory> {
        let ConfigArgs { config, mut set } = self.config.clone();
        if self.overfit_one_batch {
            set.push("train.overfit_one_batch=true".to_owned());
        }
        let (pretrained, adapter) = (self.from.as_deref(), self.adapter.as_deref());
        let beginning = Beginning { resume: self.resume.as_ref(), pretrained, adapter };
        let directory = RunDirectory::find(config.as_deref(), &set, out, beginning)?;
        if directory.from.is_none() && directory.pretrained.is_none() && !dry_run_requested() {
            runs::lora::refuse_without_base(&directory.config)?;
        }
        Ok(directory)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Ending> {
    if args.tui && !(stdin().is_terminal() && stdout().is_terminal()) {
        return Err(BadInput("--tui needs a terminal; leave it out for plain lines".to_owned()).into());
    }

    if !args.dry_run
        && let Some(ended) = ranks::launch(&args.ranks, || args.find(args.out.as_deref()))?
    {
        return Ok(ended);
    }

    let stop = interrupt::flag("stopping after this step")?;
    let ranks = Ranks::open()?;
    interrupt::hear_launcher(&stop)?;
    if args.tui && !ranks.is_alone() {
        return Err(BadInput("--tui is for one process; leave it out for plain lines".to_owned()).into());
    }

    let training = Training::find(args, ranks, stop)?;
    let (place, shared) = (training.ranks.local().1, training.shared[1]);
    let mut setup = Setup::from(&training.directory.config).among(place, shared);
    if args.dry_run {
        setup = setup.without_disk();
    }
    device::with(args.device, &setup, training)
}

struct Training<'a> {
    args: &'a Args,
    directory: RunDirectory,
    ranks: Ranks,
    /// Ranks of the plan, and those on this host.
    shared: [usize; 2],
    stop: Arc<AtomicBool>,
}

impl<'a> Training<'a> {
    fn find(args: &'a Args, mut ranks: Ranks, stop: Arc<AtomicBool>) -> anyhow::Result<Self> {
        let directory = ranks.same_directory(args.out.as_deref(), |out| args.find(out))?;
        let shared = sharing(args, &ranks)?;
        Ok(Self { args, directory, ranks, shared, stop })
    }
}

impl Work for Training<'_> {
    type Output = Ending;

    fn on<I: Offloadable>(self, device: &I::Device, place: &Place) -> anyhow::Result<Ending> {
        let Self { args, mut directory, mut ranks, shared, stop } = self;
        ranks.must_be_alike(&place.kind)?;
        let mut planned = None;
        let config = ranks.led(|| {
            planned = Some(make_plan::<I>(args, &mut directory, device, place, shared)?);
            Ok(directory.config.to_json().into_bytes())
        })?;

        if args.dry_run {
            ranks.end();
            return Ok(Ending::Done);
        }

        if !ranks.leads() {
            let text = String::from_utf8(config).context("reading rank 0's configuration")?;
            directory.config = Config::from_text(&text, "rank 0's configuration", &[])?;
        }

        // Measuring the machine moves bytes, too.
        let surveyed = stats::<I>(device);
        let lost_ranks = LostRanks::default();
        let mut part = Part { args, directory, planned, surveyed, stop, lost_ranks };

        loop {
            match part.attempt::<I>(ranks, device, place) {
                Ok(ending) => return Ok(ending),
                Err(failed) => ranks = part.lost_ranks.survive::<I>(*failed, device)?,
            }
        }
    }
}

/// Ranks of the run, and those on this host. A dry run is one process that plans for all.
fn sharing(args: &Args, ranks: &Ranks) -> anyhow::Result<[usize; 2]> {
    Ok(match args.ranks.ranks {
        Some(asked) if args.dry_run => [asked, args.ranks.most_on_a_host(asked)?],
        _ => [ranks.world(), ranks.local().0],
    })
}

/// The plan of a run that may begin, and the device's matmul FLOP/s. Chooses the optimizer's place.
fn make_plan<I: Offloadable>(
    args: &Args,
    directory: &mut RunDirectory,
    device: &I::Device,
    place: &Place,
    shared: [usize; 2],
) -> anyhow::Result<(Plan, Option<f64>)> {
    let footprint = Footprint::of(&directory.config.model)?;
    let RunDirectory { config, path, .. } = &*directory;
    let machine = survey::<I>(device, place, config, path, shared, Measuring::IfUnknown)?;
    directory.config = plan::placed(&directory.config, &footprint, &machine);

    // Another run's vocabulary is not loaded yet.
    let data = if directory.pretrained.is_none() { epoch(&directory.config)? } else { None };
    let plan = Plan::new(&directory.config, &footprint, &machine).over(data);
    eprintln!("{plan}");
    if args.dry_run && args.json {
        println!("{}", serde_json::to_string_pretty(&plan)?);
    }

    match plan.refuse() {
        Err(reasons) if dry_run_requested() => eprintln!("{reasons:#}\nnothing is computed, so it goes on"),
        refusal => refusal?,
    }
    if args.device == DeviceChoice::Auto && place.shares_host && !args.dry_run && !dry_run_requested() {
        refuse_slow_step(plan.step_seconds())?;
    }
    check_formats::<Offload<I>>(&directory.config, device)?;
    Ok((plan, machine.flops_per_second))
}

/// Whoever waits so long for a step on the CPU expected a card.
fn refuse_slow_step(seconds: Option<(f64, f64)>) -> Result<(), BadInput> {
    const MOST: f64 = 15.0 * 60.0;
    match seconds {
        Some((fast, _)) if fast > MOST => Err(BadInput(format!(
            "no GPU is used, and a step would take {} on the CPU; `train doctor` says what a GPU lacks, and `--device cpu` \
             trains nevertheless",
            duration(fast)
        ))),
        _ => Ok(()),
    }
}

fn resume_command(run: &Path, device: DeviceChoice, ranks: &RankArgs) -> String {
    let device = (device != DeviceChoice::default()).then(|| ("--device", device.to_string()));
    let run = ("--resume", run.display().to_string());
    [run].into_iter().chain(device).chain(ranks.given()).fold(
        "train".to_owned(),
        |command, (option, value)| {
            let plain = value.chars().all(|letter| letter.is_alphanumeric() || "._-/:,".contains(letter));
            let value = if plain { value } else { format!("'{}'", value.replace('\'', r"'\''")) };
            format!("{command} {option} {value}")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_above_a_quarter_of_an_hour_on_the_cpu_need_a_word() {
        assert!(refuse_slow_step(None).is_ok() && refuse_slow_step(Some((900.0, 1e9))).is_ok());
        let refused = refuse_slow_step(Some((960.0, 40_000.0))).expect_err("too slow").to_string();
        assert!(refused.contains("16 min") && refused.contains("--device cpu"), "{refused}");
    }

    #[test]
    fn the_resume_command_can_be_pasted_into_a_shell() {
        assert_eq!(
            resume_command(Path::new("runs/toy-2"), DeviceChoice::Auto, &RankArgs::default()),
            "train --resume runs/toy-2"
        );
        let ranks = RankArgs {
            ranks: Some(4),
            hosts: Some("a:2,b:2".to_owned()),
            restarts: 3,
            ..RankArgs::default()
        };
        let quoted =
            "train --resume 'my run'\\''s place' --device cuda:1 --ranks 4 --hosts a:2,b:2 --restarts 3";
        assert_eq!(resume_command(Path::new("my run's place"), DeviceChoice::Cuda(Some(1)), &ranks), quoted);
    }
}
