//! Builds an index: sorts chunks, merges them by stretches, and finds all matches in two passes.

use std::{
    ops::Range,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use rayon::{ThreadPool, ThreadPoolBuilder, prelude::*};

use super::{
    IndexManifest,
    budget::Budget,
    build_folder::{self, BuildFolder, FOLLOWERS, ORDER},
    files::{EntryReader, EntryWriter, Header, Kind},
    follower::{Follower, MOST_IDS},
    manifest::IndexPlan,
    merge::{Merge, read_u32},
    minima,
    search::Order,
    self_matches::{self, EarlierMatch},
    sort::Chunk,
    text::{LONGEST, Text},
};
use crate::{data::dataset::Split, error::Error, fingerprint::Fingerprint, regular};

const STRIDE: u64 = 1 << 14;

/// An index to build.
#[derive(Clone, Debug)]
pub struct IndexBuild {
    /// A prepared set.
    pub set: PathBuf,
    /// Usually the training split.
    pub split: Split,
    /// The index's folder.
    pub out: PathBuf,
    /// Bytes to allocate, up to a few megabytes more. The mapped shards need page cache on top, or merging is slow.
    pub memory: u64,
    /// Tokens sorted at once; `None` fills the memory.
    pub chunk_tokens: Option<u64>,
    /// At least 1; does not change the index.
    pub threads: usize,
}

/// A build's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexStep {
    /// Sorting chunks.
    Sort,
    /// Merging chunks.
    Merge,
    /// Finding all matches.
    Match,
}

/// A build's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexProgress {
    /// The current step.
    pub step: IndexStep,
    /// Its finished tokens.
    pub tokens: u64,
    /// All tokens.
    pub all: u64,
    /// Reused pieces of all steps.
    pub reused: u64,
}

struct Work<'a, O> {
    text: &'a Text,
    budget: Budget,
    folder: &'a BuildFolder,
    pool: ThreadPool,
    threads: usize,
    stop: &'a AtomicBool,
    observe: O,
    progress: IndexProgress,
}

impl IndexBuild {
    /// Builds the index, or returns the manifest of this split's index in `out`. An unfinished build leaves pieces in
    /// `OUT.partial`, which the next one with the same chunks verifies and reuses. Stops soon after `stop` is set;
    /// calls `observe` after every piece.
    pub fn run(&self, stop: &AtomicBool, observe: impl FnMut(IndexProgress)) -> Result<IndexManifest, Error> {
        let (text, set) = Text::open(&self.set, self.split)?;
        let plan = IndexPlan::new(&set, self.split);
        self.check(&plan)?;
        if let Some(manifest) = build_folder::finished(&self.out, &plan)? {
            return Ok(manifest);
        }

        // The last token has no follower.
        let entries = plan.tokens - 1;
        let budget = Budget::new(self.memory, self.threads, self.chunk_tokens, entries)?;
        let pool = ThreadPoolBuilder::new().num_threads(self.threads).build();
        let pool = pool.map_err(|_| self.refused_threads())?;
        let folder = BuildFolder::begin(&self.out, &plan, budget.chunk_tokens)?;

        let progress = IndexProgress { step: IndexStep::Sort, tokens: 0, all: plan.tokens, reused: 0 };
        let (text, threads) = (&text, self.threads);
        let mut work = Work { text, budget, folder: &folder, pool, threads, stop, observe, progress };

        let runs = work.sort(entries)?;
        let stretches = work.merge(&runs)?;
        let order = work.order(&stretches, plan.mark())?;
        let followers = work.followers(&stretches, plan.mark())?;
        drop((runs, stretches));
        let manifest = plan.finish(order, followers);
        folder.publish(&manifest)?;
        Ok(manifest)
    }

    fn check(&self, plan: &IndexPlan) -> Result<(), Error> {
        let refuse = |option, value: String, expected| Err(Error::Option { option, value, expected });
        if self.threads == 0 {
            return Err(self.refused_threads());
        }
        if plan.tokens == 0 || plan.tokens > u64::from(u32::MAX) {
            let expected = "from 1 to 4294967295; divide a larger corpus into several sets, whose indexes are searched together";
            return refuse("tokens to index", plan.tokens.to_string(), expected);
        }
        let ids = plan.tokenizer.vocab_size;
        if ids > MOST_IDS {
            return refuse("vocabulary to index", ids.to_string(), "at most 262144 ids");
        }
        Ok(())
    }

    fn refused_threads(&self) -> Error {
        let value = self.threads.to_string();
        Error::Option { option: "threads", value, expected: "at least 1, and as many as the system starts" }
    }
}

