//! A run's tokenizer and token shards, kept in its directory.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use anyhow::Context;
use models::Lookup;
use runs::checkpoint::{TOKENIZER, Verified};
use runs::config::{
    AlignKind, Config, DataSource, OnBadRecordKind, SplitKind, TokenizerKind, TokenizerSection,
};
use runs::{BadInput, Indexes, own_shards};
use tokenizer::{
    Align, BpeTraining, CHAT_SPECIALS, MANIFEST, Manifest, OnBadRecord, Outcome, Preparation, SplitRule,
    Tokenizer, WindowPlan, dialogues,
};

use super::index::{check_listed, indexes};
use super::vocabulary::{learn_bpe, learn_characters};
use crate::progress::InputBar;

#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) sources: Vec<Source>,
    pub(crate) validation: Option<PathBuf>,
    pub(crate) indexes: Option<Indexes>,
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) shards: PathBuf,
    pub(crate) weight: f64,
}

/// Makes missing data. A resumed run takes its checkpoint's tokenizer.
pub(crate) fn prepare(
    config: &Config,
    run: &Path,
    checkpoint: Option<&Verified>,
    stop: &AtomicBool,
) -> anyhow::Result<Data> {
    let folder = run.join("data");
    let tokenizer = match checkpoint {
        Some(checkpoint) => Tokenizer::load(checkpoint.path.join(TOKENIZER))?,
        None => tokenizer(config, run, &folder, stop)?,
    };

    check_listed(config, &tokenizer)?;
    let has_learned = checkpoint.is_some_and(|checkpoint| checkpoint.step > 0);
    let mut data = Data::new(tokenizer, config, (&folder, has_learned), stop)?;
    if config.model.longest_match {
        let indexes = indexes(&data, config, &folder, stop)?;
        if let Some(checkpoint) = checkpoint {
            indexes.check(&checkpoint.path)?;
        }
        data.indexes = Some(indexes);
    }
    Ok(data)
}

impl Data {
    /// `None` if the data needs preparation.
    pub(crate) fn ready(config: &Config) -> Result<Option<Self>, tokenizer::Error> {
        let sources = listed(config);
        let is_there = sources.iter().all(|source| source.shards.exists());
        if config.data.source != DataSource::Shards || !is_there {
            return Ok(None);
        }
        let tokenizer = given_tokenizer(&config.tokenizer)?;
        Ok(tokenizer.map(|tokenizer| Self { tokenizer, sources, validation: None, indexes: None }))
    }

    /// Cuts the shards in `folder` unless they exist. Those that a run `has_learned` from take the place of a text that is
    /// gone or has changed.
    pub(crate) fn new(
        tokenizer: Tokenizer,
        config: &Config,
        (folder, has_learned): (&Path, bool),
        stop: &AtomicBool,
    ) -> anyhow::Result<Self> {
        check_size(&tokenizer, config)?;
        let data = &config.data;
        let validation = data.val_path.as_ref();
        let validation =
            validation.map(|path| validation_set(path, config, folder, &tokenizer, stop)).transpose()?;
        let mut sources = listed(config);
        let make = |inputs, shards: &Path, val_fraction| match cut(
            config,
            inputs,
            shards,
            val_fraction,
            &tokenizer,
            stop,
        ) {
            Err(error) if has_learned => keep(shards, &tokenizer, error),
            outcome => outcome,
        };
        if data.source != DataSource::Shards {
            let val_fraction = if validation.is_some() { 0.0 } else { data.val_fraction };
            if sources.is_empty() {
                let (name, shards) = ("the training text".to_owned(), own_shards(config, folder));
                make(inputs(config, folder)?, &shards, val_fraction)?;
                sources.push(Source { name, shards, weight: 1.0 });
            } else {
                for (at, source) in sources.iter_mut().enumerate() {
                    let input = std::mem::replace(&mut source.shards, folder.join(format!("shards-{at}")));
                    make(vec![input], &source.shards, val_fraction)?;
                }
            }
        }
        Ok(Self { tokenizer, sources, validation, indexes: None })
    }

    pub(crate) fn measuring(
        tokenizer: Tokenizer,
        config: &Config,
        (path, folder): (&Path, &Path),
        stop: &AtomicBool,
    ) -> anyhow::Result<Self> {
        check_size(&tokenizer, config)?;
        let validation = Some(validation_set(path, config, folder, &tokenizer, stop)?);
        Ok(Self { tokenizer, sources: Vec::new(), validation, indexes: None })
    }

    /// The only source of a run that indexes it.
    pub(crate) fn shards(&self) -> &Path {
        &self.sources[0].shards
    }

    pub(crate) fn lookup(&self) -> Option<&dyn Lookup> {
        self.indexes.as_ref().map(|indexes| indexes as &dyn Lookup)
    }

    pub(crate) fn windows(config: &Config, shuffle: bool) -> WindowPlan {
        let align = match config.data.align {
            AlignKind::Anywhere => Align::Anywhere,
            AlignKind::Document => Align::Document,
        };
        WindowPlan { length: config.sequence(), align, shuffle }
    }
}

fn listed(config: &Config) -> Vec<Source> {
    let data = &config.data;
    let source =
        |path: &PathBuf, weight| Source { name: path.display().to_string(), shards: path.clone(), weight };
    let parts = data.mixture.iter().map(|part| source(&part.path, part.weight));
    let single = data.path.iter().filter(|_| data.source == DataSource::Shards);
    parts.chain(single.map(|path| source(path, 1.0))).collect()
}

