//! Where windows begin. No window reaches over the end of a shard.

use crate::{
    error::Error,
    shard::{ShardMap, ShardProblem},
};

/// How shards are cut and ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPlan {
    /// Tokens in `x`, at least 1.
    pub length: usize,
    /// Where windows may begin.
    pub align: Align,
    /// A new order every epoch, by the cursor's seed; otherwise the order of the files.
    pub shuffle: bool,
}

/// Where windows may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Back to back, so that every token but a shard's last few is predicted once.
    Anywhere,
    /// With the token that opens a document. A document cut by a window's end is left for the next document's
    /// beginning, unless another whole window of it follows, which then goes on within it.
    Document,
}

/// The first token of every window.
#[derive(Debug)]
pub(super) enum WindowTable {
    /// Windows of `length` tokens, with the index of each shard's first one.
    Even { length: u64, firsts: Vec<u64>, len: u64 },
    /// Shard and position of each.
    Listed(Vec<(u32, u64)>),
}

impl WindowTable {
    pub(super) fn new(shards: &[ShardMap], bos: Option<u32>, plan: WindowPlan) -> Result<Self, Error> {
        if plan.length == 0 {
            let (value, expected) = (plan.length.to_string(), "a window of at least 1 token");
            return Err(Error::Option { option: "window length", value, expected });
        }
        let length = plan.length as u64;
        let table = match plan.align {
            Align::Anywhere => Self::even(shards, length),
            Align::Document => Self::listed(shards, bos, length)?,
        };
        if table.len() == 0 {
            let longest = shards.iter().max_by_key(|shard| shard.tokens());
            let tokens = longest.map_or(0, ShardMap::tokens);
            let path = longest.map_or(std::path::Path::new("(no shards)"), ShardMap::path);
            return Err(Error::shard(path, ShardProblem::NoWindow { length: plan.length, longest: tokens }));
        }
        Ok(table)
    }

    fn even(shards: &[ShardMap], length: u64) -> Self {
        let mut len = 0;
        let count = |shard: &ShardMap| {
            let first = len;
            len += shard.tokens().saturating_sub(1) / length;
            first
        };
        let firsts = shards.iter().map(count).collect();
        Self::Even { length, firsts, len }
    }

    fn listed(shards: &[ShardMap], bos: Option<u32>, length: u64) -> Result<Self, Error> {
        let mut places = Vec::new();
        for (at, shard) in shards.iter().enumerate() {
            let bos = bos.ok_or_else(|| Error::shard(shard.path(), ShardProblem::NoDocumentToken))?;
            let mut documents = shard.positions(bos).peekable();
            // A shard may begin within a document.
            let mut next = documents.next_if(|first| *first <= length).or(Some(0));
            while let Some(from) = next.filter(|from| from + length < shard.tokens()) {
                places.push((at as u32, from));
                let end = from + length;
                while documents.next_if(|document| *document < end).is_some() {}
                let document_goes_on = documents.peek().is_none_or(|document| *document > end + length);
                next = if document_goes_on { Some(end) } else { documents.next() };
            }
        }
        Ok(Self::Listed(places))
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Even { len, .. } => *len,
            Self::Listed(places) => places.len() as u64,
        }
    }

    /// The shard and position at which window `index` begins.
    pub(super) fn place(&self, index: u64) -> (usize, u64) {
        match self {
            Self::Even { length, firsts, .. } => {
                let shard = firsts.partition_point(|first| *first <= index) - 1;
                (shard, (index - firsts[shard]) * length)
            }
            Self::Listed(places) => {
                let (shard, from) = places[index as usize];
                (shard as usize, from)
            }
        }
    }
}
