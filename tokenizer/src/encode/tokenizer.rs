//! The tokenizer, over all encoders.

use std::{collections::BTreeSet, path::Path};

use rayon::prelude::*;
use serde_json::json;

use crate::{
    chat::{format::ChatFormat, published::PublishedFormat, template::ChatTemplate},
    encode::{
        alphabet,
        kind::Kind,
        pipeline::Placed,
        special::{CHAT_SPECIALS, SpecialToken, SpecialTokens},
        split::Pattern,
        token_bytes::Spellings,
    },
    error::Error,
    fingerprint::Fingerprint,
    format::{
        config::{Config, Template, Token},
        definition::{AddedToken, Definition, Model, SpelledMerge, Vocabulary},
        limits,
        opening::{opening, opens_texts},
        problem::Problem,
    },
};

/// Turns text into token ids and back.
///
/// [`encode`](Self::encode) never gives control tokens, which come from the chat template or by name. Encoding is
/// deterministic; threads can share a tokenizer.
///
/// ```
/// let tokenizer = tokenizer::Tokenizer::bytes(&tokenizer::CHAT_SPECIALS);
/// let ids = tokenizer.encode("<|bos|> hé")?;
/// assert!(ids.iter().all(|id| !tokenizer.specials().contains(*id)));
/// assert_eq!(tokenizer.decode(&ids)?, "<|bos|> hé");
/// # Ok::<(), tokenizer::Error>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) kind: Kind,
    /// For [`Kind::Pipeline`].
    pub(crate) spellings: Option<Spellings>,
    specials: SpecialTokens,
    size: u32,
    ends: Ends,
    json: Vec<u8>,
    fingerprint: Fingerprint,
    config: Config,
    pub(crate) chat: Option<ChatTemplate>,
}

/// Tokens at the ends of texts.
#[derive(Debug)]
struct Ends {
    bos: Option<u32>,
    eos: Option<u32>,
    opens_texts: bool,
}

impl Tokenizer {
    /// Bytes as ids 0 to 255, then `specials`.
    pub fn bytes(specials: &[&str]) -> Self {
        let vocabulary =
            (0..=u8::MAX).map(|byte| (alphabet::char_of(byte).to_string(), byte.into())).collect();
        Self::from_definition(byte_level_definition(Pattern::Whole, vocabulary, Vec::new()), specials)
            .expect("256 bytes are a vocabulary")
    }

    /// Characters of `alphabet` by code point, then `specials`.
    pub fn characters(alphabet: &BTreeSet<char>, specials: &[&str]) -> Result<Self, Problem> {
        let vocabulary =
            alphabet.iter().zip(0..).map(|(character, id)| (character.to_string(), id)).collect();
        let mut definition = byte_level_definition(Pattern::Whole, vocabulary, Vec::new());
        definition.pre_tokenizer = None;
        definition.decoder = Some(json!({"type": "Fuse"}));
        Self::from_definition(definition, specials)
    }

    pub(crate) fn from_definition(mut definition: Definition, specials: &[&str]) -> Result<Self, Problem> {
        let specials = SpecialTokens::after(definition.model.vocab.0.len() as u32, specials);
        definition.added_tokens = specials.iter().map(AddedToken::from).collect();
        let config = Config::for_specials(&specials);
        // Checked: `specials` are the caller's.
        let json = definition.to_json();
        Self::new(&Definition::parse(&json)?, json, config)
    }

