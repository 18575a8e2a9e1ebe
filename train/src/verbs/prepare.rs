//! `train prepare`: text in, token shards out.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use tokenizer::{
    Align, Corpus, MANIFEST, Manifest, OnBadRecord, Outcome, Preparation, Progress, SplitRule, TokenDataset,
    Tokenizer, WindowPlan,
};

use crate::{data::report_bad_records, interrupt, plan::Epoch, progress::InputBar};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files and folders: plain text, JSON lines or a JSON array of records (`text`, `messages`, `conversations`,
    /// `instruction` and `output`, or `prompt` and `completion`), each also as gzip or Zstandard; Parquet with such columns.
    #[arg(long, required = true, num_args = 1..)]
    input: Vec<PathBuf>,
    /// A tokenizer's folder or `tokenizer.json`, or `bytes` for raw bytes.
    #[arg(long)]
    tokenizer: PathBuf,
    /// The folder to create.
    #[arg(long)]
    out: PathBuf,
    /// Share of the text that is held out for validation.
    #[arg(long, default_value_t = 0.1)]
    val_fraction: f64,
    /// How validation text is chosen.
    #[arg(long, value_enum, default_value_t = Split::Document)]
    split: Split,
    /// Seeds the choice of documents.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The most tokens in one shard.
    #[arg(long, default_value_t = Preparation::SHARD_TOKENS)]
    shard_tokens: u64,
    /// Tokens in a training sequence, for the share of counted targets that training would see.
    #[arg(long, default_value_t = 1024)]
    sequence: usize,
    /// Handling of records that cannot be used.
    #[arg(long, value_enum, default_value_t = BadRecord::Skip)]
    on_bad_record: BadRecord,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BadRecord {
    /// The record is counted, named and left out, as long as nine of ten records are clean.
    Skip,
    /// The record ends the preparation.
    Fail,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Split {
    /// A seeded hash of each document's text decides; of a single text file, its end.
    Document,
    /// The end of the input, as nanoGPT divides a single file.
    Position,
}

impl Args {
    fn preparation(&self) -> Preparation {
        let val_fraction = self.val_fraction;
        let split = match self.split {
            Split::Document => SplitRule::Document { val_fraction, seed: self.seed },
            Split::Position => SplitRule::Position { val_fraction },
        };
        let (inputs, out) = (self.input.clone(), self.out.clone());
        let on_bad_record = match self.on_bad_record {
            BadRecord::Skip => OnBadRecord::Skip,
            BadRecord::Fail => OnBadRecord::Fail,
        };
        Preparation { inputs, out, split, shard_tokens: self.shard_tokens, on_bad_record }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let tokenizer = open(&args.tokenizer)?;
    let stop = interrupt::flag("stopping")?;
    let mut bar = InputBar::new();
    let mut last = Progress::default();
    let outcome = args.preparation().run(&tokenizer, &stop, |progress| {
        last = progress;
        bar.set(progress);
    });

    bar.clear();
    match outcome? {
        Outcome::AlreadyThere(manifest) => {
            println!("{} holds this set already, nothing to do", args.out.display());
            warn_of_later_text(args, &tokenizer)?;
            describe(&manifest);
        }
        Outcome::Written(manifest) => {
            let megabytes = last.bytes as f64 / 1e6;
            let seconds = bar.seconds();
            println!(
                "{}: {megabytes:.1} MB of text in {seconds:.1} s, {:.1} MB/s",
                args.out.display(),
                megabytes / seconds
            );
            describe(&manifest);
        }
    }
    describe_targets(args, &tokenizer);
    Ok(())
}

/// A set records the sizes of its inputs, not their contents.
fn warn_of_later_text(args: &Args, tokenizer: &Tokenizer) -> anyhow::Result<()> {
    let written = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let cut = written(&args.out.join(MANIFEST));
    let corpus = Corpus::find(&args.input, tokenizer.takes_any_file())?;
    if let Some(later) = corpus.files().iter().find(|file| written(&file.path) > cut) {
        eprintln!(
            "{} was written later, with the same size; if it holds other text, remove {} and prepare it again",
            later.path.display(),
            args.out.display()
        );
    }
    Ok(())
}

pub(super) fn open(spec: &PathBuf) -> anyhow::Result<Tokenizer> {
    if spec.as_os_str() == "bytes" && !spec.exists() {
        return Ok(Tokenizer::bytes(&[]));
    }
    Ok(Tokenizer::load(spec)?)
}

fn describe(manifest: &Manifest) {
    for (name, split) in [("train", &manifest.train), ("val", &manifest.val)] {
        let per_token = split.bytes as f64 / split.tokens.max(1) as f64;
        println!(
            "{name:>5}: {} tokens, {} documents, {} shards, {per_token:.2} bytes per token",
            split.tokens,
            split.documents,
            split.shards.len()
        );
    }
    report_bad_records(manifest);
}

/// Prints, for each alignment of sequences, the counted targets of an epoch.
fn describe_targets(args: &Args, tokenizer: &Tokenizer) {
    let length = args.sequence;
    for (align, name) in [(Align::Anywhere, "anywhere"), (Align::Document, "document")] {
        if align == Align::Document && tokenizer.bos().is_none() {
            continue;
        }
        let plan = WindowPlan { length, align, shuffle: false };
        let said = match TokenDataset::open(&args.out, tokenizer::Split::Train, tokenizer, plan) {
            Ok(tokens) => Epoch::new(tokens.windows(), tokens.targets(), tokens.tokens()).to_string(),
            Err(error) => error.to_string(),
        };
        println!("sequences of {length} with data.align = \"{name}\": {said}");
    }
}
