//! The window table: where windows begin, so that no counted target is lost and none counts twice.
//!
//! A window spans tokens that follow one another in one shard; neighbouring windows may overlap. Each target counts in
//! the first window that predicts it and is masked in later ones. Where a document or a shard ends before a window is
//! full, the window is therefore moved back or filled up instead of being dropped.

use crate::{
    data::shard::{MaskMap, ShardMap, ShardProblem},
    error::Error,
};

/// The length, places and order of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPlan {
    /// Tokens in `x`, from 1 to 16777216.
    pub length: usize,
    /// The places where windows may begin.
    pub align: Align,
    /// A new order every epoch, by the cursor's seed; otherwise the order of the files.
    pub shuffle: bool,
}

/// The places where windows may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Back to back. Without a loss mask the last few tokens of a shard, fewer than a window, are left out.
    Anywhere,
    /// With the token that opens a document; a document cut by a window's end opens the next one. Only a document
    /// longer than a window is entered again within, and its last window ends with it. With a loss mask such a window
    /// begins half a window before the next counted target, so that answers are predicted with their questions.
    Document,
}

/// Counted targets of a split: those that its loss mask marks, or all tokens where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Counted targets in the files.
    pub counted: u64,
    /// Counted targets in the windows of one epoch, each once. A shard's first token is never predicted, and a shard may
    /// end in tokens that fill no window.
    pub seen: u64,
}

impl Targets {
    /// The share of the counted targets that one epoch trains on.
    pub fn share(self) -> f64 {
        if self.counted == 0 { 0.0 } else { self.seen as f64 / self.counted as f64 }
    }
}

/// Tokens of a window at most. A window that is longer than its shard is filled up, so its length takes memory.
const LONGEST: usize = 1 << 24;

/// Tokens with their loss mask.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) tokens: ShardMap,
    pub(super) mask: Option<MaskMap>,
}

/// The place of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) shard: usize,
    /// Position of its first token.
    pub(super) from: u64,
    /// The first position that no earlier window predicts; targets before it are masked.
    pub(super) fresh: u64,
}

#[derive(Debug)]
pub(super) struct WindowTable {
    places: Places,
    length: u64,
    targets: Targets,
}

#[derive(Debug)]
enum Places {
    /// Back to back, with the index of each shard's first window.
    Even { firsts: Vec<u64>, len: u64 },
    /// Shard and first token of each, in the order of the files.
    Listed(Vec<(u32, u64)>),
}

impl Shard {
    /// The first counted position from `from` on.
    fn next_counted(&self, from: u64) -> Option<u64> {
        match &self.mask {
            Some(mask) => mask.next_marked(from),
            None => Some(from).filter(|from| *from < self.tokens.tokens()),
        }
    }

    /// Counted positions among `range`.
    fn counted(&self, range: std::ops::Range<u64>) -> u64 {
        match &self.mask {
            Some(mask) => mask.marked(range),
            None => range.end - range.start,
        }
    }
}

impl WindowTable {
    pub(super) fn new(shards: &[Shard], bos: Option<u32>, plan: WindowPlan) -> Result<Self, Error> {
        if !(1..=LONGEST).contains(&plan.length) {
            let (value, expected) = (plan.length.to_string(), "a window of 1 to 16777216 tokens");
            return Err(Error::Option { option: "window length", value, expected });
        }
        let length = plan.length as u64;
        let masked = shards.iter().any(|shard| shard.mask.is_some());
        let places = match plan.align {
            Align::Anywhere if !masked => even(shards, length),
            align => listed(shards, bos, length, align)?,
        };
        let mut table = Self { places, length, targets: Targets::default() };
        table.targets = table.count(shards);
        if table.len() == 0 { Err(no_window(shards, plan.length, table.targets)) } else { Ok(table) }
    }

    pub(super) fn len(&self) -> u64 {
        match &self.places {
            Places::Even { len, .. } => *len,
            Places::Listed(places) => places.len() as u64,
        }
    }