impl<O: FnMut(IndexProgress)> Work<'_, O> {
    fn sort(&mut self, entries: u64) -> Result<Vec<EntryReader>, Error> {
        let chunk_tokens = self.budget.chunk_tokens;
        let mut runs = Vec::new();
        for number in 0..self.budget.runs {
            let range = number * chunk_tokens..((number + 1) * chunk_tokens).min(entries);
            let count = range.end - range.start;
            let (text, pool) = (self.text, &self.pool);
            let sort = |writing: &mut EntryWriter| {
                let from = range.start.saturating_sub(LONGEST as u64 - 1);
                let tokens = text.read(from..range.end)?;
                let head = (range.start - from) as usize;
                let chunk = Chunk { tokens, head, start: range.start as u32, bos: text.bos() };
                let mut sorted = pool.install(|| chunk.sorted());
                sorted.try_for_each(|position| writing.push(&position.to_le_bytes()))
            };
            let (run, reused) = self.folder.piece(&format!("run-{number:05}"), Kind::Run, count, sort)?;
            runs.push(run);
            self.advance(IndexStep::Sort, count, reused.into())?;
        }
        Ok(runs)
    }

    fn merge(&mut self, runs: &[EntryReader]) -> Result<Vec<EntryReader>, Error> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }

        let merge = Merge { text: self.text, runs, buffered: self.budget.buffered };
        let parts: Vec<_> = merge.stretches()?.into_iter().enumerate().collect();
        let mut stretches = Vec::new();

        for round in parts.chunks(self.threads) {
            let (folder, stop) = (self.folder, self.stop);
            let write = |(number, parts): &(usize, Vec<Range<u64>>)| {
                let count = parts.iter().map(|part| part.end - part.start).sum();
                let name = format!("stretch-{number:05}");
                folder.piece(&name, Kind::Stretch, count, |writing| merge.write(parts, writing, stop))
            };
            let written: Vec<_> = self.pool.install(|| round.par_iter().map(write).collect());
            for piece in written {
                let (stretch, reused) = piece?;
                let count = stretch.entries();
                stretches.push(stretch);
                self.advance(IndexStep::Merge, count, reused.into())?;
            }
        }

        Ok(stretches)
    }

    fn order(&self, stretches: &[EntryReader], mark: [u8; 8]) -> Result<Fingerprint, Error> {
        let mut order = EntryWriter::create(&self.folder.path(ORDER), Kind::Order)?;
        let mut bytes = Vec::new();
        for stretch in stretches {
            for from in (0..stretch.entries()).step_by(STRIDE as usize) {
                stretch.read(from, (stretch.entries() - from).min(STRIDE) as usize, &mut bytes)?;
                bytes.chunks_exact(5).try_for_each(|entry| order.push(&entry[..4]))?;
            }
        }

        let levels = minima::levels(stretches.iter().map(EntryReader::entries).sum());
        for below in &levels[..levels.len() - 1] {
            let written = order.reader_so_far()?;
            let read = |range: Range<u64>| {
                written.read(range.start, (range.end - range.start) as usize, &mut bytes)?;
                Ok(bytes.chunks_exact(4).map(read_u32).collect())
            };
            minima::fold(below.clone(), read, |least| order.push(&least.to_le_bytes()))?;
        }
        order.finish(mark)
    }

    fn followers(&mut self, stretches: &[EntryReader], mark: [u8; 8]) -> Result<Fingerprint, Error> {
        let tokens = self.text.tokens();
        let mut followers = EntryWriter::create(&self.folder.path(FOLLOWERS), Kind::Followers)?;
        let starts: Vec<u64> = (0..tokens - 1).step_by(self.budget.range as usize).collect();
        for round in starts.chunks(self.threads) {
            let (buffered, stop) = (self.budget.buffered, self.stop);
            let matches = |start: &u64| {
                let range = *start..(start + self.budget.range).min(tokens - 1);
                self_matches::matches(stretches, range, buffered, stop)
            };
            let found: Vec<_> = self.pool.install(|| round.par_iter().map(matches).collect());
            for range in found {
                let range = range?;
                for one in &range {
                    followers.push(&self.follower(*one).to_bytes())?;
                }
                self.advance(IndexStep::Match, range.len() as u64, 0)?;
            }
        }
        followers.push(&self.follower(self.last_match()?).to_bytes())?;
        followers.finish(mark)
    }

    fn follower(&self, found: EarlierMatch) -> Follower {
        let next = self.text.get(u64::from(found.position()) + 1).filter(|_| found.length() > 0);
        next.map_or(Follower::NONE, |next| Follower { length: found.length(), next })
    }

    /// The order lacks the last position.
    fn last_match(&self) -> Result<EarlierMatch, Error> {
        let map = regular::map(&self.folder.path(ORDER), |_| Ok(()))?;
        let tokens = self.text.tokens();
        let order = Order::new(map, Header::BYTES, tokens - 1);
        let found = order.longest(self.text, &self.text.context(tokens - 1));
        Ok(found.map_or(EarlierMatch::default(), |(length, position)| EarlierMatch::new(length, position)))
    }

    fn advance(&mut self, step: IndexStep, tokens: u64, reused: u64) -> Result<(), Error> {
        let before = if self.progress.step == step { self.progress.tokens } else { 0 };
        let reused = self.progress.reused + reused;
        self.progress = IndexProgress { step, tokens: before + tokens, reused, ..self.progress };
        (self.observe)(self.progress);
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}
