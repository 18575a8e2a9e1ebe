//! A split as one sequence of tokens, with contexts.

use std::{
    ops::{Deref, Range},
    path::Path,
};

use crate::{
    data::{
        dataset::Split,
        shard::{MANIFEST, Manifest, ShardMap, ShardProblem, Starts, read_across},
    },
    error::Error,
};

pub(crate) const LONGEST: usize = 32;

#[derive(Debug)]
pub(crate) struct Text {
    shards: Vec<ShardMap>,
    starts: Vec<u64>,
    tokens: u64,
    bos: Option<u32>,
    documents: Option<Vec<u64>>,
}

/// Tokens that end at a position, backwards to the opening token, at most [`LONGEST`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    ids: [u32; LONGEST],
    length: usize,
}

impl Text {
    pub(crate) fn open(set: &Path, split: Split) -> Result<(Self, Manifest), Error> {
        let manifest = Manifest::read(set)?;
        let entries = &split.entry(&manifest).shards;
        if entries.is_empty() {
            return Err(Error::shard(set.join(MANIFEST), ShardProblem::NoShards(split.name())));
        }
        let open = |entry| ShardMap::open_entry(set, &manifest, entry);
        let shards = entries.iter().map(open).collect::<Result<Vec<_>, Error>>()?;
        let mut tokens = 0;
        let mut starts = Vec::with_capacity(shards.len());
        let mut documents = Some(Vec::new());
        for (shard, entry) in shards.iter().zip(entries) {
            match (&mut documents, &entry.starts) {
                (Some(documents), Some(file)) => {
                    let begins = Starts::open(set, file, shard)?;
                    documents.extend(begins.documents().map(|start| tokens + start));
                }
                _ => documents = None,
            }
            starts.push(tokens);
            tokens += shard.tokens();
        }
        let expected = split.entry(&manifest).tokens;
        if expected != tokens {
            return Err(Error::shard(set.join(MANIFEST), ShardProblem::Tokens { expected, found: tokens }));
        }
        Ok((Self { shards, starts, tokens, bos: manifest.tokenizer.bos, documents }, manifest))
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(crate) fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// `None` where only [`bos`](Self::bos) shows them.
    pub(crate) fn document_starts(&self) -> Option<Vec<u64>> {
        self.documents.clone()
    }

    /// May be beyond the vocabulary.
    pub(crate) fn get(&self, at: u64) -> Option<u32> {
        let shard = self.starts.partition_point(|start| *start <= at).checked_sub(1)?;
        self.shards[shard].get(at - self.starts[shard])
    }

    /// Ids up to the end. Fails for one beyond the vocabulary.
    pub(crate) fn read(&self, positions: Range<u64>) -> Result<Vec<u32>, Error> {
        read_across(self.shards.iter(), positions)
    }

    /// Empty beyond the end.
    pub(crate) fn context(&self, at: u64) -> Context {
        let mut context = Context::default();
        let Some(shard) = self.starts.partition_point(|start| *start <= at).checked_sub(1) else {
            return context;
        };
        context.length = self.shards[shard].read_backwards(at - self.starts[shard], &mut context.ids);
        if context.length > 0 {
            for before in self.shards[..shard].iter().rev() {
                let rest = &mut context.ids[context.length..];
                context.length += before.read_backwards(before.tokens().saturating_sub(1), rest);
            }
        }
        context.cut(self.bos);
        context
    }

    pub(crate) fn verify(&self, manifest: &Manifest, split: Split) -> Result<(), Error> {
        let mut entries = self.shards.iter().zip(&split.entry(manifest).shards);
        entries.try_for_each(|(shard, entry)| shard.verify(Some(entry.sha256)))
    }
}

impl Context {
    pub(crate) fn after(ids: &[u32], bos: Option<u32>) -> Self {
        let mut context = Self::default();
        for (place, id) in context.ids.iter_mut().zip(ids.iter().rev()) {
            *place = *id;
        }
        context.length = ids.len().min(LONGEST);
        context.cut(bos);
        context
    }

    fn cut(&mut self, bos: Option<u32>) {
        let opening = bos.and_then(|bos| self.iter().position(|id| *id == bos));
        self.length = opening.map_or(self.length, |opening| opening + 1);
    }

    pub(crate) fn common(&self, other: &[u32]) -> usize {
        self.iter().zip(other).take_while(|(one, other)| one == other).count()
    }
}

impl Default for Context {
    fn default() -> Self {
        Self { ids: [0; LONGEST], length: 0 }
    }
}

impl Deref for Context {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.ids[..self.length]
    }
}
