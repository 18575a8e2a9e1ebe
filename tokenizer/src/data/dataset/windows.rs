//! Where windows begin: every counted target counts exactly once.
//!
//! A window spans consecutive tokens of one shard; neighbours may overlap. A target counts in the first window that
//! predicts it. A window that no document or shard fills is moved back or padded.

use crate::{
    data::shard::{MaskMap, ShardMap, ShardProblem, Starts},
    error::Error,
};

/// How to cut windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPlan {
    /// Tokens in `x`, from 1 to 16777216.
    pub length: usize,
    /// Beginnings of windows.
    pub align: Align,
    /// By the cursor's seed, in every epoch; otherwise in file order.
    pub shuffle: bool,
}

/// Beginnings of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Back to back. Without a loss mask, a shard's incomplete last window is left out.
    Anywhere,
    /// At a document's beginning. Only documents longer than a window have windows inside; the last ends with the
    /// document. A document cut by a window's end opens the next window. With a loss mask, inner windows begin half a
    /// window before the next counted target, or later with a question if the document is longer than two windows.
    Document,
}

/// Counted targets: all tokens, or those in the loss mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Targets in the files.
    pub counted: u64,
    /// Targets in an epoch's windows. A shard's first token is never predicted; its last may fill no window.
    pub seen: u64,
}

impl Targets {
    /// Share of counted targets in an epoch.
    pub fn share(self) -> f64 {
        if self.counted == 0 { 0.0 } else { self.seen as f64 / self.counted as f64 }
    }
}

/// Windows are padded to their length, which costs memory.
const LONGEST: usize = 1 << 24;

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) tokens: ShardMap,
    pub(super) mask: Option<MaskMap>,
    /// `None` for other programs' and older shards, whose documents begin with an opening token.
    pub(super) starts: Option<Starts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowStart {
    pub(super) shard: usize,
    pub(super) from: u64,
    /// An earlier window predicted targets before it.
    pub(super) fresh: u64,
}

#[derive(Debug)]
pub(super) struct WindowTable {
    places: WindowStarts,
    length: u64,
    targets: Targets,
}

#[derive(Debug)]
enum WindowStarts {
    /// Each shard's first window.
    Even { firsts: Vec<u64>, len: u64 },
    /// Shard and first token, in file order.
    Listed(Vec<(u32, u64)>),
}

impl Shard {
    fn next_counted(&self, from: u64) -> Option<u64> {
        match &self.mask {
            Some(mask) => mask.next_marked(from),
            None => Some(from).filter(|from| *from < self.tokens.tokens()),
        }
    }

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
            WindowStarts::Even { len, .. } => *len,
            WindowStarts::Listed(places) => places.len() as u64,
        }
    }

    pub(super) fn targets(&self) -> Targets {
        self.targets
    }

    pub(super) fn place(&self, index: u64) -> WindowStart {
        match &self.places {
            WindowStarts::Even { firsts, .. } => {
                let shard = firsts.partition_point(|first| *first <= index) - 1;
                let from = (index - firsts[shard]) * self.length;
                WindowStart { shard, from, fresh: from + 1 }
            }
            WindowStarts::Listed(places) => {
                let at = index as usize;
                let (shard, from) = places[at];
                let before =
                    at.checked_sub(1).map(|before| places[before]).filter(|(other, _)| *other == shard);
                let predicted = before.map_or(0, |(_, from)| from + self.length);
                WindowStart { shard: shard as usize, from, fresh: predicted.max(from) + 1 }
            }
        }
    }

    fn count(&self, shards: &[Shard]) -> Targets {
        let counted = shards.iter().map(|shard| shard.counted(0..shard.tokens.tokens())).sum();
        let of_window = |place: WindowStart| {
            let shard = &shards[place.shard];
            let end = (place.from + self.length + 1).min(shard.tokens.tokens());
            shard.counted(place.fresh.min(end)..end)
        };
        let seen = match &self.places {
            WindowStarts::Even { len, .. } => len * self.length,
            WindowStarts::Listed(_) => (0..self.len()).map(|index| of_window(self.place(index))).sum(),
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

fn even(shards: &[Shard], length: u64) -> WindowStarts {
    let mut len = 0;
    let count = |shard: &Shard| {
        let first = len;
        len += shard.tokens.tokens().saturating_sub(1) / length;
        first
    };
    let firsts = shards.iter().map(count).collect();
    WindowStarts::Even { firsts, len }
}

fn listed(shards: &[Shard], bos: Option<u32>, length: u64, align: Align) -> Result<WindowStarts, Error> {
    let mut places = Vec::new();
    for (at, shard) in shards.iter().enumerate() {
        let mut add = |from| places.push((at as u32, from));
        match (align, &shard.starts, bos) {
            (Align::Anywhere, _, _) => list(shard, std::iter::empty(), length, align, &mut add),
            (Align::Document, Some(starts), _) => list(shard, starts.documents(), length, align, &mut add),
            (Align::Document, None, Some(bos)) => {
                list(shard, shard.tokens.positions(bos), length, align, &mut add);
            }
            (Align::Document, None, None) => {
                return Err(Error::shard(shard.tokens.path(), ShardProblem::NoDocumentToken));
            }
        }
    }
    Ok(WindowStarts::Listed(places))
}

/// Calls `add` with each window's first token, in order. `documents`: their beginnings.
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
    let mut document = 0;
    let mut predicted = 0;

    while let Some(target) = shard.next_counted(predicted + 1) {
        while let Some(next) = documents.next_if(|next| *next < target) {
            document = next;
        }

        // The next document's first token is this one's last target.
        let end = documents.peek().copied().unwrap_or(last);
        let from = match align {
            Align::Anywhere => {
                (predicted + (target - 1 - predicted) / length * length).min(last.saturating_sub(length))
            }
            Align::Document if end - document <= length => document,
            Align::Document => {
                let least = (target - 1).saturating_sub(context).max(document).min(end - length);
                let most = (target - 1).min(end - length);
                let question = |starts: &Starts| starts.first_within(least..most + 1);
                // Two windows cover a shorter document.
                let is_long = end - document > 2 * length;
                shard.starts.as_ref().filter(|_| is_long).and_then(question).unwrap_or(least)
            }
        };
        add(from);
        predicted = from + length;
    }
}
