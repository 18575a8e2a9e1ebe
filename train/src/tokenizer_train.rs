//! `train tokenizer train`: a vocabulary from text.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use tokenizer::{Body, BpeTraining, CHAT_SPECIALS, Corpus, Error, Format, Progress, Tokenizer};

use crate::{interrupt, progress::InputBar};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files and folders: plain text, JSON lines with "text" or "messages", Parquet with a column "text".
    #[arg(long, required = true, num_args = 1..)]
    input: Vec<PathBuf>,
    /// The folder for `tokenizer.json` and `tokenizer_config.json`.
    #[arg(long)]
    out: PathBuf,
    /// What the tokens are.
    #[arg(long, value_enum, default_value_t = Kind::Bpe)]
    kind: Kind,
    /// Ids in the vocabulary, control tokens included (kind bpe).
    #[arg(long, default_value_t = BpeTraining::default().vocab_size)]
    vocab_size: usize,
    /// Characters of one document beyond which it is not looked at (kind bpe).
    #[arg(long, default_value_t = BpeTraining::default().document_chars)]
    document_chars: usize,
    /// The share of documents looked at (kind bpe).
    #[arg(long, default_value_t = BpeTraining::default().sample)]
    sample: f64,
    /// Stop reading after these many bytes of text (kind bpe).
    #[arg(long, default_value_t = BpeTraining::default().max_bytes)]
    max_bytes: u64,
    /// Seeds the sample (kind bpe).
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Byte-pair encoding, learned from the text.
    Bpe,
    /// One token per character that occurs.
    Characters,
    /// One token per byte; the text is not read.
    Bytes,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    refuse_to_overwrite(&args.out)?;
    let stop = interrupt::flag()?;
    let tokenizer = match args.kind {
        Kind::Bytes => Tokenizer::bytes(&CHAT_SPECIALS),
        Kind::Characters => {
            let mut alphabet = BTreeSet::new();
            for text in texts(&Corpus::find(&args.input, false)?, usize::MAX, &stop) {
                alphabet.extend(text?.chars());
            }
            if alphabet.is_empty() {
                return Err(Error::EmptyCorpus { documents: 0 }.into());
            }
            Tokenizer::characters(&alphabet, &CHAT_SPECIALS).context("making the alphabet")?
        }
        Kind::Bpe => {
            let training = BpeTraining {
                vocab_size: args.vocab_size,
                document_chars: args.document_chars,
                sample: args.sample,
                max_bytes: args.max_bytes,
                seed: args.seed,
                progress: true,
                ..BpeTraining::default()
            };
            training.train(texts(&Corpus::find(&args.input, false)?, args.document_chars, &stop))?
        }
    };
    tokenizer.save(&args.out)?;
    println!("{}: {} of {} ids", args.out.display(), tokenizer.kind(), tokenizer.vocab_size());
    if args.kind == Kind::Bpe && (tokenizer.vocab_size() as usize) < args.vocab_size {
        println!("the text repeats too little for {} ids; more text gives more", args.vocab_size);
    }
    Ok(())
}

/// A tokenizer's shards are useless without it, so an existing one is not replaced.
fn refuse_to_overwrite(out: &Path) -> anyhow::Result<()> {
    let there = out.join("tokenizer.json");
    if there.exists() {
        bail!("{} exists; choose another --out, or remove it", there.display());
    }
    Ok(())
}

/// The text of every document. A plain file is one long document of which no part counts more than another, so it
/// is taken as many of `document_chars` each.
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
