//! A file per rank for a checkpoint: residuals of a one-bit exchange, or weights and moments of local steps.
//!
//! If any rank's file is missing, damaged or for another number of ranks, all ranks start without.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use runs::checkpoint::Checkpoints;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Ranks;

/// 2: moments with the steps they took.
const FORMAT: u32 = 2;
/// Files kept: a rank may save before rank 0 has named the previous checkpoint.
const NEWEST: usize = 2;
const DIGEST: usize = 32;

/// Two lists of numbers of a parameter; either may be empty.
pub(crate) type Pair = [Vec<f32>; 2];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kept {
    #[default]
    Residuals,
    /// Those of weight changes.
    ChangeResiduals,
    /// Moments of a rank's local steps.
    Moments,
    /// Weights of a rank's local steps; for rank 0 also the outer momentum of all.
    OwnWeights,
}

impl Kept {
    fn prefix(self) -> &'static str {
        match self {
            Self::Residuals => "residuals-",
            Self::ChangeResiduals => "change-residuals-",
            Self::Moments => "moments-",
            Self::OwnWeights => "own-weights-",
        }
    }
}

/// Produced one at a time while writing.
pub(crate) struct Pairs<'a> {
    pub(crate) lengths: Vec<[usize; 2]>,
    pub(crate) fetch: Box<dyn Fn(usize) -> anyhow::Result<Pair> + 'a>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SavedAt<'a> {
    pub(crate) step: u64,
    pub(crate) losses: &'a str,
}

type Place = (usize, usize);

/// First line of a file, before numbers and a digest of both.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: u32,
    place: Place,
    step: u64,
    losses: String,
    #[serde(default)]
    kept: Kept,
    lengths: Vec<[usize; 2]>,
}

impl Ranks {
    pub(crate) fn save_state(
        &self,
        run: &Path,
        at: SavedAt<'_>,
        kept: Kept,
        pairs: Pairs<'_>,
    ) -> anyhow::Result<()> {
        save(run, (self.rank(), self.world()), at, kept, pairs)
            .context("saving what this rank has of its own")
    }

    /// This rank's numbers from the checkpoint `at`, if all ranks have theirs; else the first reason.
    pub(crate) fn load_state(
        &mut self,
        run: &Path,
        at: SavedAt<'_>,
        kept: Kept,
    ) -> anyhow::Result<Result<Vec<Pair>, String>> {
        let loaded = self.load_states(run, at, &[kept])?;
        Ok(loaded.map(|mut kinds| kinds.pop().unwrap_or_default()))
    }

    /// The same for several kinds.
    pub(crate) fn load_states(
        &mut self,
        run: &Path,
        at: SavedAt<'_>,
        kinds: &[Kept],
    ) -> anyhow::Result<Result<Vec<Vec<Pair>>, String>> {
        let place = (self.rank(), self.world());
        let loaded: anyhow::Result<Vec<_>> = kinds.iter().map(|kept| load(run, place, at, *kept)).collect();
        let own = loaded.as_ref().err().map_or_else(String::new, |error| format!("{error:#}"));
        let reasons = self.gathered(own.as_bytes())?;
        if let Some((rank, reason)) = reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty()) {
            return Ok(Err(format!("rank {rank}: {}", String::from_utf8_lossy(reason))));
        }
        Ok(Ok(loaded?))
    }
}

fn path_of(run: &Path, rank: usize, kept: Kept, step: u64) -> PathBuf {
    run.join("ranks").join(rank.to_string()).join(format!("{}{step:08}", kept.prefix()))
}

