//! A finished index over mapped files.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use memmap2::Mmap;

use super::{
    IndexManifest, IndexProblem,
    build_folder::{FOLLOWERS, ORDER},
    files::{self, Header, Kind},
    follower::Follower,
    manifest::IndexPlan,
    minima,
    search::Order,
    text::{Context, Text},
};
use crate::{data::shard::Manifest, error::Error, fingerprint::Fingerprint, regular};

/// A split's index, with shards.
#[derive(Debug)]
pub struct Index {
    folder: PathBuf,
    manifest: IndexManifest,
    set: Manifest,
    text: Text,
    order: Order<Mmap>,
    followers: Mmap,
}

impl Index {
    /// Opens the index in `folder` of the set in `set`. Compares sizes, headers and the set's checksums;
    /// [`verify`](Self::verify) reads everything. Damage can hide a match, not invent one.
    pub fn open(folder: impl AsRef<Path>, set: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let manifest = IndexManifest::read(folder)?;
        let (text, set) = Text::open(set.as_ref(), manifest.split)?;
        let plan = IndexPlan::new(&set, manifest.split);
        plan.check(folder, &manifest)?;
        let entries = manifest.tokens.saturating_sub(1);
        let in_tree = minima::levels(entries).last().map_or(0, |level| level.end);
        let open = |name, kind, entries, digest| map(&folder.join(name), kind, entries, plan.mark(), digest);
        let order = open(ORDER, Kind::Order, in_tree, manifest.order)?;
        let followers = open(FOLLOWERS, Kind::Followers, manifest.tokens, manifest.followers)?;
        let order = Order::new(order, Header::BYTES, entries);
        Ok(Self { folder: folder.to_owned(), manifest, set, text, order, followers })
    }

    /// Inputs and checksums.
    pub fn manifest(&self) -> &IndexManifest {
        &self.manifest
    }

    /// Size of its files, without shards.
    pub fn bytes(&self) -> u64 {
        (self.order.bytes().len() + self.followers.len()) as u64
    }

    /// Compares checksums of all index files and shards.
    pub fn verify(&self) -> Result<(), Error> {
        self.text.verify(&self.set, self.manifest.split)?;
        let files = [
            (ORDER, self.order.bytes(), self.manifest.order),
            (FOLLOWERS, &self.followers[..], self.manifest.followers),
        ];
        for (name, bytes, expected) in files {
            let found = Fingerprint::of(&bytes[Header::BYTES..]);
            files::check_digest(&self.folder.join(name), expected, found)?;
        }
        Ok(())
    }

    pub(super) fn text(&self) -> &Text {
        &self.text
    }

    /// Length, first position, follower.
    pub(super) fn longest(&self, context: &Context) -> Option<(usize, u64, u32)> {
        let (length, at) = self.order.longest(&self.text, context)?;
        let next =
            self.text.get(u64::from(at) + 1).filter(|next| *next < self.manifest.tokenizer.vocab_size)?;
        Some((length, at.into(), next))
    }

    pub(super) fn followers(&self, positions: Range<u64>) -> Result<Vec<Follower>, Error> {
        let tokens = self.manifest.tokens;
        let (start, end) = (positions.start.min(tokens), positions.end.min(tokens));
        let entries = &self.followers[Header::BYTES..].as_chunks::<3>().0;
        let entries = entries.get(start as usize..end as usize).unwrap_or_default();
        let read = |(at, entry): (u64, &[u8; 3])| {
            let found = Follower::from_bytes(*entry, self.manifest.tokenizer.vocab_size);
            found.ok_or_else(|| Error::index(self.folder.join(FOLLOWERS), IndexProblem::Entry { at }))
        };
        (start..).zip(entries).map(read).collect()
    }
}

fn map(path: &Path, kind: Kind, entries: u64, mark: [u8; 8], expected: Fingerprint) -> Result<Mmap, Error> {
    let short = |found| match found {
        0 => Err(Error::index(path, IndexProblem::NoHeader { found })),
        _ => Ok(()),
    };
    let map = regular::map(path, short)?;
    let header = Header::parse(&map, map.len() as u64, kind, entries, mark);
    let header = header.map_err(|problem| Error::index(path, problem))?;
    files::check_digest(path, expected, header.digest)?;
    Ok(map)
}
