//! Where documents and questions begin in a shard.
//!
//! Ascending positions in the shards' format, 32 bits each. The highest bit marks a later question of a conversation; a
//! position without it opens a document.

use std::{ops::Range, path::Path};

use super::{Header, ShardFile, ShardMap, ShardProblem, SideEntry, mapped::verify};
use crate::{error::Error, regular};

const QUESTION: u32 = 1 << 31;

#[derive(Debug)]
pub(crate) struct Starts(Vec<u32>);

impl Starts {
    pub(crate) fn document(at: u64) -> u32 {
        at as u32
    }

    pub(crate) fn question(at: u64) -> u32 {
        at as u32 | QUESTION
    }

    /// Refuses a changed file, and positions out of order or beyond the shard.
    pub(crate) fn open(folder: &Path, entry: &SideEntry, shard: &ShardMap) -> Result<Self, Error> {
        let path = &folder.join(&entry.file);
        let most = Header::BYTES as u64 + 4 * shard.tokens();
        let file = regular::read(path, most)?;
        Header::parse(&file, file.len() as u64, ShardFile::Starts)
            .map_err(|problem| Error::shard(path, problem))?;
        verify(path, &file[Header::BYTES..], Some(entry.sha256))?;
        let words = file[Header::BYTES..].as_chunks().0;
        let starts: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let mut least = 0;
        for start in &starts {
            let (at, tokens) = (start & !QUESTION, shard.tokens());
            if u64::from(at) < least || u64::from(at) >= tokens {
                return Err(Error::shard(path, ShardProblem::Start { at, tokens }));
            }
            least = u64::from(at) + 1;
        }
        Ok(Self(starts))
    }

    pub(crate) fn documents(&self) -> impl Iterator<Item = u64> {
        self.0.iter().filter(|start| **start & QUESTION == 0).map(|start| u64::from(*start))
    }

    pub(crate) fn first_within(&self, range: Range<u64>) -> Option<u64> {
        let position = |start: &u32| u64::from(start & !QUESTION);
        let at = self.0.partition_point(|start| position(start) < range.start);
        self.0.get(at).map(position).filter(|start| range.contains(start))
    }
}