/// Removes files without a checkpoint.
fn save(run: &Path, place: Place, at: SavedAt<'_>, kept: Kept, pairs: Pairs<'_>) -> io::Result<()> {
    let path = path_of(run, place.0, kept, at.step);
    let folder = path.parent().unwrap_or(run);
    fs::create_dir_all(folder)?;
    let Pairs { lengths, fetch } = pairs;
    let header = Header { format: FORMAT, place, step: at.step, losses: at.losses.to_owned(), kept, lengths };
    durable::write_with(&path, |aside| {
        let (mut out, mut digest) = (BufWriter::new(File::create(aside)?), Sha256::new());
        let mut put = |bytes: &[u8]| {
            digest.update(bytes);
            out.write_all(bytes)
        };
        put(&[serde_json::to_vec(&header)?.as_slice(), b"\n"].concat())?;
        for (n, lengths) in header.lengths.iter().enumerate() {
            let pair = fetch(n).map_err(|error| io::Error::other(format!("{error:#}")))?;
            if pair.each_ref().map(Vec::len) != *lengths {
                return Err(io::Error::other(format!("{lengths:?} numbers were announced of pair {n}")));
            }
            for numbers in &pair {
                put(bytemuck::cast_slice(numbers))?;
            }
        }
        out.write_all(&digest.finalize())?;
        out.flush()
    })?;
    remove_superfluous(run, folder, kept.prefix(), at.step)
}

/// `last` was saved now: a run that went back to an earlier checkpoint has left files of later steps.
fn remove_superfluous(run: &Path, folder: &Path, prefix: &str, last: u64) -> io::Result<()> {
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        steps.extend(name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u64>().ok()));
    }
    steps.retain(|step| *step <= last);
    steps.sort_unstable();
    steps.truncate(steps.len().saturating_sub(NEWEST));
    let checkpoints = Checkpoints::in_run(run);
    for step in steps.into_iter().filter(|step| !checkpoints.path_of(*step).exists()) {
        fs::remove_file(folder.join(format!("{prefix}{step:08}")))?;
    }
    Ok(())
}

fn load(run: &Path, place: Place, at: SavedAt<'_>, kept: Kept) -> anyhow::Result<Vec<Pair>> {
    let path = path_of(run, place.0, kept, at.step);
    let name = || format!("reading {}", path.display());
    let saved = fs::metadata(&path).with_context(name)?.len().saturating_sub(DIGEST as u64);
    let mut file = Summed { from: File::open(&path).with_context(name)?.take(saved), digest: Sha256::new() };
    io::copy(&mut file, &mut io::sink()).with_context(name)?;
    let mut written = Vec::new();
    file.from.set_limit(u64::MAX);
    file.from.read_to_end(&mut written).with_context(name)?;
    ensure!(file.digest.finalize().as_slice() == written, "{} is damaged", path.display());

    let mut file = BufReader::new(File::open(&path).with_context(name)?);
    let mut line = Vec::new();
    file.read_until(b'\n', &mut line).with_context(name)?;
    let header: Header = serde_json::from_slice(&line).with_context(name)?;
    ensure!(header.format == FORMAT, "{} has format {}", path.display(), header.format);
    let (before, now) = (header.place.1, place.1);
    ensure!(before == now, "they are those of {before} ranks, and these are {now}");
    let same = (header.place.0, header.step, header.losses.as_str()) == (place.0, at.step, at.losses);
    let same = same && header.kept == kept;
    ensure!(same, "{} belongs to another checkpoint", path.display());
    let mut numbers = |len: usize| {
        let mut numbers = vec![0.0_f32; len];
        file.read_exact(bytemuck::cast_slice_mut(&mut numbers)).with_context(name)?;
        anyhow::Ok(numbers)
    };
    header.lengths.into_iter().map(|[own, part]| Ok([numbers(own)?, numbers(part)?])).collect()
}

