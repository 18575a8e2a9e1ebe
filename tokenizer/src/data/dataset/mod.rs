//! Reads shards as windows of tokens, in an order that a cursor resumes.
//!
//! A window depends only on files, plan, position and seed: workers that share positions read one stream.

mod cursor;
mod foreign;
mod windows;

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

pub use cursor::Cursor;
pub use windows::{Align, Targets, WindowPlan};
use windows::{Shard, WindowStart, WindowTable};

use serde::{Deserialize, Serialize};

use crate::{
    data::shard::{Manifest, MaskMap, ShardMap, ShardProblem, SplitEntry, Starts, read_across},
    encode::tokenizer::Tokenizer,
    error::Error,
    fingerprint::Fingerprint,
    permutation::Permutation,
};

/// A set's split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Training text.
    Train,
    /// Validation text.
    Val,
}

/// A training sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Tokens, as many as the plan's length.
    pub x: Vec<u32>,
    /// The token after each of `x`.
    pub y: Vec<u32>,
    /// `true` for targets of the loss; `None` if all count. Targets outside the loss mask, in an earlier window or in
    /// padding do not.
    pub mask: Option<Vec<bool>>,
}

/// Formats without a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardFormat {
    /// llm.c's `.bin`, with a header.
    LlmC,
    /// nanoGPT's `.bin`: headerless 16-bit ids.
    NanoGpt,
}

/// Memory-mapped shards, cut into windows.
#[derive(Debug)]
pub struct TokenDataset {
    shards: Vec<Shard>,
    manifest: Option<(PathBuf, Manifest, Split)>,
    bos: Option<u32>,
    windows: WindowTable,
    plan: WindowPlan,
}

impl Split {
    /// `train` or `val`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
        }
    }

    pub(crate) fn entry(self, manifest: &Manifest) -> &SplitEntry {
        match self {
            Self::Train => &manifest.train,
            Self::Val => &manifest.val,
        }
    }
}

impl TokenDataset {
    /// Opens one split of the set in `folder`, which must hold ids of `tokenizer`. Checks sizes, headers and marks;
    /// reading checks ids, and [`verify`](Self::verify) everything.
    ///
    /// A folder without a manifest may hold llm.c's or nanoGPT's `.bin` files, with the split in their names.
    /// `tokenizer` must be theirs; its [`bos`](Tokenizer::bos) opens documents.
    pub fn open(
        folder: impl AsRef<Path>,
        split: Split,
        tokenizer: &Tokenizer,
        plan: WindowPlan,
    ) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let manifest = match Manifest::read(folder) {
            Err(no_set @ Error::NoSet { .. }) => {
                return Self::open_foreign(folder, split, tokenizer, plan, no_set);
            }
            manifest => manifest?,
        };

        let at_fault = folder.join(crate::data::shard::MANIFEST);
        let (expected, found) = (tokenizer.fingerprint(), manifest.tokenizer.sha256);
        if expected != found {
            return Err(Error::shard(at_fault, ShardProblem::Tokenizer { expected, found }));
        }
        let entries = &split.entry(&manifest).shards;
        if entries.is_empty() {
            return Err(Error::shard(at_fault, ShardProblem::NoShards(split.name())));
        }

        let mut shards = Vec::new();
        for entry in entries {
            let tokens = ShardMap::open_entry(folder, &manifest, entry)?;
            let mask = entry.mask.as_ref().map(|mask| MaskMap::open(&folder.join(&mask.file), &tokens));
            let starts = entry.starts.as_ref().map(|starts| Starts::open(folder, starts, &tokens));
            shards.push(Shard { mask: mask.transpose()?, starts: starts.transpose()?, tokens });
        }