    /// `json`, the source of `definition`, is saved unchanged.
    pub(crate) fn new(definition: &Definition, json: Vec<u8>, config: Config) -> Result<Self, Problem> {
        let definition = definition.with_controls(&controls_of(&config));
        let definition = definition.as_ref();
        let specials = SpecialTokens::from(definition);
        let kind = Kind::new(definition, &specials)?;

        let ids = definition.model.vocab.0.iter().map(|(_, id)| *id);
        let size =
            ids.chain(definition.added_tokens.iter().map(|token| token.id)).max().map_or(0, |last| last + 1);
        let spellings = matches!(kind, Kind::Pipeline(_)).then(|| Spellings::new(definition, size));

        let first_of = |named: Option<&str>, usual: [&str; 2]| {
            named.into_iter().chain(usual).find_map(|text| specials.id(text))
        };
        let bos = first_of(config.bos_token.as_ref().map(Token::text), ["<|bos|>", "<|endoftext|>"]);
        let eos =
            first_of(config.eos_token.as_ref().map(Token::text), ["<|assistant_end|>", "<|endoftext|>"]);

        let text = |id: Option<u32>| id.and_then(|id| specials.text(id)).unwrap_or_default().to_owned();
        let opens_texts = bos.is_some() && opens_texts(definition, &config, &text(bos));
        let ends = Ends { bos, eos, opens_texts };
        let chat =
            config.template().map(|template| ChatTemplate::new(template.to_owned(), text(bos), text(eos)));

        let fingerprint = Fingerprint::of(&json);
        Ok(Self { kind, spellings, specials, size, ends, json, fingerprint, config, chat })
    }

    /// Without a template, adds that of the chat format whose control tokens it knows; else our own and, after the last
    /// id, missing control tokens.
    pub fn with_chat(self) -> Result<Self, Problem> {
        if self.chat.is_some() {
            return Ok(self);
        }
        if let Some(format) = ChatFormat::known_to(&self.specials) {
            return self.with_format(format);
        }
        let (definition, json) = self.with_controls(&CHAT_SPECIALS)?;
        let config = Config::for_specials(&SpecialTokens::from(&definition));
        Self::new(&definition, json, config)
    }

    /// Replaces the chat template; missing control tokens follow the last id.
    pub fn with_format(self, format: ChatFormat) -> Result<Self, Problem> {
        let (definition, json) = self.with_controls(format.controls())?;
        let mut config = self.config;
        config.chat_template = Some(Template::One(format.template()));
        Self::new(&definition, json, config)
    }

    fn with_controls(&self, texts: &[&str]) -> Result<(Definition, Vec<u8>), Problem> {
        let lacking: Vec<_> = texts.iter().copied().filter(|text| self.specials.id(text).is_none()).collect();
        if lacking.is_empty() {
            return Ok((self.definition(), self.json.clone()));
        }
        let mut definition = self.definition();
        let mut next = self.size;
        for text in lacking {
            if let Some(token) = definition.added_tokens.iter_mut().find(|token| token.content == text) {
                token.special = true;
                continue;
            }
            let known = definition.model.vocab.0.iter().find(|(token, _)| token == text).map(|(_, id)| *id);
            let id = known.unwrap_or(next);
            next += u32::from(known.is_none());
            definition.added_tokens.push(AddedToken::from(&SpecialToken { text: text.to_owned(), id }));
        }
        let json = definition.to_json();
        Ok((Definition::parse(&json)?, json))
    }

