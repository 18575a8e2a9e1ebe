//! A run's tokenizer and token shards, kept in its directory.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use anyhow::Context;
use models::Lookup;
use runs::checkpoint::TOKENIZER;
use runs::config::{
    AlignKind, Config, DataSource, OnBadRecordKind, SplitKind, TokenizerKind, TokenizerSection,
};
use runs::{BadInput, Indexes, own_shards};
use tokenizer::{
    Align, BpeTraining, CHAT_SPECIALS, Manifest, OnBadRecord, Outcome, Preparation, SplitRule, Tokenizer,
    WindowPlan, dialogues,
};

use super::index::{check_listed, indexes};
use super::vocabulary::{learn_bpe, learn_characters};
use crate::progress::InputBar;

#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) shards: PathBuf,
    pub(crate) indexes: Option<Indexes>,
}

/// Makes missing data. A resumed run takes its checkpoint's tokenizer.
pub(crate) fn prepare(
    config: &Config,
    run: &Path,
    checkpoint: Option<&Path>,
    stop: &AtomicBool,
) -> anyhow::Result<Data> {
    let folder = run.join("data");
    let tokenizer = match checkpoint {
        Some(checkpoint) => Tokenizer::load(checkpoint.join(TOKENIZER))?,
        None => tokenizer(config, run, &folder, stop)?,
    };

    check_listed(config, &tokenizer)?;
    let mut data = Data::new(tokenizer, config, &folder, stop)?;
    if config.model.longest_match {
        let indexes = indexes(&data, config, &folder, stop)?;
        if let Some(checkpoint) = checkpoint {
            indexes.check(checkpoint)?;
        }
        data.indexes = Some(indexes);
    }
    Ok(data)
}

impl Data {
    /// `None` if the data needs preparation.
    pub(crate) fn ready(config: &Config) -> Result<Option<Self>, tokenizer::Error> {
        let shards = config.data.path.as_ref().filter(|path| path.exists());
        let (DataSource::Shards, Some(shards)) = (config.data.source, shards) else { return Ok(None) };
        let tokenizer = given_tokenizer(&config.tokenizer)?;
        Ok(tokenizer.map(|tokenizer| Self { tokenizer, shards: shards.clone(), indexes: None }))
    }

    /// Cuts the shards in `folder` unless they exist.
    pub(crate) fn new(
        tokenizer: Tokenizer,
        config: &Config,
        folder: &Path,
        stop: &AtomicBool,
    ) -> anyhow::Result<Self> {
        let (known, embedded) = (tokenizer.vocab_size() as usize, config.model.vocab_size);
        if known > embedded {
            return Err(BadInput(format!(
                "the tokenizer has {known} ids and the model embeds {embedded}; set model.vocab_size to {known} or more"
            ))
            .into());
        }

        if let (DataSource::Shards, Some(path)) = (config.data.source, &config.data.path) {
            return Ok(Self { tokenizer, shards: path.clone(), indexes: None });
        }

        let shards = own_shards(config, folder);
        cut(config, inputs(config, folder)?, &shards, &tokenizer, stop)?;
        Ok(Self { tokenizer, shards, indexes: None })
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
        (_, None) => unreachable!("a source other than the embedded one was checked to have a path"),
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

fn cut(
    config: &Config,
    inputs: Vec<PathBuf>,
    shards: &Path,
    tokenizer: &Tokenizer,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let val_fraction = config.data.val_fraction;
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
