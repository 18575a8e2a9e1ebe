//! Residuals of a one-bit exchange on disk: every rank saves its own beside the run's checkpoints.
//!
//! A file belongs to the checkpoint whose step and digest of losses it names. A checkpoint is whole without it: where any
//! rank's is missing, damaged or of another number of ranks, all ranks begin with residuals of zero.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use exchange::{OneBit, Residuals};
use runs::checkpoint::Checkpoints;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const FORMAT: u32 = 1;
const PREFIX: &str = "residuals-";
/// The newest stay: a rank may save before rank 0 has given the checkpoint before its name.
const NEWEST: usize = 2;
const DIGEST: usize = 32;

/// The checkpoint that residuals belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SavedAt<'a> {
    /// Steps taken.
    pub(crate) step: u64,
    /// Digest over the bits of all losses.
    pub(crate) losses: &'a str,
}

/// Rank and world.
type Place = (usize, usize);

/// The first line of a file; the numbers of all residuals follow it, and a digest of everything before.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: u32,
    place: Place,
    step: u64,
    losses: String,
    /// Numbers in the two residuals of each parameter.
    lengths: Vec<[usize; 2]>,
}

/// The file of one rank for the checkpoint of `step` in `run`.
fn path_of(run: &Path, rank: usize, step: u64) -> PathBuf {
    run.join("ranks").join(rank.to_string()).join(format!("{PREFIX}{step:08}"))
}

/// Saves the residuals of `buffers` in `run`, and removes files whose checkpoints are gone.
pub(super) fn save(run: &Path, place: Place, at: SavedAt<'_>, buffers: &[OneBit]) -> io::Result<()> {
    let path = path_of(run, place.0, at.step);
    let folder = path.parent().unwrap_or(run);
    fs::create_dir_all(folder)?;
    let residuals = || buffers.iter().filter_map(OneBit::residuals);
    let header = Header {
        format: FORMAT,
        place,
        step: at.step,
        losses: at.losses.to_owned(),
        lengths: residuals().map(|Residuals { own, part, .. }| [own.len(), part.len()]).collect(),
    };
    durable::write_with(&path, |aside| {
        let (mut out, mut digest) = (BufWriter::new(File::create(aside)?), Sha256::new());
        let mut put = |bytes: &[u8]| {
            digest.update(bytes);
            out.write_all(bytes)
        };
        put(&[serde_json::to_vec(&header)?.as_slice(), b"\n"].concat())?;
        for Residuals { own, part, .. } in residuals() {
            put(bytemuck::cast_slice(&own))?;
            put(bytemuck::cast_slice(&part))?;
        }
        out.write_all(&digest.finalize())?;
        out.flush()
    })?;
    remove_superfluous(run, folder)
}

fn remove_superfluous(run: &Path, folder: &Path) -> io::Result<()> {
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        steps.extend(name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u64>().ok()));
    }
    steps.sort_unstable();
    steps.truncate(steps.len().saturating_sub(NEWEST));
    let checkpoints = Checkpoints::in_run(run);
    for step in steps.into_iter().filter(|step| !checkpoints.path_of(*step).exists()) {
        fs::remove_file(folder.join(format!("{PREFIX}{step:08}")))?;
    }
    Ok(())
}

/// The exchanges with the residuals that were saved in `run`.
pub(super) fn load(run: &Path, place: Place, at: SavedAt<'_>) -> anyhow::Result<Vec<OneBit>> {
    let path = path_of(run, place.0, at.step);
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
    ensure!(same, "{} belongs to another checkpoint", path.display());
    let mut numbers = |len: usize| {
        let mut numbers = vec![0.0_f32; len];
        file.read_exact(bytemuck::cast_slice_mut(&mut numbers)).with_context(name)?;
        anyhow::Ok(numbers)
    };
    let mut buffers = Vec::with_capacity(header.lengths.len());
    for [own, part] in header.lengths {
        let mut buffer = OneBit::new(own, 0);
        buffer.restore(Residuals { place, own: numbers(own)?, part: numbers(part)? })?;
        buffers.push(buffer);
    }
    Ok(buffers)
}

/// A reader that sums up what passes through it.
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
    use exchange::{Engine, Exchange, Pairwise, Share, threads};

    use super::*;

    const AT: SavedAt<'_> = SavedAt { step: 3, losses: "abc" };

    /// Both ranks' exchange of one buffer, after a step of it.
    fn after_a_step() -> Vec<OneBit> {
        threads::on_each(2, |mut engine| {
            let mut buffer = OneBit::new(5, 0);
            let share = Share { count: 2, world: 2, rank: engine.rank() };
            let own = (0..5).map(|n| (n * n) as f32 - engine.rank() as f32).collect();
            let own = Pairwise::of_sums(share, 5, vec![own]).expect("one block each");
            buffer.sum(&mut engine, own).expect("no fault");
            buffer.settle(true);
            buffer
        })
    }

    #[test]
    fn residuals_come_back_to_the_bit_and_only_to_their_place_and_checkpoint() {
        let run = tempfile::tempdir().expect("a folder");
        let buffers = after_a_step();
        for (rank, buffer) in buffers.iter().enumerate() {
            save(run.path(), (rank, 2), AT, std::slice::from_ref(buffer)).expect("saved");
            let loaded = load(run.path(), (rank, 2), AT).expect("loaded");
            assert!(loaded.len() == 1 && loaded[0].residuals() == buffer.residuals());
        }
        let refused = |place, at| load(run.path(), place, at).expect_err("others").to_string();
        assert!(refused((0, 4), AT).contains("those of 2 ranks, and these are 4"));
        assert!(refused((1, 2), SavedAt { losses: "abd", ..AT }).contains("another checkpoint"));
        refused((2, 4), AT);
        refused((0, 2), SavedAt { step: 4, ..AT });
    }

    #[test]
    fn no_damaged_byte_is_taken_for_a_residual() {
        let run = tempfile::tempdir().expect("a folder");
        save(run.path(), (0, 2), AT, &after_a_step()[..1]).expect("saved");
        let path = path_of(run.path(), 0, 3);
        let whole = fs::read(&path).expect("reading");
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            fs::write(&path, damaged).expect("writing");
            assert!(load(run.path(), (0, 2), AT).is_err(), "byte {at}");
            fs::write(&path, &whole[..at]).expect("writing");
            assert!(load(run.path(), (0, 2), AT).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn residuals_stay_while_their_checkpoint_may_be_there() {
        let run = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(Checkpoints::in_run(run.path()).path_of(2)).expect("a folder");
        for step in 1..=6 {
            save(run.path(), (0, 2), SavedAt { step, ..AT }, &[]).expect("saved");
        }
        let there: Vec<u64> = (1..=6).filter(|step| path_of(run.path(), 0, *step).exists()).collect();
        assert_eq!(there, [2, 5, 6]);
    }
}