    /// Whether it has a template for conversations.
    pub fn has_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// Name of the chat format, if recognised.
    pub fn chat_format(&self) -> Option<&'static str> {
        Some(self.chat.as_ref()?.format()?.name())
    }

    pub(crate) fn definition(&self) -> Definition {
        Definition::parse(&self.json).expect("the tokenizer was made of it")
    }

    pub(crate) fn chat_template(&self) -> Option<&str> {
        self.config.template()
    }

    /// All ids are below; some may be unused.
    pub fn vocab_size(&self) -> u32 {
        self.size
    }

    /// Rows that an embedding needs. Control tokens at the end count only if a text or a conversation gets them: some
    /// published vocabularies end with those of larger models.
    pub fn least_rows(&self) -> u32 {
        let unknown = match &self.kind {
            Kind::Pipeline(pipeline) => pipeline.unknown(),
            Kind::Bytes | Kind::Characters(_) | Kind::ByteBpe(_) => None,
        };
        let is_written = |id: u32, text: &str| {
            [self.ends.bos, self.ends.eos, unknown].contains(&Some(id))
                || self.config.template().is_some_and(|template| template.contains(text))
        };
        let mut rows = self.size;
        while let Some(last) = rows.checked_sub(1)
            && self.specials.text(last).is_some_and(|text| !is_written(last, text))
        {
            rows = last;
        }
        rows
    }

    /// The control tokens.
    pub fn specials(&self) -> &SpecialTokens {
        &self.specials
    }

    /// Opens documents.
    pub fn bos(&self) -> Option<u32> {
        self.ends.bos
    }

    /// Whether [`bos`](Self::bos) opens texts to continue, too. Some published vocabularies write it between documents
    /// only.
    pub fn opens_texts(&self) -> bool {
        self.ends.opens_texts
    }

    /// The token that the post-processor of `tokenizer.json` puts before a text. Parses the file again.
    pub fn written_opening(&self) -> Option<String> {
        opening(self.definition().post_processor.as_ref()?).map(str::to_owned)
    }

    /// Ends generation.
    pub fn eos(&self) -> Option<u32> {
        self.ends.eos
    }

    /// Closes documents of text. `None` where [`bos`](Self::bos) does, by opening the next, or where the vocabulary
    /// only has ends of answers.
    pub fn end_of_text(&self) -> Option<u32> {
        let ends = self.answers_end();
        let closes = |id: &u32| {
            Some(*id) != self.ends.bos
                && Some(*id) != ends
                && self.specials.text(*id) != Some("<|assistant_end|>")
        };
        self.ends.eos.filter(closes)
    }

    fn answers_end(&self) -> Option<u32> {
        let format = self.chat.as_ref().and_then(ChatTemplate::format)?;
        format.ends_answers().and_then(|text| self.specials.id(text))
    }

    /// Ends of an answer, each once: the chat format's, the text's, and the token that opens a text.
    pub fn ends_of_answers(&self) -> Vec<u32> {
        let mut ends = Vec::new();
        for id in [self.answers_end(), self.ends.eos, self.ends.bos].into_iter().flatten() {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        ends
    }

    /// Digest of `tokenizer.json`; shards carry its first bytes.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// `bytes`, `characters`, `byte-level BPE` or `BPE`.
    pub fn kind(&self) -> &'static str {
        match &self.kind {
            Kind::Bytes => "bytes",
            Kind::Characters(_) => "characters",
            Kind::ByteBpe(_) => "byte-level BPE",
            Kind::Pipeline(_) => "BPE",
        }
    }

    /// The pattern that this crate cuts text by.
    pub fn pattern(&self) -> Option<Pattern> {
        match &self.kind {
            Kind::ByteBpe(bpe) => Some(bpe.pattern()),
            _ => None,
        }
    }

    /// Whether [`Preparation`](crate::Preparation) accepts files other than UTF-8: for byte-level BPE, nearly always a
    /// mistake.
    pub fn takes_any_file(&self) -> bool {
        matches!(self.kind, Kind::Bytes)
    }

    /// Never gives control tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.encode_at(text, true)
    }

    /// `begins`: no control token precedes the text. Some vocabularies write a blank only before such a text.
    pub(crate) fn encode_at(&self, text: &str, begins: bool) -> Result<Vec<u32>, Error> {
        if text.len() > limits::TEXT_BYTES {
            return Err(Error::TextTooLong { bytes: text.len(), limit: limits::TEXT_BYTES });
        }
        match &self.kind {
            Kind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Kind::Characters(characters) => characters
                .encode(text)
                .map_err(|outside| Error::OutsideAlphabet { character: outside.character, at: outside.at }),
            Kind::ByteBpe(bpe) => Ok(bpe.encode(text)),
            Kind::Pipeline(pipeline) => pipeline.encode(text, begins, &self.specials),
        }
    }

    /// `None` for vocabularies that this crate encodes, and for texts too long to encode at once.
    pub(crate) fn encode_with_places(&self, text: &str, begins: bool) -> Result<Option<Vec<Placed>>, Error> {
        match &self.kind {
            Kind::Pipeline(pipeline) if pipeline.takes(text) => {
                pipeline.encode_with_places(text, begins, &self.specials).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Bytes outside UTF-8 need raw bytes or byte-level BPE.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>, Error> {
        match (std::str::from_utf8(bytes), &self.kind) {
            (Ok(text), _) => self.encode(text),
            (Err(_), Kind::Bytes) => Ok(bytes.iter().map(|byte| u32::from(*byte)).collect()),
            (Err(_), Kind::ByteBpe(_)) if bytes.len() > limits::TEXT_BYTES => {
                Err(Error::TextTooLong { bytes: bytes.len(), limit: limits::TEXT_BYTES })
            }
            (Err(_), Kind::ByteBpe(bpe)) => Ok(bpe.encode_bytes(bytes)),
            (Err(error), _) => Err(Error::BytesNotText { at: error.valid_up_to() }),
        }
    }

    /// Encodes many texts on the current thread pool.
    pub fn encode_batch<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Result<Vec<Vec<u32>>, Error> {
        texts.par_iter().with_max_len(1).map(|text| self.encode(text.as_ref())).collect()
    }

    /// Bytes of `ids`; control tokens have none.
    pub fn decode_bytes(&self, ids: &[u32]) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        if let Kind::Pipeline(pipeline) = &self.kind {
            let text = ids.iter().copied().filter(|id| !self.specials.contains(*id)).collect::<Vec<_>>();
            text.iter()
                .try_for_each(|id| if pipeline.knows(*id) { Ok(()) } else { Err(self.unknown(*id)) })?;
            return Ok(pipeline.decode(&text)?.into_bytes());
        }
        for id in ids {
            self.push_token(*id, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// [`decode_bytes`](Self::decode_bytes) with U+FFFD for invalid UTF-8.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        let bytes = self.decode_bytes(ids)?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Appends a token's bytes. Not for [`Kind::Pipeline`], where neighbours matter.
    pub(crate) fn push_token(&self, id: u32, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let token = match &self.kind {
            _ if self.specials.contains(id) => return Ok(()),
            Kind::Bytes => {
                bytes.push(u8::try_from(id).map_err(|_| self.unknown(id))?);
                return Ok(());
            }
            Kind::Characters(characters) => characters.token(id),
            Kind::ByteBpe(bpe) => bpe.token(id),
            Kind::Pipeline(_) => None,
        };
        bytes.extend_from_slice(token.ok_or_else(|| self.unknown(id))?);
        Ok(())
    }

    pub(crate) fn unknown(&self, id: u32) -> Error {
        Error::UnknownId { id, vocabulary: self.size }
    }

    /// Whether [`save`](Self::save) completed: its second file exists.
    pub fn is_saved_in(folder: impl AsRef<Path>) -> bool {
        folder.as_ref().join("tokenizer_config.json").exists()
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json`, each completely or not at all.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), Error> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(Error::write(folder))?;
        for (name, contents) in
            [("tokenizer.json", &self.json), ("tokenizer_config.json", &self.config.to_json())]
        {
            let path = folder.join(name);
            durable::write(&path, contents).map_err(Error::write(&path))?;
        }
        Ok(())
    }
}

/// Control tokens of the published format that the template writes.
fn controls_of(config: &Config) -> Vec<&str> {
    let Some(format) = config.template().and_then(PublishedFormat::recognised) else { return Vec::new() };
    let ends = [&config.bos_token, &config.eos_token].into_iter().flatten();
    format.controls().iter().copied().chain(ends.map(Token::text)).collect()
}

impl From<&SpecialToken> for AddedToken {
    fn from(token: &SpecialToken) -> Self {
        let SpecialToken { text, id } = token.clone();
        let (single_word, lstrip, rstrip, normalized) = (false, false, false, false);
        Self { id, content: text, single_word, lstrip, rstrip, normalized, special: true }
    }
}

pub(crate) fn byte_level_definition(
    pattern: Pattern,
    vocabulary: Vec<(String, u32)>,
    merges: Vec<SpelledMerge>,
) -> Definition {
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let pre_tokenizer = match pattern.regex() {
        None => bytes.clone(),
        Some(regex) => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false}, bytes.clone()]}),
    };

    Definition {
        version: "1.0".to_owned(),
        truncation: None,
        padding: None,
        added_tokens: Vec::new(),
        normalizer: None,
        pre_tokenizer: Some(pre_tokenizer),
        post_processor: None,
        decoder: Some(bytes),
        model: Model {
            kind: Some("BPE".to_owned()),
            dropout: None,
            unk_token: None,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab: Vocabulary(vocabulary),
            merges,
        },
    }
}
