//! Batches of documents between the reader and the writer.

use rayon::prelude::*;

use super::{BadRecords, OnBadRecord};
use crate::{
    data::{
        corpus::{Body, Corpus, PART_BYTES, Part},
        dataset::Split,
        shard::{Content, SplitRule},
    },
    encode::{split::safe_cut, tokenizer::Tokenizer},
    error::Error,
    permutation::mix,
};

/// Large: threads seldom wait at a batch's end.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_PARTS: usize = 1 << 14;

#[derive(Debug, Default)]
pub(super) struct Batch {
    parts: Vec<Part>,
    bad: Vec<Error>,
    bytes: usize,
    is_last: bool,
}

#[derive(Debug)]
pub(super) struct EncodedPart {
    pub(super) split: Split,
    pub(super) begins: bool,
    /// The smallest random numbers go to validation.
    drawn: u64,
    /// In the shard's format: a quarter to half of ids' memory.
    pub(super) tokens: Vec<u8>,
    pub(super) trained: Option<Vec<bool>>,
    pub(super) questions: Vec<usize>,
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct EncodedBatch {
    pub(super) parts: Vec<EncodedPart>,
    pub(super) documents: u64,
    pub(super) bytes: u64,
    pub(super) tokens: u64,
    pub(super) position: u64,
}

#[derive(Debug)]
pub(super) struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    corpus: &'a Corpus,
    rule: SplitRule,
    cut: Option<u64>,
    on_bad_record: OnBadRecord,
    current: Split,
    chats: Option<bool>,
    documents: u64,
    in_validation: u64,
    unclosed: bool,
    bad: BadRecords,
}

impl Batch {
    pub(super) fn last(self) -> Self {
        Self { is_last: true, ..self }
    }

    pub(super) fn push(&mut self, part: Part) {
        self.bytes += part.body.len();
        self.parts.push(part);
    }

    pub(super) fn push_bad(&mut self, error: Error) {
        self.bad.push(error);
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.parts.len() + self.bad.len() >= BATCH_PARTS
    }
}

impl<'a> Encoder<'a> {
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        corpus: &'a Corpus,
        rule: SplitRule,
        cut: Option<u64>,
        on_bad_record: OnBadRecord,
    ) -> Self {
        let (current, bad) = (Split::Train, BadRecords::default());
        let (chats, documents, in_validation) = (None, 0, 0);
        let unclosed = false;
        Self {
            tokenizer,
            corpus,
            rule,
            cut,
            on_bad_record,
            current,
            chats,
            documents,
            in_validation,
            unclosed,
            bad,
        }
    }

    pub(super) fn holds_chats(&self) -> bool {
        self.chats.unwrap_or(false)
    }

    pub(super) fn encode(&mut self, batch: Batch) -> Result<EncodedBatch, Error> {
        self.check(&batch)?;
        let is_last = batch.is_last;
        batch.bad.into_iter().try_for_each(|error| self.skip_record(error))?;
        let position = batch.parts.last().map_or(0, |part| part.position + part.body.len() as u64);

        let jobs: Vec<Part> = batch.parts.into_iter().flat_map(split_long).collect();
        let encoder = &*self;
        let encoded: Vec<_> = jobs.into_par_iter().map(|part| encoder.encode_part(&part)).collect();

        let mut parts = Vec::with_capacity(encoded.len());
        for part in encoded {
            let mut part = match part {
                Ok(part) => part,
                Err(error) => {
                    self.skip_record(error)?;
                    continue;
                }
            };
            if part.begins {
                parts.extend(self.closing_token());
                self.current = part.split;
            }
            part.split = self.current;
            self.unclosed = part.trained.is_none();
            parts.push(part);
        }
        if is_last {
            parts.extend(self.closing_token());
        }

        let documents = parts.iter().filter(|part| part.begins).count() as u64;
        self.documents += documents;
        self.in_validation +=
            parts.iter().filter(|part| part.begins && part.split == Split::Val).count() as u64;
        if is_last {
            self.fill_empty_split(&mut parts);
        }

        self.bad.check_early(self.documents)?;
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let width = self.content().bytes();
        let tokens = parts.iter().map(|part| part.tokens.len() as u64 / width).sum();
        Ok(EncodedBatch { parts, documents, bytes, tokens, position })
    }

    fn closing_token(&mut self) -> Option<EncodedPart> {
        let eos = self.tokenizer.end_of_text().filter(|_| std::mem::take(&mut self.unclosed))?;
        let tokens = self.content().encode(Some(eos), &[]);
        let (split, questions) = (self.current, Vec::new());
        Some(EncodedPart { split, begins: false, drawn: 0, tokens, trained: None, questions, bytes: 0 })
    }

    fn fill_empty_split(&mut self, parts: &mut [EncodedPart]) {
        let SplitRule::Document { val_fraction, .. } = self.rule else { return };
        let drawn = || parts.iter().filter(|part| part.begins).map(|part| part.drawn);
        let (Some(least), Some(most)) = (drawn().min(), drawn().max()) else { return };
        let (moved, split) = match self.in_validation {
            0 if val_fraction > 0.0 => (least, Split::Val),
            all if all == self.documents => (most, Split::Train),
            _ => return,
        };
        if least == most {
            return;
        }

        let mut moves = false;
        for part in parts {
            if part.begins {
                moves = part.drawn == moved;
            }
            if moves {
                part.split = split;
            }
        }
    }

    pub(super) fn finish(self) -> Result<BadRecords, Error> {
        self.bad.check(self.documents)?;
        Ok(self.bad)
    }

    fn skip_record(&mut self, error: Error) -> Result<(), Error> {
        if self.on_bad_record == OnBadRecord::Fail || !error.is_bad_record() {
            return Err(error);
        }
        self.bad.add(&error);
        Ok(())
    }

    fn check(&mut self, batch: &Batch) -> Result<(), Error> {
        for part in &batch.parts {
            let chat = matches!(part.body, Body::Chat(_));
            if *self.chats.get_or_insert(chat) != chat {
                return Err(Error::MixedInput { path: self.corpus.files()[part.file].path.clone() });
            }
        }
        Ok(())
    }

    /// The split is valid only for a document's first part.
    fn encode_part(&self, part: &Part) -> Result<EncodedPart, Error> {
        let bytes = part.body.len() as u64;
        let encoded = match &part.body {
            Body::Text(text) => self.tokenizer.encode(text).map(|ids| (ids, None, Vec::new())),
            Body::Bytes(bytes) => self.tokenizer.encode_bytes(bytes).map(|ids| (ids, None, Vec::new())),
            Body::Chat(messages) => self
                .tokenizer
                .encode_chat(messages)
                .map(|chat| (chat.ids, Some(chat.trained), chat.questions)),
        };
        let (ids, trained, questions) = encoded.map_err(|error| self.with_location(error, part))?;
        // The template writes its own.
        let bos = self.tokenizer.bos().filter(|_| part.begins && trained.is_none());
        let tokens = self.content().encode(bos, &ids);
        let drawn = self.draw(part);
        let split = if part.begins { self.split_of(part, drawn) } else { Split::Train };
        Ok(EncodedPart { split, begins: part.begins, drawn, tokens, trained, questions, bytes })
    }

    fn content(&self) -> Content {
        Content::for_vocabulary(self.tokenizer.vocab_size())
    }

    fn draw(&self, part: &Part) -> u64 {
        match self.rule {
            SplitRule::Document { seed, .. } if part.begins => hash(&part.body, seed) >> 11,
            _ => 0,
        }
    }

    fn split_of(&self, part: &Part, drawn: u64) -> Split {
        let measured = match self.rule {
            SplitRule::Document { val_fraction, .. } => (drawn as f64) < val_fraction * (1u64 << 53) as f64,
            SplitRule::Position { .. } => self.cut.is_some_and(|cut| part.position >= cut),
        };
        if measured { Split::Val } else { Split::Train }
    }

    fn with_location(&self, error: Error, part: &Part) -> Error {
        let path = self.corpus.files()[part.file].path.clone();
        Error::Document { path, document: part.document, problem: Box::new(error) }
    }
}

