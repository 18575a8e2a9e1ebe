//! A memory-mapped shard.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use super::{Content, Header, Manifest, ShardEntry, ShardFile, ShardProblem};
use crate::{error::Error, fingerprint::Fingerprint, regular};

const STRIDE: u64 = 1 << 16;

#[derive(Debug)]
pub(crate) struct ShardMap {
    path: PathBuf,
    map: Mmap,
    start: usize,
    content: Content,
    tokens: u64,
    vocabulary: u32,
}

#[derive(Debug)]
pub(crate) struct MaskMap {
    path: PathBuf,
    map: Mmap,
}

/// Refuses files below `least` bytes: empty ones cannot be mapped.
fn map(path: &Path, least: u64, refusal: impl FnOnce(u64) -> ShardProblem) -> Result<Mmap, Error> {
    let check = |found| if found < least { Err(Error::shard(path, refusal(found))) } else { Ok(()) };
    regular::map(path, check)
}

fn no_header(found: u64) -> ShardProblem {
    ShardProblem::NoHeader { found }
}

impl ShardMap {
    /// Zeros for `tokenizer`, here or in the file, match any.
    pub(crate) fn open(path: &Path, vocabulary: u32, tokenizer: [u8; 8]) -> Result<Self, Error> {
        let map = map(path, Header::BYTES as u64, no_header)?;
        let header = Header::parse(&map, map.len() as u64, ShardFile::Tokens)
            .map_err(|problem| Error::shard(path, problem))?;
        if header.tokenizer != tokenizer && header.tokenizer != [0; 8] && tokenizer != [0; 8] {
            let hex = |bytes: [u8; 8]| format!("{:016x}", u64::from_be_bytes(bytes));
            let (expected, found) = (hex(tokenizer), hex(header.tokenizer));
            return Err(Error::shard(path, ShardProblem::TokenizerMark { expected, found }));
        }
        let (content, tokens) = (header.content, header.tokens.into());
        Ok(Self { path: path.to_owned(), map, start: Header::BYTES, content, tokens, vocabulary })
    }

    pub(crate) fn open_entry(folder: &Path, manifest: &Manifest, entry: &ShardEntry) -> Result<Self, Error> {
        let path = folder.join(&entry.file);
        let tokenizer = &manifest.tokenizer;
        let shard = Self::open(&path, tokenizer.vocab_size, tokenizer.sha256.short())?;
        let (expected, found) = (entry.tokens, shard.tokens);
        if expected != found {
            return Err(Error::shard(path, ShardProblem::Tokens { expected, found }));
        }
        Ok(shard)
    }