        let bos = manifest.tokenizer.bos;
        Self::build(shards, Some((folder.to_owned(), manifest, split)), bos, plan)
    }

    fn open_foreign(
        folder: &Path,
        split: Split,
        tokenizer: &Tokenizer,
        plan: WindowPlan,
        no_set: Error,
    ) -> Result<Self, Error> {
        let Ok(Some(files)) = foreign::find(folder, split) else { return Err(no_set) };
        let Some(first) = files.first() else {
            return Err(Error::shard(folder, ShardProblem::NoShards(split.name())));
        };
        let format = foreign::format(first)?;
        let dataset = Self::from_files(&files, format, tokenizer.vocab_size(), tokenizer.bos(), plan)?;
        dataset.shards.iter().try_for_each(|shard| foreign::check_vocabulary(&shard.tokens))?;
        Ok(dataset)
    }

    /// Opens other programs' shards, with ids below `vocab_size`. Only given `bos`, windows can begin with documents.
    pub fn from_files(
        files: &[PathBuf],
        format: ShardFormat,
        vocab_size: u32,
        bos: Option<u32>,
        plan: WindowPlan,
    ) -> Result<Self, Error> {
        let open = |path: &PathBuf| {
            let tokens = match format {
                ShardFormat::LlmC => ShardMap::open(path, vocab_size, [0; 8])?,
                ShardFormat::NanoGpt => ShardMap::open_headerless(path, vocab_size)?,
            };
            Ok(Shard { tokens, mask: None, starts: None })
        };
        let shards = files.iter().map(open).collect::<Result<Vec<_>, Error>>()?;
        Self::build(shards, None, bos, plan)
    }

    fn build(
        shards: Vec<Shard>,
        manifest: Option<(PathBuf, Manifest, Split)>,
        bos: Option<u32>,
        plan: WindowPlan,
    ) -> Result<Self, Error> {
        let windows = WindowTable::new(&shards, bos, plan)?;
        Ok(Self { shards, manifest, bos, windows, plan })
    }

    /// Windows per epoch.
    pub fn windows(&self) -> u64 {
        self.windows.len()
    }

    /// Tokens in all shards.
    pub fn tokens(&self) -> u64 {
        self.shards.iter().map(|shard| shard.tokens.tokens()).sum()
    }

    /// Counted targets.
    pub fn targets(&self) -> Targets {
        self.windows.targets()
    }

    /// The manifest, if any.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref().map(|(_, manifest, _)| manifest)
    }

    /// Identifies the tokens by the manifest's checksums, else by sizes and beginnings.
    pub fn fingerprint(&self) -> Result<Fingerprint, Error> {
        match &self.manifest {
            Some((_, manifest, split)) => Ok(split.entry(manifest).fingerprint()),
            None => foreign::fingerprint(self.shards.iter().map(|shard| shard.tokens.path())),
        }
    }

    /// Token positions of the window at `cursor` within the split; fewer than the plan's length if padded.
    pub fn positions(&self, cursor: Cursor) -> Range<u64> {
        let WindowStart { shard, from, .. } = self.place(cursor);
        let before: u64 = self.shards[..shard].iter().map(|shard| shard.tokens.tokens()).sum();
        let count = (self.plan.length as u64).min(self.shards[shard].tokens.tokens() - from - 1);
        before + from..before + from + count
    }

    pub(crate) fn read(&self, positions: Range<u64>) -> Result<Vec<u32>, Error> {
        read_across(self.shards.iter().map(|shard| &shard.tokens), positions)
    }

    pub(crate) fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// `None` where only [`bos`](Self::bos) shows them.
    pub(crate) fn document_starts(&self) -> Option<Vec<u64>> {
        let mut before = 0;
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.starts.as_ref()?.documents().map(|start| before + start));
            before += shard.tokens.tokens();
        }
        Some(all)
    }

    pub(crate) fn window_length(&self) -> usize {
        self.plan.length
    }

    /// The window at `cursor`.
    pub fn window(&self, cursor: Cursor) -> Result<Window, Error> {
        let WindowStart { shard, from, fresh } = self.place(cursor);
        let Shard { tokens, mask, .. } = &self.shards[shard];
        let length = self.plan.length;
        let mut x = tokens.read(from, (length + 1).min((tokens.tokens() - from) as usize))?;
        let targets = x.len() - 1;
        let mut mask = mask.as_ref().map(|mask| mask.read(from + 1, targets)).transpose()?;
        let repeated = (fresh - from - 1) as usize;
        if repeated > 0 || targets < length {
            let mask = mask.get_or_insert_with(|| vec![true; targets]);
            mask[..repeated].fill(false);
            mask.resize(length, false);
        }
        let filler = x[targets];
        x.resize(length + 1, filler);
        let y = x[1..].to_vec();
        x.pop();
        Ok(Window { x, y, mask })
    }

    fn place(&self, cursor: Cursor) -> WindowStart {
        let index = cursor.index % self.windows();
        let permuted = || Permutation::new(self.windows(), cursor.seed, cursor.epoch).apply(index);
        self.windows.place(if self.plan.shuffle { permuted() } else { index })
    }

    /// The next position; after the last window, in the next epoch.
    pub fn after(&self, cursor: Cursor) -> Cursor {
        self.skip(cursor, 1)
    }

    /// The position `count` windows after `cursor`.
    pub fn skip(&self, cursor: Cursor, count: u64) -> Cursor {
        let place = u128::from(cursor.index) + u128::from(count);
        let windows = u128::from(self.windows());
        Cursor { epoch: cursor.epoch + (place / windows) as u64, index: (place % windows) as u64, ..cursor }
    }

    /// All windows from `cursor` on, endlessly, with positions.
    pub fn stream(&self, cursor: Cursor) -> impl Iterator<Item = Result<(Cursor, Window), Error>> {
        self.share(cursor, 0, 1)
    }

    /// Every `workers`-th window from `cursor` on, from number `worker`.
    pub fn share(
        &self,
        cursor: Cursor,
        worker: u64,
        workers: u64,
    ) -> impl Iterator<Item = Result<(Cursor, Window), Error>> {
        let first = self.skip(cursor, worker);
        let places = std::iter::successors(Some(first), move |place| Some(self.skip(*place, workers)));
        places.map(|place| Ok((place, self.window(place)?)))
    }

    /// Reads the split: compares checksums, and ids with the vocabulary.
    pub fn verify(&self) -> Result<(), Error> {
        let entries = self.manifest.as_ref().map(|(_, manifest, split)| &split.entry(manifest).shards);
        for (at, Shard { tokens, mask, .. }) in self.shards.iter().enumerate() {
            let entry = entries.map(|entries| &entries[at]);
            tokens.verify(entry.map(|entry| entry.sha256))?;
            if let (Some(mask), Some(entry)) = (mask, entry.and_then(|entry| entry.mask.as_ref())) {
                mask.verify(entry.sha256)?;
            }
        }
        Ok(())
    }
}
