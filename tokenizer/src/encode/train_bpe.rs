//! Trains byte-level BPE vocabularies.
//!
//! Hugging Face's trainer learns merges from the encoder's pieces. Counts are sums and ids break ties: neither threads
//! nor document order matter.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use hf::{
    Trainer,
    models::bpe::{BPE, BpeTrainer},
};
use serde::Deserialize;

use crate::{
    encode::{
        alphabet,
        special::CHAT_SPECIALS,
        split::{Pattern, Splitter},
        tokenizer::{Tokenizer, byte_level_definition},
    },
    error::Error,
    format::{
        definition::{SpelledMerge, Vocabulary},
        limits,
    },
    permutation::mix,
};

/// A vocabulary to train.
#[derive(Clone, Debug)]
pub struct BpeTraining {
    /// Ids, with control tokens. Text with few repetitions gives fewer.
    pub vocab_size: usize,
    /// Their ids follow the learned ones.
    pub specials: Vec<String>,
    /// Cuts text before merging.
    pub pattern: Pattern,
    /// Per document, so that none dominates.
    pub document_chars: usize,
    /// Share of documents to read.
    pub sample: f64,
    /// No document is read after so much text.
    pub max_bytes: u64,
    /// Chooses the sample.
    pub seed: u64,
    /// Shows a progress bar of the merges.
    pub progress: bool,
}

impl Default for BpeTraining {
    fn default() -> Self {
        Self {
            vocab_size: 32_768,
            specials: CHAT_SPECIALS.map(str::to_owned).to_vec(),
            pattern: Pattern::Digits2,
            document_chars: 10_000,
            sample: 1.0,
            // More could overflow the trainer's 32-bit counts.
            max_bytes: 2_000_000_000,
            seed: 0,
            progress: false,
        }
    }
}

#[derive(Deserialize)]
struct Learned {
    vocab: Vocabulary,
    merges: Vec<SpelledMerge>,
}

impl BpeTraining {
    /// Learns from `documents`, up to `max_bytes`.
    pub fn train<I>(&self, documents: I) -> Result<Tokenizer, Error>
    where
        I: IntoIterator<Item = Result<String, Error>>,
        I::IntoIter: Send,
    {
        let learned_size = self.vocab_size.checked_sub(self.specials.len()).filter(|size| *size >= 256);
        let (asked, specials) = (self.vocab_size, self.specials.len());
        let learned_size = learned_size.ok_or(Error::VocabularyTooSmall { asked, specials })?;
        if self.vocab_size > limits::VOCABULARY {
            let (value, expected) = (self.vocab_size.to_string(), "a vocabulary of at most 1048576 ids");
            return Err(Error::Option { option: "vocab-size", value, expected });
        }
        if !(self.sample > 0.0 && self.sample <= 1.0) {
            let (value, expected) = (self.sample.to_string(), "a share above 0 and at most 1");
            return Err(Error::Option { option: "sample", value, expected });
        }
        if self.document_chars == 0 {
            let (value, expected) =
                (self.document_chars.to_string(), "at least one character of each document");
            return Err(Error::Option { option: "document-chars", value, expected });
        }

        let mut trainer = BpeTrainer::builder()
            .vocab_size(learned_size)
            .min_frequency(2)
            .show_progress(self.progress)
            .initial_alphabet((0..=u8::MAX).map(alphabet::char_of).collect())
            .build();
        self.count(&mut trainer, documents.into_iter())?;
        let mut model = BPE::default();
        trainer.train(&mut model).map_err(|error| Error::Training(error.to_string()))?;

        let learned = serde_json::to_value(&model).and_then(serde_json::from_value);
        let Learned { mut vocab, merges } = learned.map_err(|error| Error::Training(error.to_string()))?;
        vocab.0.sort_by_key(|(_, id)| *id);
        let specials: Vec<&str> = self.specials.iter().map(String::as_str).collect();
        Tokenizer::from_definition(byte_level_definition(self.pattern, vocab.0, merges), &specials)
            .map_err(|problem| Error::Training(problem.to_string()))
    }

    fn count(
        &self,
        trainer: &mut BpeTrainer,
        documents: impl Iterator<Item = Result<String, Error>> + Send,
    ) -> Result<(), Error> {
        let failure = Mutex::new(None);
        let (seen, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let threshold = (self.sample * 2f64.powi(64)) as u64;
        let sampled = documents
            .map_while(|document| {
                let error = match document {
                    Ok(document) => return Some(document),
                    Err(error) => error,
                };
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                None
            })
            .take_while(|_| bytes.load(Ordering::Relaxed) < self.max_bytes)
            .filter(|_| mix(self.seed, seen.fetch_add(1, Ordering::Relaxed)) <= threshold)
            .map(|mut document| {
                let end =
                    document.char_indices().nth(self.document_chars).map_or(document.len(), |(at, _)| at);
                bytes.fetch_add(end as u64, Ordering::Relaxed);
                document.truncate(end);
                document
            });

        let splitter = Splitter::new(self.pattern);
        let caches = Mutex::new(Vec::new());
        let counted = trainer.feed(sampled, |document| {
            let cache = caches.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut cache = cache.unwrap_or_else(|| splitter.cache());
            let mut pieces = Vec::new();
            splitter.split(document, &mut cache, |piece| pieces.push(alphabet::spell(piece.as_bytes())));
            caches.lock().unwrap_or_else(PoisonError::into_inner).push(cache);
            Ok(pieces)
        });

        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        counted.map_err(|error| Error::Training(error.to_string()))?;
        if bytes.into_inner() == 0 {
            return Err(Error::EmptyCorpus { documents: seen.into_inner() });
        }
        Ok(())
    }
}
