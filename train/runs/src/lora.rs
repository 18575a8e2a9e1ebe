//! Runs that tune adapters. Checkpoints hold these alone, and name the frozen weights by path and digest
//! (`a_base_that_moved_or_changed_is_refused_with_the_way_out`).

use std::path::Path;

use anyhow::Context;
use burn::tensor::backend::Backend;
use models::weights::{Factors, PeftAdapters, load_adapters};
use models::{Gpt, GptConfig, LoraConfig};
use tokenizer::Tokenizer;

use crate::checkpoint::{TOKENIZER, WEIGHTS};
use crate::config::{Config, LoraBase};
use crate::{BadInput, Pretrained};

const WAY_OUT: &str = "name the right checkpoint by --set train.lora_base.path=PATH";

/// Refuses adapters without weights below them.
pub fn refuse_without_base(config: &Config) -> Result<(), BadInput> {
    if config.train.lora.is_none() {
        return Ok(());
    }
    Err(BadInput(
        "`train.lora` tunes trained weights; begin a run with them by `train --from RUN`".to_owned(),
    ))
}

/// Adapters in PEFT's layout for weights of `model`. Impossible ones are bad input.
pub(crate) fn peft(model: &GptConfig, folder: &Path) -> anyhow::Result<PeftAdapters> {
    PeftAdapters::open(model, folder).map_err(|error| BadInput(error.to_string()).into())
}

/// The checkpoint's model: frozen weights with the saved adapters.
pub(crate) fn load<B: Backend>(
    folder: &Path,
    config: &Config,
    (lora, factors): (&LoraConfig, Factors),
    device: &B::Device,
) -> anyhow::Result<Gpt<B>> {
    let base = config.train.lora_base.as_ref();
    let base = base.ok_or_else(|| {
        BadInput(format!("{} names no weights under its adapters; {WAY_OUT}", folder.display()))
    })?;
    let tokenizer = Tokenizer::load(folder.join(TOKENIZER))?;
    // Adapters have learned beside rounded weights.
    let factors = if factors == Factors::Wide { Factors::Rounded(config.memory.base) } else { factors };
    let gpt = open(base)?.knowing(tokenizer).load::<B>(&config.model, factors, device)?;
    let gpt = gpt.with_adapters(lora, config.train.seed)?;
    Ok(load_adapters(gpt, &folder.join(WEIGHTS))?)
}

fn open(LoraBase { path, sha256 }: &LoraBase) -> anyhow::Result<Pretrained> {
    let shown = path.display();
    if !path.is_dir() {
        let text = format!("the weights that this run tunes are not at {shown}; {WAY_OUT}");
        return Err(BadInput(text).into());
    }
    let base = Pretrained::open(path)
        .with_context(|| format!("opening the weights that this run tunes; {WAY_OUT}"))?;
    match base.digest() {
        Some(found) if found == *sha256 => Ok(base),
        found => {
            let found = found.map_or("none".to_owned(), |found| found.to_string());
            Err(BadInput(format!(
                "{shown} holds other weights than this run tunes: their digest is {found} instead of {sha256}; {WAY_OUT}"
            ))
            .into())
        }
    }
}
