//! llm.c's and nanoGPT's `.bin` shards, found by name.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{ShardFormat, Split};
use crate::{
    data::shard::{Header, Origin, ShardMap},
    error::Error,
    fingerprint::Fingerprint,
    regular,
};

/// Per file, on opening.
const CHECKED_IDS: u64 = 1 << 20;
/// Per file, in its fingerprint.
const SAMPLED_BYTES: u64 = 1 << 20;

/// Sorted `.bin` files with `train` or `val` in their names. `None` without either split.
pub(super) fn find(folder: &Path, split: Split) -> Result<Option<Vec<PathBuf>>, Error> {
    let mut of_either = false;
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::read(folder))? {
        let path = entry.map_err(Error::read(folder))?.path();
        let named = path.extension().filter(|extension| *extension == "bin").and_then(|_| split_named(&path));
        of_either |= named.is_some();
        if named == Some(split) {
            files.push(path);
        }
    }
    files.sort();
    Ok(of_either.then_some(files))
}

fn split_named(path: &Path) -> Option<Split> {
    let stem = path.file_stem()?.to_str()?.to_ascii_lowercase();
    stem.split(|character: char| !character.is_ascii_alphanumeric()).find_map(|word| match word {
        "train" => Some(Split::Train),
        "val" | "valid" | "validation" => Some(Split::Val),
        _ => None,
    })
}

/// A shard of this crate without a manifest would lose its loss mask.
pub(super) fn format(path: &Path) -> Result<ShardFormat, Error> {
    let mut beginning = Vec::new();
    let file = regular::open(path)?;
    file.take(Header::BYTES as u64).read_to_end(&mut beginning).map_err(Error::read(path))?;
    match Header::origin(&beginning) {
        None => Ok(ShardFormat::NanoGpt),
        Some(Origin::OtherProgram) => Ok(ShardFormat::LlmC),
        Some(Origin::Prepared) => {
            Err(Error::NoSet { path: path.parent().unwrap_or(Path::new(".")).to_owned() })
        }
    }
}

pub(super) fn check_vocabulary(shard: &ShardMap) -> Result<(), Error> {
    shard.read(0, CHECKED_IDS.min(shard.tokens()) as usize).map(|_| ())
}

pub(super) fn fingerprint<'p>(files: impl Iterator<Item = &'p Path>) -> Result<Fingerprint, Error> {
    let mut digest = Sha256::new();
    for path in files {
        let file: File = regular::open(path)?;
        digest.update(file.metadata().map_err(Error::read(path))?.len().to_le_bytes());
        let mut beginning = Vec::new();
        file.take(SAMPLED_BYTES).read_to_end(&mut beginning).map_err(Error::read(path))?;
        digest.update(&beginning);
    }
    Ok(Fingerprint::finish(digest))
}
