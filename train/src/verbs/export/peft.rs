//! A run's adapters alone, as PEFT loads them.

use std::path::Path;

use burn::tensor::backend::Backend;
use models::Gpt;
use models::weights::{self, Stored};
use runs::checkpoint::TOKENIZER;
use runs::{BadInput, Trained};
use tokenizer::Tokenizer;

pub(super) fn export<B: Backend>(
    out: &Path,
    stored: Stored,
    trained: &Trained,
    gpt: &Gpt<B>,
) -> anyhow::Result<()> {
    let train = &trained.config.train;
    let (Some(lora), Some(base)) = (&train.lora, &train.lora_base) else {
        let path = trained.checkpoint.path.display();
        return Err(
            BadInput(format!("{path} has no adapters: --layout peft is for runs with `train.lora`")).into()
        );
    };
    let known = Tokenizer::load(base.path.join(TOKENIZER))?.vocab_size();
    let added = trained.tokenizer.vocab_size().saturating_sub(known);
    if added > 0 {
        return Err(BadInput(format!(
            "the run added {added} control tokens to the vocabulary of its base, and adapters hold no embeddings; export the \
             merged model by another --layout"
        ))
        .into());
    }
    let base = base.path.display().to_string();
    weights::save_peft(gpt, lora, &base, out, stored).map_err(|error| BadInput(error.to_string()))?;
    println!("{}: adapters of step {}, for the weights of {base}", out.display(), trained.checkpoint.step);
    println!(
        "PEFT looks for these weights by `base_model_name_or_path` in adapter_config.json; change it to their published name"
    );
    Ok(())
}