    pub(super) fn targets(&self) -> Targets {
        self.targets
    }

    /// The place of window `index`, which is below [`len`](Self::len).
    pub(super) fn place(&self, index: u64) -> Place {
        match &self.places {
            Places::Even { firsts, .. } => {
                let shard = firsts.partition_point(|first| *first <= index) - 1;
                let from = (index - firsts[shard]) * self.length;
                Place { shard, from, fresh: from + 1 }
            }
            Places::Listed(places) => {
                let at = index as usize;
                let (shard, from) = places[at];
                let before =
                    at.checked_sub(1).map(|before| places[before]).filter(|(other, _)| *other == shard);
                let predicted = before.map_or(0, |(_, from)| from + self.length);
                Place { shard: shard as usize, from, fresh: predicted.max(from) + 1 }
            }
        }
    }

    fn count(&self, shards: &[Shard]) -> Targets {
        let counted = shards.iter().map(|shard| shard.counted(0..shard.tokens.tokens())).sum();
        let of_window = |place: Place| {
            let shard = &shards[place.shard];
            let end = (place.from + self.length + 1).min(shard.tokens.tokens());
            shard.counted(place.fresh.min(end)..end)
        };
        let seen = match &self.places {
            Places::Even { len, .. } => len * self.length,
            Places::Listed(_) => (0..self.len()).map(|index| of_window(self.place(index))).sum(),
        };
        Targets { counted, seen }
    }
}

fn no_window(shards: &[Shard], length: usize, targets: Targets) -> Error {
    let longest = shards.iter().map(|shard| &shard.tokens).max_by_key(|tokens| tokens.tokens());
    let path = longest.map_or(std::path::Path::new("(no shards)"), ShardMap::path);
    if targets.counted == 0 && longest.is_some() {
        return Error::shard(path, ShardProblem::NoTarget);
    }
    Error::shard(path, ShardProblem::NoWindow { length, longest: longest.map_or(0, ShardMap::tokens) })
}

fn even(shards: &[Shard], length: u64) -> Places {
    let mut len = 0;
    let count = |shard: &Shard| {
        let first = len;
        len += shard.tokens.tokens().saturating_sub(1) / length;
        first
    };
    let firsts = shards.iter().map(count).collect();
    Places::Even { firsts, len }
}

fn listed(shards: &[Shard], bos: Option<u32>, length: u64, align: Align) -> Result<Places, Error> {
    let mut places = Vec::new();
    for (at, shard) in shards.iter().enumerate() {
        let opening = match align {
            Align::Anywhere => None,
            Align::Document => {
                Some(bos.ok_or_else(|| Error::shard(shard.tokens.path(), ShardProblem::NoDocumentToken))?)
            }
        };
        let documents = opening.into_iter().flat_map(|bos| shard.tokens.positions(bos));
        list(shard, documents, length, align, |from| places.push((at as u32, from)));
    }
    Ok(Places::Listed(places))
}

/// Gives `add` the first token of every window of `shard`, in order. `documents` are the positions where one opens.
fn list(
    shard: &Shard,
    documents: impl Iterator<Item = u64>,
    length: u64,
    align: Align,
    mut add: impl FnMut(u64),
) {
    let last = shard.tokens.tokens().saturating_sub(1);
    let context = if shard.mask.is_some() { length / 2 } else { 0 };
    let mut documents = documents.peekable();
    // A shard may begin within a document.
    let mut document = 0;
    let mut predicted = 0;
    while let Some(target) = shard.next_counted(predicted + 1) {
        while let Some(next) = documents.next_if(|next| *next < target) {
            document = next;
        }
        // The token that opens the next document ends this one.
        let end = documents.peek().copied().unwrap_or(last);
        let from = match align {
            Align::Anywhere => {
                (predicted + (target - 1 - predicted) / length * length).min(last.saturating_sub(length))
            }
            Align::Document if end - document <= length => document,
            Align::Document => (target - 1).saturating_sub(context).max(document).min(end - length),
        };
        add(from);
        predicted = from + length;
    }
}
