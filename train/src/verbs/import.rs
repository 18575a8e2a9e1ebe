//! `train import`: begins a run with published weights, or with weights from `export --layout native`.

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use models::weights::{Incoming, WeightsError};
use models::{Footprint, GptConfig};
use runs::checkpoint::{CONFIG, Checkpoints, TOKENIZER, WEIGHTS};
use runs::config::{Config, TokenizerKind};
use runs::directory::RunDirectory;
use runs::{BadInput, text_of};
use serde_json::json;
use tokenizer::{ChatFormat, ChatProblem, Error, Message, Role, Tokenizer};

use super::ConfigArgs;
use crate::progress::InputBar;
use crate::training;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder as Hugging Face publishes it (config.json, safetensors, tokenizer), as `export --layout native` makes it, or a
    /// checkpoint.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The run's directory; `--resume DIR` trains it further.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A tokenizer's folder, where the published folder has none.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.out.join(CONFIG).exists() {
        let out = args.out.display();
        return Err(BadInput(format!("{out} holds a run; choose another --out")).into());
    }
    refuse_without_model(&args.from)?;
    if Checkpoints::is_one(&args.from) {
        Checkpoints::open(&args.from)?;
    }
    let source = &args.tokenizer.clone().unwrap_or_else(|| tokenizer_folder(&args.from));
    let tokenizer = Tokenizer::load(source).map_err(|error| no_tokenizer(&error))?;
    let mut weights = Incoming::open(&args.from).map_err(|error| incomplete(&error, &args.from))?;
    shorten(&mut weights, &args.config.set)?;
    let ignored = models::weights::ignored_keys(&args.from).map_err(|error| unusable(&error))?;
    if !ignored.is_empty() {
        println!("ignored in config.json, as the network does not depend on it: {}", ignored.join(", "));
    }
    runs::weights::tables_fit(weights.config())?;
    let config = described(args, weights.config(), source)?;
    let tokenizer = match config.tokenizer.template {
        Some(format) => formatted(tokenizer, format, weights.config())?,
        None => tokenizer,
    };
    println!("{}", chat_format(&tokenizer));

    let directory = RunDirectory::new(args.out.clone(), config.clone())?;
    let start = directory.start()?;
    tokenizer.save(args.out.join(TOKENIZER))?;
    let (bytes, bar) = (weights.bytes()?, InputBar::new());
    let mut refused = None;
    let saved = Checkpoints::in_run(&args.out).save(0, bytes, |folder| {
        let write = |path: &Path| {
            let written = weights.save(path, |done| bar.set_written(done, bytes));
            let unreadable = |error: &&WeightsError| !matches!(error, WeightsError::File { .. });
            refused = written.as_ref().err().filter(unreadable).map(|error| unusable(error));
            written
        };
        training::save_first(folder, write, &config, &tokenizer)
    });
    if let Some(refused) = refused {
        return Err(refused.into());
    }
    saved?;
    bar.clear();
    // Committed last: an interrupted import leaves no run.
    let _lock = start.commit(&config)?;
    let out = args.out.display();
    println!(
        "{out}: {} parameters. Try them by `train sample --from {out}`, tune them by `train --from {out} --set \
         data.path=TEXT`",
        Footprint::of(&config.model)?.parameters
    );
    Ok(())
}

/// Bad input: another file may work.
fn unusable(error: &dyn Display) -> BadInput {
    BadInput(error.to_string())
}

/// An empty folder lacks more than the tokenizer, which is opened first.
fn refuse_without_model(from: &Path) -> Result<(), BadInput> {
    if [CONFIG, WEIGHTS].iter().any(|file| from.join(file).exists()) {
        return Ok(());
    }
    let from = from.display();
    Err(BadInput(format!(
        "{from} holds no model, neither {CONFIG} nor {WEIGHTS}; download one by `hf download NAME --local-dir {from}`, or \
         name another folder by --from"
    )))
}

