//! A run's tokenizer and token shards, kept in its directory.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use anyhow::Context;
use models::Lookup;
use runs::checkpoint::{CONFIG, TOKENIZER, Verified};
use runs::config::{
    AlignKind, Config, DataSection, DataSource, OnBadRecordKind, SplitKind, TokenizerKind, TokenizerSection,
};
use runs::{BadInput, Indexes, own_shards, text_of};
use tokenizer::{
    Align, BpeTraining, CHAT_SPECIALS, MANIFEST, Manifest, OnBadRecord, Outcome, Preparation, SplitRule,
    Tokenizer, WindowPlan, dialogues,
};

use super::index::{check_listed, indexes};
use super::vocabulary::{learn_bpe, learn_characters};
use crate::progress::InputBar;

const VALIDATION: &str = "validation";

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
    let before = checkpoint.filter(|checkpoint| checkpoint.step > 0).map(trained_with).transpose()?;
    let mut data = Data::new(tokenizer, config, (&folder, before.as_ref()), stop)?;
    if config.model.longest_match {
        let indexes = indexes(&data, config, &folder, stop)?;
        if let Some(checkpoint) = checkpoint {
            indexes.check(&checkpoint.path)?;
        }
        data.indexes = Some(indexes);
    }
    Ok(data)
}

fn trained_with(checkpoint: &Verified) -> anyhow::Result<Config> {
    let mut config = Config::load(text_of(&checkpoint.path.join(CONFIG))?, &[])?;
    config.resolve_paths()?;
    Ok(config)
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

    /// Cuts the shards in `folder` unless they exist. Those of a run that has learned with the configuration `before` take
    /// the place of a text that is gone or has changed.
    pub(crate) fn new(
        tokenizer: Tokenizer,
        config: &Config,
        (folder, before): (&Path, Option<&Config>),
        stop: &AtomicBool,
    ) -> anyhow::Result<Self> {
        check_size(&tokenizer, config)?;
        let data = &config.data;
        let make = |text: Text, inputs, shards: &Path, val_fraction| -> anyhow::Result<()> {
            match (cut(config, inputs, shards, val_fraction, &tokenizer, stop), before) {
                (Err(error), Some(before)) => text.keep(shards, &tokenizer, [&before.data, data], error),
                (outcome, _) => Ok(outcome?),
            }
        };

        let validation = match &data.val_path {
            Some(path) if !is_set(path) => {
                let shards = folder.join(VALIDATION);
                make(Text::Validation, vec![path.clone()], &shards, 0.0)?;
                Some(shards)
            }
            set => set.clone(),
        };
        let mut sources = listed(config);
        if data.source != DataSource::Shards {
            let val_fraction = if validation.is_some() { 0.0 } else { data.val_fraction };
            if sources.is_empty() {
                let (name, shards) = ("the training text".to_owned(), own_shards(config, folder));
                make(Text::Training, inputs(config, folder)?, &shards, val_fraction)?;
                sources.push(Source { name, shards, weight: 1.0 });
            } else {
                for (at, source) in sources.iter_mut().enumerate() {
                    let input = std::mem::replace(&mut source.shards, folder.join(format!("shards-{at}")));
                    make(Text::Part(at), vec![input], &source.shards, val_fraction)?;
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
        let mut set = path.to_owned();
        if !is_set(path) {
            set = folder.join(VALIDATION);
            cut(config, vec![path.to_owned()], &set, 0.0, &tokenizer, stop)?;
        }
        Ok(Self { tokenizer, sources: Vec::new(), validation: Some(set), indexes: None })
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
    // Given shards may hold any id.
    let known = match config.data.source {
        DataSource::Shards => tokenizer.vocab_size(),
        DataSource::Dialogues | DataSource::Text => tokenizer.least_rows(),
    };
    let (known, embedded) = (known as usize, config.model.vocab_size);
    if known <= embedded {
        return Ok(());
    }
    Err(BadInput(format!(
        "the tokenizer has {known} ids and the model embeds {embedded}; set model.vocab_size to {known} or more"
    )))
}

/// Whether `path` is a set of shards, not text.
fn is_set(path: &Path) -> bool {
    let is_shard = |entry: fs::DirEntry| entry.path().extension().is_some_and(|extension| extension == "bin");
    path.join(MANIFEST).exists() || fs::read_dir(path).is_ok_and(|entries| entries.flatten().any(is_shard))
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

/// A text of the configuration that becomes shards.
#[derive(Debug, Clone, Copy)]
enum Text {
    Training,
    /// Of the mixture.
    Part(usize),
    Validation,
}

impl Text {
    fn key(self) -> String {
        match self {
            Self::Training => "data.path".to_owned(),
            Self::Part(at) => format!("data.mixture[{at}].path"),
            Self::Validation => "data.val_path".to_owned(),
        }
    }

    fn path(self, data: &DataSection) -> Option<&Path> {
        match self {
            Self::Training => data.path.as_deref(),
            Self::Part(at) => data.mixture.get(at).map(|part| part.path.as_path()),
            Self::Validation => data.val_path.as_deref(),
        }
    }

    /// A resumed run has the tokens that it began with, by their digest. Refuses another path than `before`: the user wants
    /// another text.
    fn keep(
        self,
        shards: &Path,
        tokenizer: &Tokenizer,
        [before, now]: [&DataSection; 2],
        error: tokenizer::Error,
    ) -> anyhow::Result<()> {
        let is_whole =
            || Manifest::read(shards).is_ok_and(|made| made.tokenizer.sha256 == tokenizer.fingerprint());
        if matches!(error, tokenizer::Error::Interrupted) || !is_whole() {
            return Err(error.into());
        }

        let ([before, now], shards) = ([before, now].map(|data| self.path(data)), shards.display());
        if before == now {
            eprintln!(
                "the text is gone, or is not the one that {shards} was cut from: the run goes on with these tokens"
            );
            return Ok(());
        }
        let shown = |path: Option<&Path>| path.map_or("null".to_owned(), |path| path.display().to_string());
        let reason = match error {
            // Its remedy would make the run lose its tokens.
            tokenizer::Error::Occupied { .. } => String::new(),
            error => format!(" ({error})"),
        };
        let otherwise = match self {
            Self::Validation => format!("remove {shards} to validate with another text"),
            Self::Training | Self::Part(_) => "begin another run".to_owned(),
        };
        Err(BadInput(format!(
            "`{}` = {} is not the text that {shards} was cut from{reason}; leave it at {} to go on with the run's tokens, or \
             {otherwise}",
            self.key(),
            shown(now),
            shown(before)
        ))
        .into())
    }
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