    pub(crate) fn open_headerless(path: &Path, vocabulary: u32) -> Result<Self, Error> {
        let map = map(path, 2, |found| ShardProblem::NotPairs { found })?;
        let found = map.len() as u64;
        if !found.is_multiple_of(2) {
            return Err(Error::shard(path, ShardProblem::NotPairs { found }));
        }
        let (content, tokens) = (Content::Narrow, found / 2);
        Ok(Self { path: path.to_owned(), map, start: 0, content, tokens, vocabulary })
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn payload(&self) -> &[u8] {
        &self.map[self.start..]
    }

    fn ids(&self, from: u64, count: usize) -> impl Iterator<Item = u32> {
        let bytes = self.content.bytes() as usize;
        let from = from as usize * bytes;
        self.payload()[from..from + count * bytes].chunks_exact(bytes).map(move |id| match *id {
            [low, high] => u16::from_le_bytes([low, high]).into(),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => unreachable!("token ids have two or four bytes"),
        })
    }

    /// Fails for an id beyond the vocabulary.
    pub(crate) fn read(&self, from: u64, count: usize) -> Result<Vec<u32>, Error> {
        let ids: Vec<u32> = self.ids(from, count).collect();
        match ids.iter().position(|id| *id >= self.vocabulary) {
            None => Ok(ids),
            Some(at) => {
                let (id, at, vocabulary) = (ids[at], from + at as u64, self.vocabulary);
                Err(Error::shard(&self.path, ShardProblem::TokenId { id, at, vocabulary }))
            }
        }
    }

    /// May be beyond the vocabulary.
    pub(crate) fn get(&self, at: u64) -> Option<u32> {
        let bytes = self.content.bytes() as usize;
        let from = usize::try_from(at).ok()?.checked_mul(bytes)?;
        match *self.payload().get(from..from.checked_add(bytes)?)? {
            [low, high] => Some(u16::from_le_bytes([low, high]).into()),
            [a, b, c, d] => Some(u32::from_le_bytes([a, b, c, d])),
            _ => None,
        }
    }

    /// Fills `ids` with unchecked ids up to `at`, last first. Returns how many.
    pub(crate) fn read_backwards(&self, at: u64, ids: &mut [u32]) -> usize {
        let end = if at < self.tokens { at as usize + 1 } else { 0 };
        let count = ids.len().min(end);
        let bytes = self.content.bytes() as usize;
        let stretch = &self.payload()[(end - count) * bytes..end * bytes];
        let places = ids[..count].iter_mut();
        if self.content == Content::Narrow {
            let spelled = stretch.as_chunks().0.iter().rev();
            places.zip(spelled).for_each(|(place, id)| *place = u16::from_le_bytes(*id).into());
        } else {
            let spelled = stretch.as_chunks().0.iter().rev();
            places.zip(spelled).for_each(|(place, id)| *place = u32::from_le_bytes(*id));
        }
        count
    }

    pub(crate) fn positions(&self, id: u32) -> impl Iterator<Item = u64> {
        self.ids(0, self.tokens as usize).zip(0..).filter_map(move |(found, at)| (found == id).then_some(at))
    }

    pub(crate) fn verify(&self, expected: Option<Fingerprint>) -> Result<(), Error> {
        verify(&self.path, self.payload(), expected)?;
        for from in (0..self.tokens).step_by(STRIDE as usize) {
            self.read(from, STRIDE.min(self.tokens - from) as usize)?;
        }
        Ok(())
    }
}

/// Ids at `positions` of the concatenated `shards`, up to their end.
pub(crate) fn read_across<'s>(
    shards: impl Iterator<Item = &'s ShardMap>,
    positions: Range<u64>,
) -> Result<Vec<u32>, Error> {
    let mut ids = Vec::new();
    let mut start = 0;
    for shard in shards {
        let end = start + shard.tokens();
        let (from, to) = (positions.start.max(start), positions.end.min(end));
        if from < to {
            ids.extend(shard.read(from - start, (to - from) as usize)?);
        }
        start = end;
    }
    Ok(ids)
}

impl MaskMap {
    pub(crate) fn open(path: &Path, shard: &ShardMap) -> Result<Self, Error> {
        let map = map(path, Header::BYTES as u64, no_header)?;
        let header = Header::parse(&map, map.len() as u64, ShardFile::Mask)
            .map_err(|problem| Error::shard(path, problem))?;
        let (expected, found) = (shard.tokens, u64::from(header.tokens));
        if expected != found {
            return Err(Error::shard(path, ShardProblem::Tokens { expected, found }));
        }
        Ok(Self { path: path.to_owned(), map })
    }

    pub(crate) fn read(&self, from: u64, count: usize) -> Result<Vec<bool>, Error> {
        let from = from as usize + Header::BYTES;
        let flag = |(at, value): (usize, &u8)| match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => {
                let at = (from + at - Header::BYTES) as u64;
                Err(Error::shard(&self.path, ShardProblem::MaskByte { value: *value, at }))
            }
        };
        self.map[from..from + count].iter().enumerate().map(flag).collect()
    }

    fn flags(&self) -> &[u8] {
        &self.map[Header::BYTES..]
    }

    pub(crate) fn next_marked(&self, from: u64) -> Option<u64> {
        let rest = self.flags().get(from as usize..)?;
        rest.iter().position(|flag| *flag != 0).map(|at| from + at as u64)
    }

    pub(crate) fn marked(&self, range: Range<u64>) -> u64 {
        let flags = &self.flags()[range.start as usize..range.end as usize];
        flags.iter().filter(|flag| **flag != 0).count() as u64
    }

    pub(crate) fn verify(&self, expected: Fingerprint) -> Result<(), Error> {
        verify(&self.path, self.flags(), Some(expected))
    }
}

pub(super) fn verify(path: &Path, payload: &[u8], expected: Option<Fingerprint>) -> Result<(), Error> {
    let found = Fingerprint::finish(Sha256::new_with_prefix(payload));
    match expected {
        Some(expected) if expected != found => {
            Err(Error::shard(path, ShardProblem::Checksum { expected, found }))
        }
        _ => Ok(()),
    }
}
