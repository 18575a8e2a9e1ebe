//! The state of a run's first step.

use std::path::Path;

use anyhow::Context;
use backend_offload::{Offload, Offloadable, dry_run_requested};
use burn::tensor::backend::Backend;
use models::init::Holds;
use models::weights::Factors;
use models::{ConfigError, Gpt};
use runs::config::Config;
use runs::directory::RunDirectory;

use super::exchange::Restored;
use super::{Exchange, Progress, Tape, restore};
use crate::optimizer::{Optimizer, Owners, held};
use crate::plan::StatesOnDisk;
use crate::ranks::{Ranks, SavedAt};

pub(crate) type State<I> = (Gpt<Tape<I>>, Optimizer<Offload<I>>, Progress);

pub(crate) fn first_state<I: Offloadable>(
    directory: &RunDirectory,
    device: &I::Device,
    (ranks, exchange): (&mut Ranks, &mut Exchange),
    on_disk: StatesOnDisk,
) -> anyhow::Result<State<I>> {
    let config = &directory.config;
    if let Some(checkpoint) = &directory.from {
        if ranks.leads() {
            eprintln!("resuming after step {} of {}", checkpoint.step, checkpoint.path.display());
            for change in &directory.changes {
                eprintln!("changed {change}");
            }
        }
        let is_frozen = config.train.lora.is_some();
        let factors = if is_frozen { Factors::Frozen(config.memory.base) } else { Factors::Wide };
        let gpt =
            runs::weights::load_part(&checkpoint.path, config, (factors, &held(config, ranks)), device)?;
        let gpt = gpt.with_frozen(&config.train.freeze);
        let owners = Owners::new(config, &gpt, ranks);
        let (progress, mut optimizer) = restore(&checkpoint.path, config, device, owners)?;
        let restored = restore_exchange(&checkpoint.path, &progress, ranks, exchange)?;
        if let Restored::Moments(pairs) = restored {
            let learning = gpt.learning().into_iter().map(|(_, parameter)| parameter);
            optimizer.replace_moments(pairs, learning, device)?;
        }
        return Ok((optimizer.adopt(gpt, on_disk)?, optimizer, progress));
    }

    let gpt = match &directory.pretrained {
        Some(pretrained) => pretrained.weights(config, device)?,
        None => without_base(fresh(config, dry_run_requested(), &held(config, ranks), device)?, config)?,
    };
    let gpt = gpt.with_frozen(&config.train.freeze);

    let mut optimizer = Optimizer::placed(config, device);
    optimizer.owners = Owners::new(config, &gpt, ranks);
    Ok((optimizer.adopt(gpt, on_disk)?, optimizer, Progress::start(config.train.seed)))
}

fn restore_exchange(
    checkpoint: &Path,
    progress: &Progress,
    ranks: &mut Ranks,
    exchange: &mut Exchange,
) -> anyhow::Result<Restored> {
    let checkpoint = std::path::absolute(checkpoint).context("finding the checkpoint's run")?;
    let Some(run) = checkpoint.ancestors().nth(2) else { return Ok(Restored::All) };
    let at = SavedAt { step: progress.step, losses: &progress.losses };
    let restored = exchange.restore_state(run, at, ranks)?;
    if let Restored::Dropped(reason) = &restored
        && ranks.leads()
    {
        eprintln!("{reason}");
    }
    Ok(restored)
}

/// Only a dry run has adapters on fresh weights.
fn without_base<B: Backend>(gpt: Gpt<B>, Config { train, memory, .. }: &Config) -> anyhow::Result<Gpt<B>> {
    match &train.lora {
        Some(lora) => Ok(gpt.frozen(memory.base).with_adapters(lora, train.seed)?),
        None => Ok(gpt),
    }
}

/// A dry run gets zeros: no kernel reads weights, and drawing billions takes minutes.
fn fresh<B: Backend>(
    config: &Config,
    computes_nothing: bool,
    holds: Holds<'_>,
    device: &B::Device,
) -> Result<Gpt<B>, ConfigError> {
    if computes_nothing {
        return Gpt::zeroed(&config.model, device);
    }
    Gpt::new_part(&config.model, config.train.seed, device, holds)
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};

    use super::*;

    #[test]
    fn no_first_weights_are_drawn_where_nothing_is_computed() {
        let config = Config::load("toy", &[]).expect("a preset");
        let largest = |computes_nothing| {
            let gpt: Gpt<Flex> =
                fresh(&config, computes_nothing, &|_| true, &FlexDevice).expect("a valid shape");
            gpt.blocks[0].attention.query.weight.val().abs().max().into_scalar()
        };
        assert!(largest(true) == 0.0 && largest(false) > 0.0);
    }
}