struct Summed<R> {
    from: R,
    digest: Sha256,
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(out)?;
        self.digest.update(&out[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: SavedAt<'_> = SavedAt { step: 3, losses: "abc" };

    fn of_rank(rank: usize) -> Vec<Pair> {
        (0..2).map(|n| [vec![0.1 + rank as f32; 3 + n], vec![-2.5 * n as f32; 2]]).collect()
    }

    fn saved(run: &Path, place: Place, at: SavedAt<'_>, pairs: &[Pair]) {
        let lengths = pairs.iter().map(|pair| pair.each_ref().map(Vec::len)).collect();
        let pairs = Pairs { lengths, fetch: Box::new(|n| Ok(pairs[n].clone())) };
        save(run, place, at, Kept::Residuals, pairs).expect("saved");
    }

    fn loaded(run: &Path, place: Place, at: SavedAt<'_>) -> anyhow::Result<Vec<Pair>> {
        load(run, place, at, Kept::Residuals)
    }

    #[test]
    fn numbers_come_back_to_the_bit_and_only_to_their_place_and_checkpoint() {
        let run = tempfile::tempdir().expect("a folder");
        for rank in 0..2 {
            saved(run.path(), (rank, 2), AT, &of_rank(rank));
            assert_eq!(loaded(run.path(), (rank, 2), AT).expect("loaded"), of_rank(rank));
        }
        let refused = |place, at| loaded(run.path(), place, at).expect_err("others").to_string();
        assert!(refused((0, 4), AT).contains("those of 2 ranks, and these are 4"));
        assert!(refused((1, 2), SavedAt { losses: "abd", ..AT }).contains("another checkpoint"));
        refused((2, 4), AT);
        refused((0, 2), SavedAt { step: 4, ..AT });
        let [residuals, moments] =
            [Kept::Residuals, Kept::Moments].map(|kept| path_of(run.path(), 0, kept, 3));
        fs::rename(residuals, moments).expect("renamed");
        let other = load(run.path(), (0, 2), AT, Kept::Moments).expect_err("of another kind");
        assert!(other.to_string().contains("another checkpoint"), "{other}");
    }

    #[test]
    fn no_damaged_byte_is_taken_for_a_number() {
        let run = tempfile::tempdir().expect("a folder");
        saved(run.path(), (0, 2), AT, &of_rank(0)[..1]);
        let path = path_of(run.path(), 0, Kept::Residuals, 3);
        let whole = fs::read(&path).expect("reading");
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            fs::write(&path, damaged).expect("writing");
            assert!(loaded(run.path(), (0, 2), AT).is_err(), "byte {at}");
            fs::write(&path, &whole[..at]).expect("writing");
            assert!(loaded(run.path(), (0, 2), AT).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_pair_of_another_length_than_announced_saves_nothing() {
        let run = tempfile::tempdir().expect("a folder");
        let pairs = Pairs { lengths: vec![[3, 0]], fetch: Box::new(|_| Ok([vec![0.0; 2], Vec::new()])) };
        save(run.path(), (0, 2), AT, Kept::Moments, pairs).expect_err("a number is missing");
        assert!(!path_of(run.path(), 0, Kept::Moments, 3).exists());
    }

    #[test]
    fn numbers_stay_while_their_checkpoint_may_be_there() {
        let run = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(Checkpoints::in_run(run.path()).path_of(2)).expect("a folder");
        for step in 1..=6 {
            saved(run.path(), (0, 2), SavedAt { step, ..AT }, &[]);
        }
        let there = |step: &u64| path_of(run.path(), 0, Kept::Residuals, *step).exists();
        assert_eq!((1..=6).filter(there).collect::<Vec<_>>(), [2, 5, 6]);
    }

    #[test]
    fn a_run_that_goes_back_keeps_what_it_saves_now() {
        let run = tempfile::tempdir().expect("a folder");
        for step in [500, 750, 1000] {
            fs::create_dir_all(Checkpoints::in_run(run.path()).path_of(step)).expect("a folder");
            saved(run.path(), (0, 2), SavedAt { step, ..AT }, &of_rank(0));
        }
        // Its checkpoint has no name yet.
        for step in [612, 700] {
            let at = SavedAt { step, ..AT };
            saved(run.path(), (0, 2), at, &of_rank(1));
            assert_eq!(loaded(run.path(), (0, 2), at).expect("just saved"), of_rank(1));
        }
    }
}
