//! GGUF files: the model, and its vocabulary as fields.

use std::path::Path;

use anyhow::Context;
use burn::tensor::backend::Backend;
use models::Gpt;
use models::weights::gguf::{self, Numbers, Value};
use runs::{BadInput, Trained};
use tokenizer::LlamaCpp;

/// In the folder of `--out`.
pub(super) const FILE: &str = "model.gguf";

pub(super) fn export<B: Backend>(
    out: &Path,
    numbers: Numbers,
    trained: &Trained,
    gpt: &Gpt<B>,
) -> anyhow::Result<()> {
    // First: a refused shape or vocabulary leaves no empty folder.
    gguf::check(gpt.config()).map_err(|error| BadInput(error.to_string()))?;
    let fields = fields(trained, gpt.config().vocab_size)?;

    super::make(out)?;
    let path = out.join(FILE);
    gguf::save(gpt, &path, numbers, fields)?;
    println!("{}: weights and vocabulary of step {}", path.display(), trained.checkpoint.step);
    Ok(())
}

fn fields(trained: &Trained, words: usize) -> anyhow::Result<Vec<(String, Value)>> {
    let tokenizer = &trained.tokenizer;
    let vocabulary = tokenizer.llama_cpp(words).map_err(|error| BadInput(error.to_string()))?;
    let LlamaCpp { model, pattern, tokens, kinds, scores, merges, adds_space, opens_texts, chat_template } =
        vocabulary;

    let mut fields = vec![
        ("tokenizer.ggml.model".to_owned(), Value::Text(model.to_owned())),
        ("tokenizer.ggml.pre".to_owned(), Value::Text(pattern.to_owned())),
        ("tokenizer.ggml.tokens".to_owned(), Value::Texts(tokens)),
        ("tokenizer.ggml.token_type".to_owned(), Value::I32s(kinds)),
        ("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(opens_texts)),
        ("tokenizer.ggml.add_eos_token".to_owned(), Value::Bool(false)),
        ("tokenizer.ggml.add_space_prefix".to_owned(), Value::Bool(adds_space)),
    ];
    fields.extend(scores.map(|scores| ("tokenizer.ggml.scores".to_owned(), Value::F32s(scores))));
    fields.extend(merges.map(|merges| ("tokenizer.ggml.merges".to_owned(), Value::Texts(merges))));

    // An answer ends at the first; the second ends it, too.
    let ends = tokenizer.ends_of_answers();
    let controls = [
        ("bos_token_id", tokenizer.bos()),
        ("eos_token_id", ends.first().copied()),
        ("eot_token_id", ends.get(1).copied()),
    ];
    let id = |(key, id): (&str, Option<u32>)| Some((format!("tokenizer.ggml.{key}"), Value::U32(id?)));
    fields.extend(controls.into_iter().filter_map(id));
    fields.extend(chat_template.map(|text| ("tokenizer.chat_template".to_owned(), Value::Text(text))));

    let folder = std::path::absolute(&trained.checkpoint.path).context("finding the run's folder")?;
    let run = folder.ancestors().nth(2).and_then(|run| run.file_name());
    let name = run.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    fields.push(("general.name".to_owned(), Value::Text(name)));
    Ok(fields)
}
