//! `train plan`: what a run would need and take on this machine.

use std::path::Path;

use anyhow::Context;
use backend_offload::Offloadable;
use models::Footprint;

use super::{ConfigArgs, run::refuse};
use crate::config::Config;
use crate::data::{Data, TrainingWindows};
use crate::device::{self, DeviceChoice, Place, Setup, Work};
use crate::machine;
use crate::plan::{Epoch, Plan};
use crate::run_directory::DEFAULT;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// auto, cuda, cuda:N, vulkan or cpu.
    #[arg(long, default_value_t)]
    device: DeviceChoice,
    /// Print the plan as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let ConfigArgs { config, set } = &args.config;
    let config = Config::load(config.as_deref().unwrap_or(DEFAULT), set)?;
    let setup = Setup::from(&config);
    device::with(args.device, &setup, Planning { config, json: args.json })
}

struct Planning {
    config: Config,
    json: bool,
}

impl Work for Planning {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, place: &Place) -> anyhow::Result<()> {
        let footprint = Footprint::of(&self.config.model)?;
        let machine = machine::survey::<I>(device, place, self.config.model.compute, Path::new("."));
        let mut plan = Plan::new(&self.config, &footprint, &machine);
        plan.data = epoch(&self.config)?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&plan).context("describing the plan")?);
        } else {
            println!("{plan}");
        }
        refuse(&plan)
    }
}

/// The training data that one epoch sees, where the shards are there already.
pub(super) fn epoch(config: &Config) -> Result<Option<Epoch>, tokenizer::Error> {
    let Some(data) = Data::ready(config)? else { return Ok(None) };
    let training = TrainingWindows::open(config, &data)?;
    Ok(Some(Epoch::of(training.sequences(), training.targets())))
}
