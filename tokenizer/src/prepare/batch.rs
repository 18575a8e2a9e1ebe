//! A few megabytes of documents on their way from the reader to the writer.

use rayon::prelude::*;

use crate::{
    corpus::{Body, Corpus, PART_BYTES, Part},
    dataset::Split,
    error::Error,
    permutation::mix,
    shard::SplitRule,
    split::safe_cut,
    tokenizer::Tokenizer,
};

/// Large enough that threads seldom wait for each other at its end.
const BATCH_BYTES: usize = 4 << 20;
/// Documents of a few bytes each still make a batch now and then.
const BATCH_PARTS: usize = 1 << 14;

/// Documents as read.
#[derive(Debug, Default)]
pub(super) struct Batch {
    parts: Vec<Part>,
    bytes: usize,
}

/// The ids of one [`Part`].
#[derive(Debug)]
pub(super) struct EncodedPart {
    pub(super) split: Split,
    pub(super) begins: bool,
    /// What stands before `ids`.
    pub(super) bos: Option<u32>,
    pub(super) ids: Vec<u32>,
    pub(super) trained: Option<Vec<bool>>,
    pub(super) bytes: u64,
}

/// A [`Batch`] in ids.
#[derive(Debug)]
pub(super) struct EncodedBatch {
    pub(super) parts: Vec<EncodedPart>,
    pub(super) documents: u64,
    pub(super) bytes: u64,
    pub(super) tokens: u64,
    pub(super) position: u64,
}

/// Sends every part to its split. The parts of a document follow one another, and all go where its first goes.
#[derive(Debug)]
pub(super) struct Divider {
    rule: SplitRule,
    cut: Option<u64>,
    current: Split,
    chats: Option<bool>,
}

impl Batch {
    pub(super) fn push(&mut self, part: Part) {
        self.bytes += part.body.len();
        self.parts.push(part);
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.parts.len() >= BATCH_PARTS
    }

    pub(super) fn encode(
        self,
        tokenizer: &Tokenizer,
        corpus: &Corpus,
        divider: &mut Divider,
    ) -> Result<EncodedBatch, Error> {
        let mut jobs = Vec::with_capacity(self.parts.len());
        for part in self.parts {
            let split = divider.split_of(&part, corpus)?;
            jobs.extend(cut_long(part).map(|part| (split, part)));
        }
        let documents = jobs.iter().filter(|(_, part)| part.begins).count() as u64;
        let position = jobs.last().map_or(0, |(_, part)| part.position + part.body.len() as u64);
        let parts = jobs
            .into_par_iter()
            .map(|(split, part)| {
                encode(split, &part, tokenizer).map_err(|error| located(error, &part, corpus))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let tokens = parts.iter().map(|part| (part.ids.len() + part.bos.iter().len()) as u64).sum();
        Ok(EncodedBatch { parts, documents, bytes: self.bytes as u64, tokens, position })
    }
}

/// Long documents of JSON lines and Parquet arrive whole; several threads take a share of each.
fn cut_long(part: Part) -> impl Iterator<Item = Part> {
    let mut rest = Some(part);
    std::iter::from_fn(move || {
        let mut part = rest.take()?;
        if let Body::Text(text) = &mut part.body
            && text.len() > 2 * PART_BYTES
            && let Some(at) = safe_cut(text, PART_BYTES)
        {
            let body = Body::Text(text.split_off(at));
            rest = Some(Part { begins: false, body, ..part });
        }
        Some(part)
    })
}

fn encode(split: Split, part: &Part, tokenizer: &Tokenizer) -> Result<EncodedPart, Error> {
    let bytes = part.body.len() as u64;
    let (ids, trained) = match &part.body {
        Body::Text(text) => (tokenizer.encode(text)?, None),
        Body::Bytes(bytes) => (tokenizer.encode_bytes(bytes)?, None),
        Body::Chat(messages) => {
            let chat = tokenizer.encode_chat(messages)?;
            (chat.ids, Some(chat.trained))
        }
    };
    // The chat template writes its own.
    let bos = tokenizer.bos().filter(|_| part.begins && trained.is_none());
    Ok(EncodedPart { split, begins: part.begins, bos, ids, trained, bytes })
}

fn located(error: Error, part: &Part, corpus: &Corpus) -> Error {
    let path = corpus.files()[part.file].path.clone();
    Error::Document { path, document: part.document, problem: Box::new(error) }
}

impl Divider {
    pub(super) fn new(rule: SplitRule, cut: Option<u64>) -> Self {
        Self { rule, cut, current: Split::Train, chats: None }
    }

    pub(super) fn holds_chats(&self) -> bool {
        self.chats.unwrap_or(false)
    }

    fn split_of(&mut self, part: &Part, corpus: &Corpus) -> Result<Split, Error> {
        let chat = matches!(part.body, Body::Chat(_));
        if *self.chats.get_or_insert(chat) != chat {
            return Err(Error::MixedInput { path: corpus.files()[part.file].path.clone() });
        }
        if part.begins {
            let measured = match self.rule {
                SplitRule::Document { val_fraction, seed } => {
                    let drawn = hash(&part.body, seed) >> 11;
                    (drawn as f64) < val_fraction * (1u64 << 53) as f64
                }
                SplitRule::Position { .. } => self.cut.is_some_and(|cut| part.position >= cut),
            };
            self.current = if measured { Split::Val } else { Split::Train };
        }
        Ok(self.current)
    }
}

/// A hash of a document's text, or of the first part of a long file's.
fn hash(body: &Body, seed: u64) -> u64 {
    match body {
        Body::Text(text) => hash_bytes(seed, text.as_bytes()),
        Body::Bytes(bytes) => hash_bytes(seed, bytes),
        Body::Chat(messages) => {
            messages.iter().fold(seed, |state, message| hash_bytes(state, message.content.as_bytes()))
        }
    }
}

/// Every document passes here on one thread, hence a multiplication per word and the mixing at the ends.
fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut state = mix(seed, bytes.len() as u64);
    let mut take = |word: [u8; 8]| {
        state = (state.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    };
    for word in &mut words {
        take([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    take(last);
    mix(seed, state)
}
