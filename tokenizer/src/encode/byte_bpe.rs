//! Byte-level BPE: encodes any bytes, and decodes to the same.
//!
//! Short pieces repeat, so workers cache ids. Idle workers wait in lists by thread: a cache that changes cores is
//! slower than none.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::encode::{
    merge::{MergeTable, Merger},
    split::{Pattern, SplitCache, Splitter},
};

/// Longer pieces are rare and cost memory.
const CACHED_PIECE_BYTES: usize = 32;
/// A few megabytes per worker.
const CACHED_PIECES: usize = 1 << 16;

/// Further threads share lists.
const WORKER_LISTS: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeRule {
    pub(crate) left: u32,
    pub(crate) right: u32,
    pub(crate) result: u32,
}

#[derive(Debug)]
pub(crate) struct ByteBpe {
    splitter: Splitter,
    tokens: Vec<Option<Box<[u8]>>>,
    byte_ids: Box<[u32; 256]>,
    merges: MergeTable,
    /// Llama 3's `ignore_merges`: a token needs no merges.
    whole_pieces: Option<Pieces<u32>>,
    workers: [Mutex<Vec<Worker>>; WORKER_LISTS],
}

type Pieces<V> = HashMap<Box<[u8]>, V, ahash::RandomState>;

#[derive(Debug)]
struct Worker {
    split: SplitCache,
    merger: Merger,
    seen: Pieces<Range<u32>>,
    ids: Vec<u32>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Defect {
    #[error("byte 0x{0:02x} has no token")]
    MissingByte(u8),
    #[error("merge {at} repeats the pair of an earlier one")]
    RepeatedMerge { at: usize },
}

impl ByteBpe {
    /// `tokens` by id, without control tokens; `merges` by rank.
    pub(crate) fn new(
        pattern: Pattern,
        tokens: Vec<Option<Box<[u8]>>>,
        merges: &[MergeRule],
        ignore_merges: bool,
    ) -> Result<Self, Defect> {
        let mut ids = Pieces::default();
        for (id, token) in tokens.iter().enumerate() {
            if let Some(token) = token {
                ids.insert(token.clone(), id as u32);
            }
        }
        let mut byte_ids = Box::new([0; 256]);
        for (byte, id) in (0..=u8::MAX).zip(byte_ids.iter_mut()) {
            *id = *ids.get([byte].as_slice()).ok_or(Defect::MissingByte(byte))?;
        }
        let mut table = MergeTable::default();
        for (at, rule) in merges.iter().enumerate() {
            if !table.push(rule.left, rule.right, rule.result) {
                return Err(Defect::RepeatedMerge { at: at + 1 });
            }
        }
        let whole_pieces = ignore_merges.then_some(ids);
        let workers = std::array::from_fn(|_| Mutex::default());
        Ok(Self { splitter: Splitter::new(pattern), tokens, byte_ids, merges: table, whole_pieces, workers })
    }

    pub(crate) fn pattern(&self) -> Pattern {
        self.splitter.pattern()
    }

    pub(crate) fn token(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize)?.as_deref()
    }

    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3);
        self.with_worker(|worker| self.encode_text(text, worker, &mut out));
        out
    }

    /// Bytes outside UTF-8 are a piece.
    pub(crate) fn encode_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let mut out = Vec::with_capacity(bytes.len() / 3);
        self.with_worker(|worker| {
            for chunk in bytes.utf8_chunks() {
                self.encode_text(chunk.valid(), worker, &mut out);
                if !chunk.invalid().is_empty() {
                    self.merge(chunk.invalid(), &mut worker.merger, &mut out);
                }
            }
        });
        out
    }

    fn with_worker(&self, work: impl FnOnce(&mut Worker)) {
        let idle = self.idle_workers().pop();
        let mut worker = idle.unwrap_or_else(|| self.new_worker());
        work(&mut worker);
        self.idle_workers().push(worker);
    }

    fn encode_text(&self, text: &str, worker: &mut Worker, out: &mut Vec<u32>) {
        let Worker { split, merger, seen, ids } = worker;
        self.splitter.split(text, split, |piece| self.encode_piece(piece.as_bytes(), merger, seen, ids, out));
    }

    fn encode_piece(
        &self,
        piece: &[u8],
        merger: &mut Merger,
        seen: &mut Pieces<Range<u32>>,
        ids: &mut Vec<u32>,
        out: &mut Vec<u32>,
    ) {
        if piece.len() > CACHED_PIECE_BYTES {
            return self.merge(piece, merger, out);
        }
        if let Some(range) = seen.get(piece) {
            return out.extend_from_slice(&ids[range.start as usize..range.end as usize]);
        }
        let first = out.len();
        self.merge(piece, merger, out);
        if seen.len() < CACHED_PIECES {
            let start = ids.len() as u32;
            ids.extend_from_slice(&out[first..]);
            seen.insert(piece.into(), start..ids.len() as u32);
        }
    }

    fn merge(&self, piece: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        if let Some(id) = self.whole_pieces.as_ref().and_then(|pieces| pieces.get(piece)) {
            return out.push(*id);
        }
        merger.merge(piece.iter().map(|&byte| self.byte_ids[usize::from(byte)]), &self.merges, out);
    }

    fn new_worker(&self) -> Worker {
        Worker {
            split: self.splitter.cache(),
            merger: Merger::default(),
            seen: Pieces::default(),
            ids: Vec::new(),
        }
    }

    /// Workers return only after work: a panic leaves the pool usable.
    fn idle_workers(&self) -> MutexGuard<'_, Vec<Worker>> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static LIST: usize = THREADS.fetch_add(1, Ordering::Relaxed) % WORKER_LISTS;
        }
        LIST.with(|list| self.workers[*list].lock().unwrap_or_else(PoisonError::into_inner))
    }
}
