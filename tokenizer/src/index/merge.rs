//! Merging sorted chunks, one stretch of the order at a time.
//!
//! The order is divided at contexts of the first chunk, in as many stretches as there are chunks. Each stretch takes its
//! part of every chunk, so stretches are merged by any number of threads and each is a file that a build that goes on
//! finds finished.

use std::{
    cmp::Ordering,
    ops::Range,
    sync::atomic::{self, AtomicBool},
};

use super::{
    files::{Reading, Writing},
    text::{Context, Text},
};
use crate::error::Error;

/// Entries between two looks at whether to stop.
const STRIDE: u64 = 1 << 16;

/// The sorted chunks and the text they are about.
#[derive(Debug)]
pub(super) struct Merge<'a> {
    pub(super) text: &'a Text,
    pub(super) runs: &'a [Reading],
    /// Entries of a run that are in memory at once.
    pub(super) buffered: usize,
}

/// One run's part of a stretch.
struct Head<'a> {
    run: &'a Reading,
    rest: Range<u64>,
    buffered: usize,
    bytes: Vec<u8>,
    next: usize,
    position: u32,
    context: Context,
}

impl Merge<'_> {
    /// For each stretch, its part of every run.
    pub(super) fn stretches(&self) -> Result<Vec<Vec<Range<u64>>>, Error> {
        let first = &self.runs[0];
        let count = self.runs.len() as u64;
        let mut from = vec![0; self.runs.len()];
        let mut stretches = Vec::new();
        for stretch in 1..=count {
            let to = if stretch == count {
                self.runs.iter().map(Reading::entries).collect()
            } else {
                let position = entry(first, first.entries() * stretch / count)?;
                let context = self.text.context(position.into());
                let below = |run| self.below(run, &context, position);
                self.runs.iter().map(below).collect::<Result<Vec<_>, Error>>()?
            };
            stretches.push(from.iter().zip(&to).map(|(from, to)| *from..*to).collect());
            from = to;
        }
        Ok(stretches)
    }

    /// Entries of `run` that come before `position`, whose context is `context`.
    fn below(&self, run: &Reading, context: &Context, position: u32) -> Result<u64, Error> {
        let (mut low, mut high) = (0, run.entries());
        while low < high {
            let middle = low.midpoint(high);
            let found = entry(run, middle)?;
            let order = self.text.context(found.into()).cmp(context).then(found.cmp(&position));
            if order == Ordering::Less { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// Writes the positions of one stretch in order, each with the number of tokens that its context has in common with
    /// the one before.
    pub(super) fn write(
        &self,
        parts: &[Range<u64>],
        writing: &mut Writing,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let mut last = self.last_before(parts)?;
        let mut heads = Vec::new();
        for (run, part) in self.runs.iter().zip(parts) {
            let rest = part.clone();
            let (bytes, context) = (Vec::new(), Context::default());
            let mut head = Head { run, rest, buffered: self.buffered, bytes, next: 0, position: 0, context };
            if head.advance(self.text)? {
                heads.push(head);
            }
        }
        for at in (0..heads.len() / 2).rev() {
            sink(&mut heads, at);
        }
        for count in 0.. {
            let Some(head) = heads.first_mut() else { break };
            let common = head.context.common(&last) as u8;
            let [a, b, c, d] = head.position.to_le_bytes();
            writing.push(&[a, b, c, d, common])?;
            last = head.context;
            if !head.advance(self.text)? {
                heads.swap_remove(0);
            }
            sink(&mut heads, 0);
            if count % STRIDE == 0 && stop.load(atomic::Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// The context that comes right before a stretch.
    fn last_before(&self, parts: &[Range<u64>]) -> Result<Context, Error> {
        let mut last = Context::default();
        for (run, part) in self.runs.iter().zip(parts) {
            if let Some(before) = part.start.checked_sub(1) {
                let context = self.text.context(entry(run, before)?.into());
                last = if context.cmp(&last) == Ordering::Greater { context } else { last };
            }
        }
        Ok(last)
    }
}

impl Head<'_> {
    /// `false` where the part is over.
    fn advance(&mut self, text: &Text) -> Result<bool, Error> {
        if self.next == self.bytes.len() {
            let count = (self.rest.end - self.rest.start).min(self.buffered as u64);
            if count == 0 {
                return Ok(false);
            }
            self.run.read(self.rest.start, count as usize, &mut self.bytes)?;
            self.rest.start += count;
            self.next = 0;
        }
        self.position = number(&self.bytes[self.next..]);
        self.next += 4;
        self.context = text.context(self.position.into());
        Ok(true)
    }

    fn before(&self, other: &Self) -> bool {
        self.context.cmp(&other.context).then(self.position.cmp(&other.position)) == Ordering::Less
    }
}

/// Restores the heap below `at`: no head comes before the one above it.
fn sink(heads: &mut [Head], mut at: usize) {
    loop {
        let below = (2 * at + 1..(2 * at + 3).min(heads.len()))
            .reduce(|one, other| if heads[other].before(&heads[one]) { other } else { one });
        match below {
            Some(below) if heads[below].before(&heads[at]) => heads.swap(at, below),
            _ => return,
        }
        at = below.unwrap_or(at);
    }
}

fn entry(run: &Reading, at: u64) -> Result<u32, Error> {
    let mut bytes = Vec::new();
    run.read(at, 1, &mut bytes)?;
    Ok(number(&bytes))
}

/// The little-endian number at the beginning of `bytes`, which has at least four.
pub(super) fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