/// A model is of use with its own tokenizer only.
fn no_tokenizer(error: &Error) -> BadInput {
    let Error::NoTokenizer { path } = error else { return unusable(error) };
    BadInput(format!(
        "{} holds neither tokenizer.json nor vocab.json with merges.txt; name a folder that does by --tokenizer",
        path.display()
    ))
}

/// A file of `from` that is not there may have been left out of a download.
fn incomplete(error: &WeightsError, from: &Path) -> BadInput {
    match error {
        WeightsError::File { source, .. } if source.kind() == ErrorKind::NotFound => BadInput(format!(
            "{error}; download it again by `hf download NAME --local-dir {}`, or name another folder by --from",
            from.display()
        )),
        _ => unusable(error),
    }
}

/// Refuses a format with control tokens that the model lacks.
fn formatted(tokenizer: Tokenizer, format: ChatFormat, model: &GptConfig) -> Result<Tokenizer, BadInput> {
    let tokenizer = tokenizer.with_format(format).map_err(|error| unusable(&error))?;
    if tokenizer.least_rows() as usize <= model.vocab_size {
        return Ok(tokenizer);
    }
    Err(BadInput(format!(
        "the published vocabulary lacks control tokens of `tokenizer.template` = \"{}\"; import it without, and give the \
         template to `train --from`, which adds them",
        format.name()
    )))
}

fn chat_format(tokenizer: &Tokenizer) -> String {
    let question = [Message::new(Role::User, "?")];
    match (tokenizer.encode_prompt(&question), tokenizer.chat_format()) {
        (Ok(_), Some(format)) => format!("chat format: {format}"),
        (Ok(_), None) => "chat format: its own template, which names no known format".to_owned(),
        (Err(Error::Chat(ChatProblem::NoTemplate)), _) => {
            "no chat format; `train --from` adds one where it tunes on conversations".to_owned()
        }
        (Err(error), _) => {
            format!("conversations need `--set tokenizer.template=NAME`, such as chatml or llama3: {error}")
        }
    }
}

/// A checkpoint's subfolder, otherwise the same folder.
fn tokenizer_folder(folder: &Path) -> PathBuf {
    let own = folder.join(TOKENIZER);
    if own.is_dir() { own } else { folder.to_owned() }
}

/// The only settings of a model that weights leave open are its context and its products' type.
fn shorten(weights: &mut Incoming, set: &[String]) -> anyhow::Result<()> {
    for (key, value) in set.iter().filter_map(|given| given.split_once('=')) {
        match (key.trim(), value.trim().parse()) {
            ("model.n_positions", Ok(n_positions)) => {
                weights.shorten(n_positions).map_err(|error| unusable(&error))?;
            }
            ("model.n_positions" | "model.compute", _) => {}
            (key, _) if key == "model" || key.starts_with("model.") => {
                return Err(BadInput(format!(
                    "`{key}` belongs to the imported weights; set `model.n_positions` or `model.compute` only"
                ))
                .into());
            }
            _ => {}
        }
    }
    Ok(())
}

fn described(args: &Args, model: &GptConfig, tokenizer: &Path) -> anyhow::Result<Config> {
    let ConfigArgs { config: name, set } = &args.config;
    let tokenizer = std::path::absolute(tokenizer)?;
    text_of(&tokenizer)?;
    let Some(name) = name else {
        let text = json!({ "model": model.to_value(), "tokenizer": { "kind": "file", "path": tokenizer } });
        let config = Config::from_text(&text.to_string(), "the imported model's configuration", set)?;
        runs::lora::refuse_without_base(&config)?;
        return Ok(config);
    };
    let mut config = Config::load(name, set)?;
    runs::lora::refuse_without_base(&config)?;
    // Weights leave it open.
    config.model = GptConfig { compute: config.model.compute, ..model.clone() };
    config.tokenizer.kind = TokenizerKind::File;
    config.tokenizer.path = Some(tokenizer);
    config.train.sequence = Some(config.sequence().min(model.n_positions));
    config.resolve_paths()?;
    // Unsuitable settings fail here, not at the first run.
    Ok(Config::from_text(&config.to_json(), name, &[])?)
}