fn check_size(tokenizer: &Tokenizer, config: &Config) -> Result<(), BadInput> {
    let (known, embedded) = (tokenizer.vocab_size() as usize, config.model.vocab_size);
    if known <= embedded {
        return Ok(());
    }
    Err(BadInput(format!(
        "the tokenizer has {known} ids and the model embeds {embedded}; set model.vocab_size to {known} or more"
    )))
}

/// `path` if it is a set of shards, else one cut from its text.
fn validation_set(
    path: &Path,
    config: &Config,
    folder: &Path,
    tokenizer: &Tokenizer,
    stop: &AtomicBool,
) -> anyhow::Result<PathBuf> {
    let is_shard = |entry: fs::DirEntry| entry.path().extension().is_some_and(|extension| extension == "bin");
    let is_set = path.join(MANIFEST).exists()
        || fs::read_dir(path).is_ok_and(|entries| entries.flatten().any(is_shard));
    if is_set {
        return Ok(path.to_owned());
    }
    let shards = folder.join("validation");
    cut(config, vec![path.to_owned()], &shards, 0.0, tokenizer, stop)?;
    Ok(shards)
}

fn inputs(config: &Config, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match (config.data.source, &config.data.path) {
        (DataSource::Dialogues, _) => {
            let path = folder.join("dialogues.jsonl");
            if !path.exists() {
                fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
                dialogues::write_json_lines(&path, config.data.dialogues, config.train.seed)?;
            }
            Ok(vec![path])
        }
        (_, Some(path)) => Ok(vec![path.clone()]),
        (_, None) => Ok(config.data.mixture.iter().map(|part| part.path.clone()).collect()),
    }
}

fn tokenizer(config: &Config, run: &Path, data: &Path, stop: &AtomicBool) -> anyhow::Result<Tokenizer> {
    let folder = run.join(TOKENIZER);
    if Tokenizer::is_saved_in(&folder) {
        return Ok(Tokenizer::load(&folder)?);
    }

    let section = &config.tokenizer;
    let specials = specials(section);
    let tokenizer = match section.kind {
        TokenizerKind::File | TokenizerKind::Bytes => {
            given_tokenizer(section)?.expect("a tokenizer of kind `file` was checked to have a path")
        }
        TokenizerKind::Characters => learn_characters(&inputs(config, data)?, specials, stop)?,
        TokenizerKind::Bpe => {
            let training = BpeTraining {
                vocab_size: section.vocab_size,
                seed: config.train.seed,
                specials: specials.iter().map(|text| (*text).to_owned()).collect(),
                ..BpeTraining::default()
            };
            learn_bpe(&inputs(config, data)?, &training, stop)?
        }
    };

    let tokenizer = formatted(tokenizer, section)?;
    tokenizer.save(&folder)?;
    // Resumed runs load the saved form, too.
    Ok(Tokenizer::load(&folder)?)
}

fn specials(section: &TokenizerSection) -> &'static [&'static str] {
    if section.chat { &CHAT_SPECIALS } else { &[] }
}

fn given_tokenizer(section: &TokenizerSection) -> Result<Option<Tokenizer>, tokenizer::Error> {
    match (section.kind, &section.path) {
        (TokenizerKind::File, Some(path)) => Tokenizer::load(path).map(Some),
        (TokenizerKind::Bytes, _) => Ok(Some(Tokenizer::bytes(specials(section)))),
        _ => Ok(None),
    }
}

fn formatted(tokenizer: Tokenizer, section: &TokenizerSection) -> anyhow::Result<Tokenizer> {
    match section.template {
        Some(format) => tokenizer.with_format(format).context("setting `tokenizer.template`"),
        None => Ok(tokenizer),
    }
}

fn cut(
    config: &Config,
    inputs: Vec<PathBuf>,
    shards: &Path,
    val_fraction: f64,
    tokenizer: &Tokenizer,
    stop: &AtomicBool,
) -> Result<(), tokenizer::Error> {
    let split = match config.data.split {
        SplitKind::Document => SplitRule::Document { val_fraction, seed: config.train.seed },
        SplitKind::Position => SplitRule::Position { val_fraction },
    };

    let on_bad_record = match config.data.on_bad_record {
        OnBadRecordKind::Skip => OnBadRecord::Skip,
        OnBadRecordKind::Fail => OnBadRecord::Fail,
    };

    let (out, shard_tokens) = (shards.to_owned(), Preparation::SHARD_TOKENS);
    let preparation = Preparation { inputs, out, split, shard_tokens, on_bad_record };
    let mut bar = InputBar::new();
    let outcome = preparation.run(tokenizer, stop, |progress| bar.set(progress));
    bar.clear();
    let (Outcome::Written(manifest) | Outcome::AlreadyThere(manifest)) = outcome?;
    report_bad_records(&manifest);
    Ok(())
}

/// A resumed run has the tokens that it began with, by their digest.
fn keep(shards: &Path, tokenizer: &Tokenizer, error: tokenizer::Error) -> Result<(), tokenizer::Error> {
    let is_whole =
        || Manifest::read(shards).is_ok_and(|made| made.tokenizer.sha256 == tokenizer.fingerprint());
    if matches!(error, tokenizer::Error::Interrupted) || !is_whole() {
        return Err(error);
    }
    eprintln!(
        "the text is gone, or is not the one that {} was cut from: the run goes on with these tokens",
        shards.display()
    );
    Ok(())
}

pub(crate) fn report_bad_records(manifest: &Manifest) {
    let bad = &manifest.bad_records;
    if bad.is_empty() {
        return;
    }
    eprintln!("left out {} of the input's records, which cannot be used; the first:", bad.count);
    for record in &bad.first {
        eprintln!("  {record}");
    }
}
