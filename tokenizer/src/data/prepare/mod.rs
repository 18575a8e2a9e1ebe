//! Text to shards in one pass and constant memory.
//!
//! A thread reads documents, the thread pool encodes them and a thread writes shards, a few batches apart. Batches keep
//! their order: the result depends neither on threads nor on speed.

mod bad_records;
mod batch;
mod staging;

use std::{
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

pub use bad_records::{BadRecords, OnBadRecord};
use batch::{Batch, EncodedBatch, Encoder};
use staging::Staging;

use crate::{
    data::{
        corpus::{Corpus, Format, Part},
        dataset::Split,
        shard::{Content, Header, Input, Manifest, SplitRule, SplitWriter, TokenizerEntry},
    },
    encode::tokenizer::Tokenizer,
    error::Error,
};

/// A set to prepare.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// Files and folders, in reading order.
    pub inputs: Vec<PathBuf>,
    /// The set's folder.
    pub out: PathBuf,
    /// Division into splits.
    pub split: SplitRule,
    /// Most tokens per shard.
    pub shard_tokens: u64,
    /// Treatment of unusable records.
    pub on_bad_record: OnBadRecord,
}

/// A preparation's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Encoded documents.
    pub documents: u64,
    /// Encoded bytes.
    pub bytes: u64,
    /// Encoded tokens.
    pub tokens: u64,
    /// Bytes read of [`Progress::input_bytes`].
    pub position: u64,
    /// Input bytes.
    pub input_bytes: u64,
}

/// A preparation's result.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A written set.
    Written(Manifest),
    /// The folder held this set.
    AlreadyThere(Manifest),
}

/// Between two stages; each stage holds another.
const QUEUED_BATCHES: usize = 4;

impl Preparation {
    /// 200 MB of 16-bit ids.
    pub const SHARD_TOKENS: u64 = 100_000_000;

    /// Writes the set, or none if it fails or `stop` is set. Calls `observe` after every batch.
    pub fn run(
        &self,
        tokenizer: &Tokenizer,
        stop: &AtomicBool,
        observe: impl FnMut(Progress),
    ) -> Result<Outcome, Error> {
        self.check()?;
        let corpus = Corpus::find(&self.inputs, tokenizer.takes_any_file())?;
        let plan = self.plan(tokenizer, &corpus);
        if let Some(manifest) = staging::existing(&self.out, &plan, self.on_bad_record)? {
            return Ok(Outcome::AlreadyThere(manifest));
        }
        let staging = Staging::begin(&self.out)?;
        let manifest = self.fill(staging.folder(), plan, &corpus, tokenizer, stop, observe)?;
        tokenizer.save(staging.folder())?;
        staging.publish(&manifest)?;
        Ok(Outcome::Written(manifest))
    }

    fn check(&self) -> Result<(), Error> {
        let option = |option, value: String, expected| Err(Error::Option { option, value, expected });
        if !(0.0..1.0).contains(&self.split.val_fraction()) {
            let value = self.split.val_fraction().to_string();
            return option("--val-fraction", value, "a share from 0 to below 1");
        }
        if self.shard_tokens == 0 || self.shard_tokens > Header::MAX_TOKENS {
            return option("--shard-tokens", self.shard_tokens.to_string(), "from 1 to 2147483647");
        }
        Ok(())
    }

    fn plan(&self, tokenizer: &Tokenizer, corpus: &Corpus) -> Manifest {
        let inputs = corpus.files().iter();
        Manifest {
            format: Manifest::FORMAT,
            tokenizer: TokenizerEntry {
                sha256: tokenizer.fingerprint(),
                vocab_size: tokenizer.vocab_size(),
                bos: tokenizer.bos(),
                eos: tokenizer.end_of_text(),
            },
            inputs: inputs.map(|file| Input { name: file.name.clone(), bytes: file.bytes }).collect(),
            split: self.rule(corpus),
            shard_tokens: self.shard_tokens,
            loss_mask: false,
            train: crate::data::shard::SplitEntry::default(),
            val: crate::data::shard::SplitEntry::default(),
            bad_records: BadRecords::default(),
        }
    }

