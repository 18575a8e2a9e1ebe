//! Finds a split's documents that an index holds word for word: a model would only copy them.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher},
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use super::Corpora;
use crate::{data::dataset::TokenDataset, error::Error};

const STRIDE: u64 = 1 << 14;

/// Copies of indexed documents in a split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duplicates {
    /// Documents of the split.
    pub documents: u64,
    /// Tokens of the split.
    pub positions: u64,
    /// Copies.
    pub duplicate_documents: u64,
    /// Copies' tokens.
    pub duplicate_positions: u64,
    /// Copies' positions: ascending, disjoint, touching ranges joined.
    pub ranges: Vec<Range<u64>>,
}

struct Tokens<R> {
    read: R,
    count: u64,
    starts: Option<Vec<u64>>,
    bos: Option<u32>,
}

#[derive(Clone, Debug)]
struct EqualDocuments {
    /// The first of equal documents; `starts` lists all.
    first: Range<u64>,
    starts: Vec<u64>,
    is_indexed: bool,
}

impl Corpora {
    /// Finds documents of `dataset` that equal an indexed one, or an earlier one in its own index. Reads all splits.
    pub fn duplicates(&self, dataset: &TokenDataset) -> Result<Duplicates, Error> {
        self.duplicates_unless(dataset, &AtomicBool::new(false))
    }

    /// [`duplicates`](Self::duplicates), but fails soon after `stop` is set.
    pub fn duplicates_unless(&self, dataset: &TokenDataset, stop: &AtomicBool) -> Result<Duplicates, Error> {
        let unless_stopped = || if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) };
        let own = self.own_index(dataset)?;
        let read = |range| unless_stopped().and_then(|()| dataset.read(range));
        let starts = dataset.document_starts();
        let split = Tokens { read, count: dataset.tokens(), starts, bos: dataset.bos() };

        let hashes = ahash::RandomState::new();
        let mut classes: HashMap<u64, Vec<EqualDocuments>> = HashMap::new();
        let mut found = Duplicates { positions: split.count, ..Duplicates::default() };
        split.documents(&hashes, |document, hash| {
            found.documents += 1;
            let alike = classes.entry(hash).or_default();
            for class in alike.iter_mut() {
                if same(&split, &class.first, &split, &document)? {
                    class.starts.push(document.start);
                    return Ok(());
                }
            }
            alike.push(EqualDocuments { starts: vec![document.start], first: document, is_indexed: false });
            Ok(())
        })?;

        let indexed = own.map_or(self.indexes().len(), |own| own + 1);
        for number in 0..indexed {
            let text = self.indexes()[number].text();
            let read = |range| unless_stopped().and_then(|()| self.read(number, range));
            let starts = text.document_starts();
            let text = Tokens { read, count: text.tokens(), starts, bos: text.bos() };
            text.documents(&hashes, |document, hash| {
                for class in classes.get_mut(&hash).into_iter().flatten().filter(|class| !class.is_indexed) {
                    if same(&split, &class.first, &text, &document)? {
                        class.is_indexed = true;
                        let length = document.end - document.start;
                        // In its own index, a document finds itself.
                        let before = |start: &u64| own != Some(number) || document.start < *start;
                        let copies = class.starts.iter().copied().filter(before);
                        found.ranges.extend(copies.map(|start| start..start + length));
                        break;
                    }
                }
                Ok(())
            })?;
        }

        found.finish();
        Ok(found)
    }
}

impl Duplicates {
    /// Whether a copy holds this `position`.
    pub fn contains(&self, position: u64) -> bool {
        let behind = self.ranges.partition_point(|range| range.start <= position);
        behind.checked_sub(1).is_some_and(|at| self.ranges[at].contains(&position))
    }

    fn finish(&mut self) {
        self.ranges.sort_unstable_by_key(|range| range.start);
        self.duplicate_documents = self.ranges.len() as u64;
        self.duplicate_positions = self.ranges.iter().map(|range| range.end - range.start).sum();
        self.ranges.dedup_by(|range, before| {
            let touches = before.end == range.start;
            if touches {
                before.end = range.end;
            }
            touches
        });
    }
}

impl<R: Fn(Range<u64>) -> Result<Vec<u32>, Error>> Tokens<R> {
    fn documents(
        &self,
        hashes: &ahash::RandomState,
        mut take: impl FnMut(Range<u64>, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut start = 0;
        let mut hasher = hashes.build_hasher();
        let mut starts = self.starts.as_deref().map(|starts| starts.iter().copied().peekable());
        for from in (0..self.count).step_by(STRIDE as usize) {
            for (at, id) in (from..).zip((self.read)(from..(from + STRIDE).min(self.count))?) {
                let begins = match &mut starts {
                    Some(starts) => starts.next_if(|start| *start <= at).is_some(),
                    None => Some(id) == self.bos,
                };
                if begins && at > start {
                    take(start..at, hasher.finish())?;
                    start = at;
                    hasher = hashes.build_hasher();
                }
                hasher.write_u32(id);
            }
        }
        if start < self.count { take(start..self.count, hasher.finish()) } else { Ok(()) }
    }
}

fn same<R, S>(
    one: &Tokens<R>,
    here: &Range<u64>,
    other: &Tokens<S>,
    there: &Range<u64>,
) -> Result<bool, Error>
where
    R: Fn(Range<u64>) -> Result<Vec<u32>, Error>,
    S: Fn(Range<u64>) -> Result<Vec<u32>, Error>,
{
    let length = here.end - here.start;
    if length != there.end - there.start {
        return Ok(false);
    }
    for from in (0..length).step_by(STRIDE as usize) {
        let to = (from + STRIDE).min(length);
        if (one.read)(here.start + from..here.start + to)?
            != (other.read)(there.start + from..there.start + to)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}
