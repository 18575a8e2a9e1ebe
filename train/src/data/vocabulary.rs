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

/// Copies each piece: one that was split off would keep the memory of the whole text.
fn divide(text: String, chars: usize) -> Vec<Result<String, Error>> {
    let (mut divided, mut rest) = (Vec::new(), text.as_str());
    while let Some((at, _)) = rest.char_indices().nth(chars) {
        let (piece, after) = rest.split_at(at);
        divided.push(Ok(piece.to_owned()));
        rest = after;
    }
    if divided.is_empty() {
        return vec![Ok(text)];
    }
    divided.push(Ok(rest.to_owned()));
    divided
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_text_hold_no_more_memory_than_the_text() {
        let text = "Größe und Höhe ".repeat(1000);
        let pieces: Vec<String> =
            divide(text.clone(), 100).into_iter().map(|piece| piece.expect("a text")).collect();
        assert_eq!(pieces.concat(), text);
        assert!(pieces.iter().all(|piece| piece.chars().count() <= 100));
        let held: usize = pieces.iter().map(String::capacity).sum();
        assert!(held <= text.len() + text.len() / 8, "{held} bytes for {}", text.len());
    }
}
