//! Loads a checkpoint's weights.

use std::path::Path;

use backend_offload::{Bytes, available_host_memory};
use burn::tensor::backend::Backend;
use models::init::Holds;
use models::weights::{Factors, Layout};
use models::{Footprint, Gpt, GptConfig};

use crate::checkpoint::WEIGHTS;
use crate::config::Config;
use crate::{BadInput, lora};

/// Loads verified weights of the configured model. Adapters come with their frozen weights, which hold the values of
/// `memory.base`.
pub fn load<B: Backend>(
    folder: &Path,
    config: &Config,
    factors: Factors,
    device: &B::Device,
) -> anyhow::Result<Gpt<B>> {
    load_part(folder, config, (factors, &|_| true), device)
}

/// As [`load`], without parameters that `holds` refuses, unless there are adapters.
pub fn load_part<B: Backend>(
    folder: &Path,
    config: &Config,
    (factors, holds): (Factors, Holds<'_>),
    device: &B::Device,
) -> anyhow::Result<Gpt<B>> {
    let wanted = &config.model;
    tables_fit(wanted)?;
    let path = folder.join(WEIGHTS);
    let stored = GptConfig { compute: wanted.compute, ..models::weights::native_config(&path)? };
    if stored != *wanted {
        return Err(BadInput(format!(
            "the checkpoint {} holds another model than the configuration describes; take the configuration in its \
             config.json",
            folder.display()
        ))
        .into());
    }
    if let Some(adapters) = &config.train.lora {
        return lora::load(folder, config, (adapters, factors), device);
    }
    let file: (&[&Path], _) = (&[&path], Layout::Native);
    Ok(models::weights::load_part(wanted, (factors, holds), file, device)?)
}

/// Fails if the rotary tables, sized by `n_positions`, exceed free host memory.
pub fn tables_fit(model: &GptConfig) -> anyhow::Result<()> {
    let tables = Footprint::of(model)?.rotary_bytes();
    match available_host_memory().filter(|free| *free < tables) {
        Some(free) => Err(BadInput(format!(
            "the rotary tables of `n_positions` = {} take {} and {} of memory are free; lower `n_positions`",
            model.n_positions,
            Bytes(tables),
            Bytes(free)
        ))
        .into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotary_tables_longer_than_memory_are_refused_before_they_are_made() {
        let model = |positions: u64| {
            let text = format!(r#"{{"preset": "nanochat", "n_positions": {positions}}}"#);
            GptConfig::from_json(&text).expect("it can be counted")
        };
        let said = tables_fit(&model(100_000_000_000)).expect_err("too long").to_string();
        assert!(said.starts_with("the rotary tables of `n_positions` = 100000000000 take "), "{said}");
        tables_fit(&model(64)).expect("they are short");
    }
}
