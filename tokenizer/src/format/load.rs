//! Finds and reads a tokenizer's files.

use std::{collections::HashSet, fs, io::ErrorKind, path::Path};

use crate::{
    encode::{
        special::{SpecialToken, SpecialTokens},
        split::Pattern,
        tokenizer::{Tokenizer, byte_level_definition},
    },
    error::Error,
    format::{
        config::{Config, Template},
        definition::{Definition, SpelledMerge, Vocabulary},
        limits,
        problem::{Limit, Problem},
    },
    regular,
};

const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";

impl Tokenizer {
    /// Loads `tokenizer.json`, or a folder with it or with GPT-2's `vocab.json` and `merges.txt`. A
    /// `tokenizer_config.json` there adds the chat template. Files are read within [`crate::limits`]; a faulty one is
    /// an [`Error::Tokenizer`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if !fs::metadata(path).map_err(Error::read(path))?.is_dir() {
            let config = match path.parent() {
                Some(folder) => read_config(folder)?,
                None => Config::default(),
            };
            return load_json(path, config);
        }
        let json = path.join("tokenizer.json");
        if json.exists() {
            return load_json(&json, read_config(path)?);
        }
        if path.join(VOCAB).exists() && path.join(MERGES).exists() {
            return load_gpt2(path, read_config(path)?);
        }
        Err(Error::NoTokenizer { path: path.to_owned() })
    }

    /// From `tokenizer.json` alone.
    pub fn from_json(json: &[u8]) -> Result<Self, Problem> {
        Self::new(&Definition::parse(json)?, json.to_vec(), Config::default())
    }
}

fn load_json(path: &Path, config: Config) -> Result<Tokenizer, Error> {
    let json = regular::read(path, limits::FILE_BYTES)?;
    Definition::parse(&json)
        .and_then(|definition| Tokenizer::new(&definition, json, config))
        .map_err(|problem| Error::Tokenizer { path: path.to_owned(), problem })
}

/// GPT-2's vocabulary does not mark `<|endoftext|>`, its only control token.
fn load_gpt2(folder: &Path, config: Config) -> Result<Tokenizer, Error> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |problem| Error::Tokenizer { path, problem }
    };
    let (vocab_path, merges_path) = (&folder.join(VOCAB), &folder.join(MERGES));
    let json = regular::read(vocab_path, limits::FILE_BYTES)?;
    let vocabulary: Vocabulary =
        serde_json::from_slice(&json).map_err(Problem::Json).map_err(at(vocab_path))?;
    check_gpt2(folder, &config, &vocabulary)?;
    let merges = parse_merges(&regular::read(merges_path, limits::FILE_BYTES)?).map_err(at(merges_path))?;
    let end = vocabulary.0.iter().find(|(token, _)| token == "<|endoftext|>");
    let end = end.map(|(token, id)| SpecialToken { text: token.clone(), id: *id });
    let mut definition = byte_level_definition(Pattern::Gpt2, vocabulary.0, merges);
    definition.added_tokens = SpecialTokens::new(end.into_iter().collect()).iter().map(Into::into).collect();
    let json = definition.to_json();
    Definition::parse(&json)
        .and_then(|definition| Tokenizer::new(&definition, json, config))
        .map_err(at(merges_path))
}

/// Refuses the files of another tokenizer: they hold neither its pattern nor all its tokens.
fn check_gpt2(folder: &Path, config: &Config, vocabulary: &Vocabulary) -> Result<(), Error> {
    let path = folder.join("added_tokens.json");
    let added: Vocabulary = match read_if_there(&path)? {
        None => Vocabulary::default(),
        Some(json) => serde_json::from_slice(&json)
            .map_err(|error| Error::Tokenizer { path, problem: Problem::Json(error) })?,
    };
    let known: HashSet<u32> = vocabulary.0.iter().map(|(_, id)| *id).collect();
    let mut listed = added.0.iter().map(|(_, id)| *id).chain(config.added_ids());

    let class = config.tokenizer_class.as_deref().unwrap_or("GPT2Tokenizer");
    let reason = if !["GPT2Tokenizer", "GPT2TokenizerFast"].contains(&class) {
        format!("this tokenizer's class is `{class}`")
    } else if let Some(id) = listed.find(|id| !known.contains(id)) {
        format!("{VOCAB} lacks the added token {id}")
    } else {
        return Ok(());
    };
    Err(Error::Tokenizer { path: folder.to_owned(), problem: Problem::NotGpt2(reason) })
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match regular::read(path, limits::CONFIG_BYTES) {
        Err(Error::Read { cause, .. }) if cause.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

fn parse_merges(text: &[u8]) -> Result<Vec<SpelledMerge>, Problem> {
    let text = std::str::from_utf8(text).map_err(|error| {
        let before = text[..error.valid_up_to()].split(|byte| *byte == b'\n');
        Problem::MergeLine(before.count())
    })?;
    let mut merges = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.is_empty() || (at == 0 && line.starts_with("#version")) {
            continue;
        }
        merges.push(SpelledMerge::from_line(line).ok_or(Problem::MergeLine(at + 1))?);
        Limit::Merges.check(merges.len(), limits::MERGES)?;
    }
    Ok(merges)
}

fn read_config(folder: &Path) -> Result<Config, Error> {
    let mut path = folder.join("tokenizer_config.json");
    let mut config = match read_if_there(&path)? {
        None => Config::default(),
        Some(json) => serde_json::from_slice(&json)
            .map_err(|error| Error::Tokenizer { path: path.clone(), problem: Problem::Json(error) })?,
    };
    // Newer releases keep the template in its own file, which wins.
    let template = folder.join("chat_template.jinja");
    if let Some(text) = read_if_there(&template)? {
        path = template;
        let text = String::from_utf8(text)
            .map_err(|_| Error::Tokenizer { path: path.clone(), problem: Problem::TemplateNotText })?;
        config.chat_template = Some(Template::One(text));
    }
    Limit::TemplateBytes
        .check(config.template().map_or(0, str::len), limits::TEMPLATE_BYTES)
        .map_err(|problem| Error::Tokenizer { path, problem })?;
    Ok(config)
}