/// Copies each part of a long text: one that was split off would keep the memory of the whole text.
fn split_long(part: Part) -> Vec<Part> {
    let Body::Text(text) = &part.body else { return vec![part] };
    let (mut texts, mut rest) = (Vec::new(), text.as_str());
    while rest.len() > 2 * PART_BYTES
        && let Some(at) = safe_cut(rest, PART_BYTES)
    {
        let (before, after) = rest.split_at(at);
        texts.push(before);
        rest = after;
    }
    if texts.is_empty() {
        return vec![part];
    }
    texts.push(rest);

    let copied = |(at, text): (usize, &str)| {
        let (begins, body) = (part.begins && at == 0, Body::Text(text.to_owned()));
        Part { begins, body, ..part }
    };
    texts.into_iter().enumerate().map(copied).collect()
}

/// Hashes a document's text, or a long file's first part.
fn hash(body: &Body, seed: u64) -> u64 {
    match body {
        Body::Text(text) => hash_bytes(seed, text.as_bytes()),
        Body::Bytes(bytes) => hash_bytes(seed, bytes),
        Body::Chat(messages) => {
            messages.iter().fold(seed, |state, message| hash_bytes(state, message.content.as_bytes()))
        }
    }
}

/// A single state would wait for its multiplication.
fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let take = |state: u64, word: [u8; 8]| {
        (state.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    };
    let mut states = [0, 1, 2, 3].map(|lane| mix(seed ^ lane, bytes.len() as u64));
    let (words, last) = bytes.as_chunks::<8>();
    let (rows, words) = words.as_chunks::<4>();
    for row in rows {
        for (state, word) in states.iter_mut().zip(row) {
            *state = take(*state, *word);
        }
    }
    for (state, word) in states.iter_mut().zip(words) {
        *state = take(*state, *word);
    }
    let mut padded = [0; 8];
    padded[..last.len()].copy_from_slice(last);
    states[3] = take(states[3], padded);
    states.into_iter().fold(seed, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_long_text_hold_no_more_memory_than_the_text() {
        let text = "The river rises.\n".repeat(1 << 16);
        let part = Part { file: 0, document: 3, begins: true, position: 5, body: Body::Text(text.clone()) };
        let parts = split_long(part.clone());
        let texts: Vec<&String> = parts
            .iter()
            .map(|part| match &part.body {
                Body::Text(text) => text,
                other => panic!("{other:?}"),
            })
            .collect();

        assert!(parts.len() > 10, "{} parts", parts.len());
        assert_eq!(texts.iter().map(|text| text.as_str()).collect::<String>(), text);
        let held: usize = texts.iter().map(|text| text.capacity()).sum();
        assert!(held <= text.len() + text.len() / 8, "{held} bytes for {}", text.len());
        assert!(parts.iter().skip(1).all(|part| !part.begins) && parts[0].begins);
        assert!(parts.iter().all(|part| (part.document, part.position) == (3, 5)));

        let short = Part { body: Body::Text("The river".to_owned()), ..part };
        assert_eq!(split_long(short.clone()), [short]);
    }
}
