//! `train index`: builds an index of longest matches from a prepared set, and inspects it.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use backend_offload::{Budget, Bytes};
use clap::ValueEnum;
use runs::BadInput;
use serde_json::json;
use tokenizer::{Align, Corpora, Index, IndexBuild, IndexManifest, TokenDataset, WindowPlan};

use super::prepare::open;
use crate::data::{build_index, cores};
use crate::figures::grouped;
use crate::interrupt;

/// `train index build`.
#[derive(Debug, clap::Args)]
pub(crate) struct Build {
    /// The folder of a prepared set, as `train prepare` makes one.
    #[arg(long)]
    set: PathBuf,
    /// The part of the set to index.
    #[arg(long, value_enum, default_value_t = Part::Train)]
    split: Part,
    /// The folder to create.
    #[arg(long)]
    out: PathBuf,
    /// Memory to use at most; less makes more and smaller chunks, and the same index.
    #[arg(long, value_name = "BYTES", default_value = "1GiB")]
    memory: Budget,
    /// Threads that compute; by default as many as there are cores. They do not change the index.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// `train index inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// The index's folder.
    index: PathBuf,
    /// The folder of the set it was built from.
    #[arg(long)]
    set: PathBuf,
    /// The set's tokenizer: a folder or `tokenizer.json`, or `bytes`. With it the set's validation part is compared with the
    /// index.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// Look up what followed the longest occurrence of this text's end.
    #[arg(long, requires = "tokenizer")]
    text: Option<String>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// A part of a set.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    /// The training split.
    Train,
    /// The validation split.
    Val,
}

impl From<Part> for tokenizer::Split {
    fn from(part: Part) -> Self {
        match part {
            Part::Train => Self::Train,
            Part::Val => Self::Val,
        }
    }
}

pub(crate) fn build(args: &Build) -> anyhow::Result<()> {
    let Budget::Bytes(memory) = args.memory else {
        return Err(BadInput("--memory is a number of bytes, such as 512MiB".to_owned()).into());
    };

    let build = IndexBuild {
        set: args.set.clone(),
        split: args.split.into(),
        out: args.out.clone(),
        memory,
        chunk_tokens: None,
        threads: args.threads.map_or_else(cores, NonZeroUsize::get),
    };

    let stop = interrupt::flag("stopping; the same command resumes")?;
    let (manifest, reused) = build_index(&build, &stop)?;
    if reused > 0 {
        println!("{} undamaged pieces of an earlier build were reused", grouped(reused));
    }
    describe(&args.out, &manifest, &Index::open(&args.out, &args.set)?);
    Ok(())
}

fn describe(folder: &Path, manifest: &IndexManifest, index: &Index) {
    let per_token = index.bytes() as f64 / manifest.tokens.max(1) as f64;
    println!(
        "{}: {} tokens of a vocabulary of {}, {} beside the shards, {per_token:.2} bytes per token",
        folder.display(),
        grouped(manifest.tokens),
        grouped(manifest.tokenizer.vocab_size.into()),
        Bytes(index.bytes())
    );
}

pub(crate) fn inspect(args: &Inspect) -> anyhow::Result<()> {
    let corpora = Corpora::open([(&args.index, &args.set)], Corpora::SHORTEST)?;
    let index = &corpora.indexes()[0];
    let manifest = index.manifest().clone();
    index.verify()?;
    let mut record = json!({ "tokens": manifest.tokens, "bytes": index.bytes(), "whole": true });
    if !args.json {
        describe(&args.index, &manifest, index);
        println!("every byte of the index and its shards is as it was written");
    }

    if let Some(spec) = &args.tokenizer {
        let tokenizer = open(spec)?;
        let plan = WindowPlan { length: 1, align: Align::Anywhere, shuffle: false };
        let held_out = TokenDataset::open(&args.set, tokenizer::Split::Val, &tokenizer, plan)?;
        let copies = corpora.duplicates(&held_out)?;
        record["duplicates"] = json!({
            "documents": copies.documents, "of_them_copies": copies.duplicate_documents,
            "positions": copies.positions, "positions_of_copies": copies.duplicate_positions,
        });
        if !args.json {
            println!(
                "{} of {} validation documents are copies of indexed ones: {} of {} tokens, which say nothing about \
                 what is learned",
                grouped(copies.duplicate_documents),
                grouped(copies.documents),
                grouped(copies.duplicate_positions),
                grouped(copies.positions)
            );
        }

        if let Some(text) = &args.text {
            let found = corpora.longest(&tokenizer.encode(text)?);
            record["match"] = json!(found.map(|found| json!({
                "length": found.length, "next": found.next, "at": found.at,
            })));

            let line = found.map(|found| -> anyhow::Result<String> {
                let next = tokenizer.decode(&[found.next])?;
                Ok(format!(
                    "the text's last {} tokens occur first at position {}, followed by {next:?}",
                    found.length, found.at
                ))
            });
            let line =
                line.transpose()?.unwrap_or_else(|| "no end of the text occurs in the index".to_owned());
            if !args.json {
                println!("{line}");
            }
        }
    }

    if args.json {
        println!("{record:#}");
    }
    Ok(())
}
