//! `train plan`: memory, traffic and time of a run on this machine or a described one.

use std::path::{Path, PathBuf};

use anyhow::Context;
use backend_offload::Offloadable;
use models::Footprint;
use runs::BadInput;
use runs::config::{Config, Together};
use runs::device::{self, DeviceChoice, Place, Setup, Work};
use runs::directory::DEFAULT;

use super::ConfigArgs;
use crate::data::{Data, TrainingWindows};
use crate::machine::{Measuring, survey};
use crate::plan::{DescribedMachine, Epoch, Machine, Plan, link_between, placed};
use crate::rehearsal;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Plan a run that tunes this model: a run's directory, or a folder as Hugging Face publishes it, of which only
    /// config.json is read.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    from: Option<PathBuf>,
    /// auto, cuda, cuda:N, vulkan or cpu.
    #[arg(long, default_value_t)]
    device: DeviceChoice,
    /// Plan for a described machine: a known card and the host's memory, or the sizes of device and host with the
    /// speeds of link and arithmetic (rtx-4090,64GiB or 24GiB,128GiB,25GB/s,80TFLOP/s).
    #[arg(long, value_name = "MACHINE", conflicts_with = "device")]
    on: Option<DescribedMachine>,
    /// Plan for this many processes that share a step's micro-batches: on this machine, or each on a machine that --on
    /// describes.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,
    /// Speed between the processes in each direction, for the time of their exchange: 10Gbit/s or 1.2GB/s.
    #[arg(long, value_name = "SPEED", value_parser = link_between)]
    link_between: Option<f64>,
    /// Record a step in a dry run of this configuration, which takes seconds to minutes, and replay it under the
    /// planned budgets. Bytes over the link, to and from the disk, and times are then those of the pager instead of
    /// estimates.
    #[arg(long, conflicts_with = "ranks")]
    replay: bool,
    /// Measure the speeds of this machine again and store them, instead of using an earlier measurement.
    #[arg(long, conflicts_with = "on")]
    measure: bool,
    /// Print the plan as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let ConfigArgs { config, set } = &args.config;
    let ranks = usize::from(args.ranks);
    let config = match &args.from {
        Some(from) => runs::tuned(from, set)?,
        None => Config::load(config.as_deref().unwrap_or(DEFAULT), set)?,
    };
    if let Some(described) = &args.on {
        let network_bytes_per_second = args.link_between;
        let machine =
            Machine { other_ranks: ranks - 1, network_bytes_per_second, ..described.machine(&config)? };
        return show(&config, &machine, args.replay, args.json);
    }
    let setup = Setup::from(&config).among(0, ranks).without_disk();
    let measuring = if args.measure { Measuring::Always } else { Measuring::IfUnknown };
    let planning = Planning { args, config, ranks, measuring };
    device::with(args.device, &setup, planning)
}

struct Planning<'a> {
    args: &'a Args,
    config: Config,
    ranks: usize,
    measuring: Measuring,
}

impl Work for Planning<'_> {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, place: &Place) -> anyhow::Result<()> {
        let Self { args, config, ranks, measuring } = self;
        let machine = survey::<I>(device, place, &config, Path::new("."), [ranks; 2], measuring)?;
        let machine = Machine { network_bytes_per_second: args.link_between, ..machine };
        show(&config, &machine, args.replay, args.json)
    }
}

fn show(config: &Config, machine: &Machine, replay: bool, json: bool) -> anyhow::Result<()> {
    let footprint = Footprint::of(&config.model)?;
    let config = placed(config, &footprint, machine);
    let mut plan = Plan::new(&config, &footprint, machine).over(epoch(&config)?);
    if replay && plan.bubble.is_some() {
        let text = "--replay replays a whole network, and `ranks.pipeline` divides it; leave out --replay";
        return Err(BadInput(text.to_owned()).into());
    }
    if replay {
        let mut rehearsed = config.clone();
        rehearsed.train.together = Together::Count(plan.together);
        plan = plan.by_replay(&rehearsal::recorded(&rehearsed)?);
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&plan).context("describing the plan")?);
    } else {
        println!("{plan}");
    }
    plan.refuse()
}

/// `None` before the shards exist.
pub(super) fn epoch(config: &Config) -> Result<Option<Epoch>, tokenizer::Error> {
    let Some(data) = Data::ready(config)? else { return Ok(None) };
    let training = TrainingWindows::open(config, &data)?;
    Ok(Some(Epoch::new(training.sequences(), training.targets(), training.text_tokens())))
}
