//! `train tokenizer train`: a vocabulary from text.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use runs::BadInput;
use tokenizer::{BpeTraining, CHAT_SPECIALS, Pattern, Tokenizer};

use crate::data::{learn_bpe, learn_characters};
use crate::interrupt;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files and folders, in the forms that `train prepare` reads.
    #[arg(long, required = true, num_args = 1..)]
    input: Vec<PathBuf>,
    /// The folder for `tokenizer.json` and `tokenizer_config.json`.
    #[arg(long)]
    out: PathBuf,
    /// Kind of vocabulary.
    #[arg(long, value_enum, default_value_t = Kind::Bpe)]
    kind: Kind,
    /// Ids in the vocabulary, control tokens included (kind bpe).
    #[arg(long, default_value_t = BpeTraining::default().vocab_size)]
    vocab_size: usize,
    /// Characters read of one document at most (kind bpe).
    #[arg(long, default_value_t = BpeTraining::default().document_chars)]
    document_chars: usize,
    /// Digits that one token holds at most (kind bpe). `llama.cpp` knows 1 and 3.
    #[arg(long, value_enum, default_value_t = Digits::Two)]
    digits: Digits,
    /// Share of the documents to learn from (kind bpe).
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Digits {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
    #[value(name = "3")]
    Three,
}

impl From<Digits> for Pattern {
    fn from(digits: Digits) -> Self {
        match digits {
            Digits::One => Self::Digits1,
            Digits::Two => Self::Digits2,
            Digits::Three => Self::Digits3,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    refuse_to_overwrite(&args.out)?;
    let stop = interrupt::flag("stopping")?;
    let tokenizer = match args.kind {
        Kind::Bytes => Tokenizer::bytes(&CHAT_SPECIALS),
        Kind::Characters => learn_characters(&args.input, &CHAT_SPECIALS, &stop)?,
        Kind::Bpe => {
            let training = BpeTraining {
                pattern: args.digits.into(),
                vocab_size: args.vocab_size,
                document_chars: args.document_chars,
                sample: args.sample,
                max_bytes: args.max_bytes,
                seed: args.seed,
                progress: true,
                ..BpeTraining::default()
            };
            learn_bpe(&args.input, &training, &stop)?
        }
    };

    tokenizer.save(&args.out)?;
    println!("{}: {} of {} ids", args.out.display(), tokenizer.kind(), tokenizer.vocab_size());
    if args.kind == Kind::Bpe && (tokenizer.vocab_size() as usize) < args.vocab_size {
        println!("the text repeats too little for {} ids; more text gives more", args.vocab_size);
    }
    Ok(())
}

/// Shards are useless without the existing tokenizer.
fn refuse_to_overwrite(out: &Path) -> anyhow::Result<()> {
    let there = out.join("tokenizer.json");
    if there.exists() {
        return Err(
            BadInput(format!("{} exists; choose another --out, or remove it", there.display())).into()
        );
    }
    Ok(())
}