    fn fill(
        &self,
        folder: &Path,
        mut manifest: Manifest,
        corpus: &Corpus,
        tokenizer: &Tokenizer,
        stop: &AtomicBool,
        mut observe: impl FnMut(Progress),
    ) -> Result<Manifest, Error> {
        let split = manifest.split;
        let cut = cut(split, corpus);
        let writer = |split: Split| {
            let content = Content::for_vocabulary(tokenizer.vocab_size());
            let mark = tokenizer.fingerprint().short();
            SplitWriter::new(folder, split.name(), content, mark, self.shard_tokens)
        };
        let (train, val) = (writer(Split::Train), writer(Split::Val));

        thread::scope(|scope| {
            let (to_encoder, batches) = sync_channel(QUEUED_BATCHES);
            let (to_writer, encoded) = sync_channel(QUEUED_BATCHES);
            scope.spawn(move || read(corpus.parts(cut), &to_encoder));
            let written = scope.spawn(move || write(encoded, train, val));

            let mut progress = Progress { input_bytes: corpus.bytes(), ..Progress::default() };
            let mut encoder = Encoder::new(tokenizer, corpus, split, cut, self.on_bad_record);
            let encoding = || {
                // Owned: leaving early ends the other stages.
                let to_writer: SyncSender<EncodedBatch> = to_writer;
                let batches: Receiver<Result<Batch, Error>> = batches;
                for batch in batches {
                    if stop.load(Ordering::Relaxed) {
                        return Err(Error::Interrupted);
                    }
                    let encoded = encoder.encode(batch?)?;
                    progress.documents += encoded.documents;
                    progress.bytes += encoded.bytes;
                    progress.tokens += encoded.tokens;
                    progress.position = encoded.position;
                    if to_writer.send(encoded).is_err() {
                        break;
                    }
                    observe(progress);
                }
                Ok(())
            };

            let encoded = encoding();
            let written = written.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            encoded?;
            (manifest.train, manifest.val) = written?;
            manifest.loss_mask = encoder.holds_chats();
            manifest.bad_records = encoder.finish()?;
            self.check_filled(&manifest, progress)?;
            Ok(manifest)
        })
    }

    fn rule(&self, corpus: &Corpus) -> SplitRule {
        match (self.split, corpus.files()) {
            (SplitRule::Document { val_fraction, .. }, [file])
                if val_fraction > 0.0 && matches!(file.format, Format::Text | Format::Bytes) =>
            {
                SplitRule::Position { val_fraction }
            }
            (rule, _) => rule,
        }
    }

    fn check_filled(&self, manifest: &Manifest, progress: Progress) -> Result<(), Error> {
        let documents = progress.documents;
        if progress.bytes == 0 {
            return Err(Error::EmptyCorpus { documents });
        }
        if manifest.train.tokens == 0 {
            return Err(Error::EmptySplit { split: Split::Train.name(), documents });
        }
        if manifest.val.tokens == 0 && self.split.val_fraction() > 0.0 {
            return Err(Error::EmptySplit { split: Split::Val.name(), documents });
        }
        Ok(())
    }
}

fn cut(split: SplitRule, corpus: &Corpus) -> Option<u64> {
    match split {
        SplitRule::Position { val_fraction } => Some((corpus.bytes() as f64 * (1.0 - val_fraction)) as u64),
        SplitRule::Document { .. } => None,
    }
}

fn read(parts: impl Iterator<Item = Result<Part, Error>>, to_encoder: &SyncSender<Result<Batch, Error>>) {
    let mut batch = Batch::default();
    for part in parts {
        let part = match part {
            Ok(part) => part,
            Err(error) if error.is_bad_record() => {
                batch.push_bad(error);
                continue;
            }
            Err(error) => {
                let _ = to_encoder.send(Err(error));
                return;
            }
        };
        batch.push(part);
        if batch.is_full() && to_encoder.send(Ok(std::mem::take(&mut batch))).is_err() {
            return;
        }
    }
    let _ = to_encoder.send(Ok(batch.last()));
}

type Splits = (crate::data::shard::SplitEntry, crate::data::shard::SplitEntry);

fn write(
    batches: Receiver<EncodedBatch>,
    mut train: SplitWriter,
    mut val: SplitWriter,
) -> Result<Splits, Error> {
    for batch in batches {
        for part in &batch.parts {
            let writer = match part.split {
                Split::Train => &mut train,
                Split::Val => &mut val,
            };
            if part.begins {
                writer.begin_document();
            }
            writer.push(&part.tokens, part.trained.as_deref(), &part.questions, part.bytes)?;
        }
    }
    Ok((train.finish()?, val.finish()?))
}
