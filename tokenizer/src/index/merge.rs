//! Merges sorted chunks, one stretch of the order at a time.
//!
//! The first chunk's contexts divide the order into as many stretches as chunks. Threads can merge stretches, and a
//! resumed build can reuse their files.

use std::{
    cmp::Ordering,
    ops::Range,
    sync::atomic::{self, AtomicBool},
};

use super::{
    files::{EntryReader, EntryWriter},
    text::{Context, Text},
};
use crate::error::Error;

const STRIDE: u64 = 1 << 16;

#[derive(Debug)]
pub(super) struct Merge<'a> {
    pub(super) text: &'a Text,
    pub(super) runs: &'a [EntryReader],
    pub(super) buffered: usize,
}

struct RunCursor<'a> {
    run: &'a EntryReader,
    rest: Range<u64>,
    buffered: usize,
    bytes: Vec<u8>,
    next: usize,
    position: u32,
    context: Context,
}

impl Merge<'_> {
    pub(super) fn stretches(&self) -> Result<Vec<Vec<Range<u64>>>, Error> {
        let first = &self.runs[0];
        let count = self.runs.len() as u64;
        let mut from = vec![0; self.runs.len()];
        let mut stretches = Vec::new();
        for stretch in 1..=count {
            let to = if stretch == count {
                self.runs.iter().map(EntryReader::entries).collect()
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

    fn below(&self, run: &EntryReader, context: &Context, position: u32) -> Result<u64, Error> {
        let (mut low, mut high) = (0, run.entries());
        while low < high {
            let middle = low.midpoint(high);
            let found = entry(run, middle)?;
            let order = self.text.context(found.into()).cmp(context).then(found.cmp(&position));
            if order == Ordering::Less { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    pub(super) fn write(
        &self,
        parts: &[Range<u64>],
        writing: &mut EntryWriter,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let mut last = self.last_before(parts)?;
        let mut cursors = Vec::new();
        for (run, part) in self.runs.iter().zip(parts) {
            let rest = part.clone();
            let (bytes, context) = (Vec::new(), Context::default());
            let mut cursor =
                RunCursor { run, rest, buffered: self.buffered, bytes, next: 0, position: 0, context };
            if cursor.advance(self.text)? {
                cursors.push(cursor);
            }
        }

        for at in (0..cursors.len() / 2).rev() {
            sift_down(&mut cursors, at);
        }

        for count in 0.. {
            let Some(cursor) = cursors.first_mut() else { break };
            let common = cursor.context.common(&last) as u8;
            let [a, b, c, d] = cursor.position.to_le_bytes();
            writing.push(&[a, b, c, d, common])?;
            last = cursor.context;
            if !cursor.advance(self.text)? {
                cursors.swap_remove(0);
            }
            sift_down(&mut cursors, 0);
            if count % STRIDE == 0 && stop.load(atomic::Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

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

impl RunCursor<'_> {
    /// `false` at the end.
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
        self.position = read_u32(&self.bytes[self.next..]);
        self.next += 4;
        self.context = text.context(self.position.into());
        Ok(true)
    }

    fn before(&self, other: &Self) -> bool {
        self.context.cmp(&other.context).then(self.position.cmp(&other.position)) == Ordering::Less
    }
}

fn sift_down(cursors: &mut [RunCursor], mut at: usize) {
    loop {
        let below = (2 * at + 1..(2 * at + 3).min(cursors.len()))
            .reduce(|one, other| if cursors[other].before(&cursors[one]) { other } else { one });
        match below {
            Some(below) if cursors[below].before(&cursors[at]) => cursors.swap(at, below),
            _ => return,
        }
        at = below.unwrap_or(at);
    }
}

fn entry(run: &EntryReader, at: u64) -> Result<u32, Error> {
    let mut bytes = Vec::new();
    run.read(at, 1, &mut bytes)?;
    Ok(read_u32(&bytes))
}

pub(super) fn read_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
