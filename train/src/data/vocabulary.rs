//! Vocabularies learned from text.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Context;
use tokenizer::{Body, BpeTraining, Corpus, Error, Format, Progress, Tokenizer};

use crate::progress::InputBar;

pub(crate) fn learn_characters(
    inputs: &[PathBuf],
    specials: &[&str],
    stop: &AtomicBool,
) -> anyhow::Result<Tokenizer> {
    let mut alphabet = BTreeSet::new();
    for text in texts(&Corpus::find(inputs, false)?, usize::MAX, stop) {
        alphabet.extend(text?.chars());
    }
    if alphabet.is_empty() {
        return Err(Error::EmptyCorpus { documents: 0 }.into());
    }
    Tokenizer::characters(&alphabet, specials).context("making the alphabet")
}

pub(crate) fn learn_bpe(
    inputs: &[PathBuf],
    training: &BpeTraining,
    stop: &AtomicBool,
) -> anyhow::Result<Tokenizer> {
    Ok(training.train(texts(&Corpus::find(inputs, false)?, training.document_chars, stop))?)
}

/// Splits a plain file into texts of `document_chars` characters.
fn texts(
    corpus: &Corpus,
    document_chars: usize,
    stop: &AtomicBool,
) -> impl Iterator<Item = Result<String, Error>> + Send {
    let mut bar = InputBar::new();
    let mut progress = Progress { input_bytes: corpus.bytes(), ..Progress::default() };
    corpus.parts(None).flat_map(move |part| {
        if stop.load(Ordering::Relaxed) {
            return vec![Err(Error::Interrupted)];
        }
        let part = match part {
            Ok(part) => part,
            // Cutting the shards counts this record.
            Err(error) if error.is_bad_record() => return Vec::new(),
            Err(error) => return vec![Err(error)],
        };
        progress.documents += u64::from(part.begins);
        progress.bytes += part.body.len() as u64;
        progress.position = part.position;
        bar.set(progress);
        match part.body {
            Body::Text(text) if corpus.files()[part.file].format == Format::Text => {
                divide(text, document_chars)
            }
            Body::Text(text) => vec![Ok(text)],
            Body::Chat(messages) => messages.into_iter().map(|message| Ok(message.content)).collect(),
            Body::Bytes(_) => unreachable!("the corpus was not opened for bytes"),
        }
    })
}

fn divide(mut text: String, chars: usize) -> Vec<Result<String, Error>> {
    let mut divided = Vec::new();
    while let Some((at, _)) = text.char_indices().nth(chars) {
        let rest = text.split_off(at);
        divided.push(Ok(std::mem::replace(&mut text, rest)));
    }
    divided.push(Ok(text));
    divided
}
