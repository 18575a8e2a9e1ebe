//! The exact exchange: each rank sums its slice over all ranks, then all gather the slices.
//!
//! With one row per rank, a rank sends as much as in a ring. Buffers travel in pieces, so other ranks' rows take little
//! memory and stay in cache. Pieces change no bit: no element is added to another.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pairwise::{Block, Number, Pairwise, Tree, add_to, blocks};
use crate::share::{Share, even, places, range};

/// A way to sum buffers over all ranks.
pub trait Exchange {
    /// Sums over all ranks; every rank gets the same bits.
    fn sum(&mut self, engine: &mut dyn Engine, own: Pairwise) -> Result<Vec<f32>>;

    /// Sums this rank's part. `parts` has the elements of each rank's part.
    fn reduce_scatter(&mut self, engine: &mut dyn Engine, own: Pairwise, parts: &[usize])
    -> Result<Vec<f32>>;

    /// Fills the other ranks' parts of `bytes`, uncompressed. `parts` has the bytes of each.
    fn all_gather(&mut self, engine: &mut dyn Engine, bytes: &mut [u8], parts: &[usize]) -> Result<()> {
        all_gather(engine, bytes, parts)
    }

    /// Ends a step after its `commit`. An uncommitted step is forgotten, so that it can be repeated.
    fn settle(&mut self, committed: bool);
}

/// Sums to the same bits in every world.
#[derive(Debug, Clone, Copy)]
pub struct Exact {
    piece: usize,
}

impl Default for Exact {
    fn default() -> Self {
        Self::in_pieces_of(1 << 18)
    }
}

impl Exact {
    /// Exchanges at most this many elements with each rank at once; changes memory and speed, never a bit.
    ///
    /// # Panics
    ///
    /// If `elements` is zero.
    pub fn in_pieces_of(elements: usize) -> Self {
        assert!(elements > 0, "a piece has at least one element");
        Self { piece: elements }
    }

    /// Sums numbers of any type: losses, counts, squares of a norm.
    pub fn sum_of<T: Number>(self, engine: &mut dyn Engine, own: Pairwise<T>) -> Result<Vec<T>> {
        let (rank, world) = check_place(engine, &own)?;
        if world == 1 {
            return own.fold();
        }
        let parts = even(own.len(), world);
        let (reduced, mut whole) = self.reduce(engine, own, &parts)?;
        whole[places(&parts)[rank].clone()].copy_from_slice(&reduced);
        let bytes: Vec<usize> = parts.iter().map(|part| part * size_of::<T>()).collect();
        all_gather(engine, bytemuck::cast_slice_mut(&mut whole), &bytes)?;
        Ok(whole)
    }

    fn reduce<T: Number>(
        self,
        engine: &mut dyn Engine,
        own: Pairwise<T>,
        parts: &[usize],
    ) -> Result<(Vec<T>, Vec<T>)> {
        own.complete()?;
        let Share { count, world, rank } = own.share();
        let len = own.len();
        let lists: Vec<Vec<Block>> = (0..world).map(|rank| blocks(range(count, world, rank))).collect();
        let mut rows = own.rows();
        let mut reduced = Vec::with_capacity(parts[rank]);
        let mut received = Vec::new();
        let rounds = parts.iter().map(|part| part.div_ceil(self.piece)).max().unwrap_or(0);
        for round in 0..rounds {
            let cut = |place: std::ops::Range<usize>| {
                let begin = place.end.min(place.start + round * self.piece);
                begin..place.end.min(begin + self.piece)
            };
            let cuts: Vec<_> = places(parts).into_iter().map(cut).collect();
            let width = cuts[rank].len();
            received.resize(width * lists.iter().map(Vec::len).sum::<usize>(), T::zeroed());
            for level in 0..lists.iter().map(Vec::len).max().unwrap_or(0) {
                let row = rows.get(level);
                let send: Vec<&[u8]> = cuts
                    .iter()
                    .map(|cut| row.map_or(&[] as &[u8], |row| bytemuck::cast_slice(&row[cut.clone()])))
                    .collect();
                let mut receive = one_row_of_each(&mut received, width, &lists, level);
                engine.all_to_all(&send, &mut receive)?;
            }
            add_rows(&mut received, width, &lists.concat(), &mut reduced);
        }

        let whole = if rows.is_empty() { vec![T::zeroed(); len] } else { rows.swap_remove(0) };
        Ok((reduced, whole))
    }
}

impl Exchange for Exact {
    fn sum(&mut self, engine: &mut dyn Engine, own: Pairwise) -> Result<Vec<f32>> {
        self.sum_of(engine, own)
    }

    fn reduce_scatter(
        &mut self,
        engine: &mut dyn Engine,
        own: Pairwise,
        parts: &[usize],
    ) -> Result<Vec<f32>> {
        let (_, world) = check_place(engine, &own)?;
        check_parts(parts, world, own.len())?;
        if world == 1 {
            return own.fold();
        }
        Ok(self.reduce(engine, own, parts)?.0)
    }

    /// A sum depends on its own contributions alone.
    fn settle(&mut self, _committed: bool) {}
}

/// Places for row `level` of each rank; empty for ranks with fewer rows.
fn one_row_of_each<'a, T: Number>(
    received: &'a mut [T],
    width: usize,
    lists: &[Vec<Block>],
    level: usize,
) -> Vec<&'a mut [u8]> {
    let mut rest = received;
    let mut receive: Vec<&mut [u8]> = Vec::with_capacity(lists.len());
    for list in lists {
        let (rows, others) = std::mem::take(&mut rest).split_at_mut(width * list.len());
        rest = others;
        let row = if level < list.len() { &mut rows[width * level..][..width] } else { &mut [] };
        receive.push(bytemuck::cast_slice_mut(row));
    }
    receive
}

/// Appends the sum of rows of `width` elements, in tree order; zeros without rows.
pub(crate) fn add_rows<T: Number>(rows: &mut [T], width: usize, order: &[Block], sum: &mut Vec<T>) {
    let mut add = |left: &mut usize, right: usize| {
        let (before, after) = rows.split_at_mut(right * width);
        add_to(&mut before[*left * width..][..width], &after[..width]);
    };
    let mut tree = Tree::new();
    for (row, block) in order.iter().enumerate() {
        tree.push(*block, row, &mut add);
    }
    match tree.finish(add) {
        Some(row) => sum.extend_from_slice(&rows[row * width..][..width]),
        None => sum.resize(sum.len() + width, T::zeroed()),
    }
}

pub(crate) fn all_gather(engine: &mut dyn Engine, bytes: &mut [u8], parts: &[usize]) -> Result<()> {
    check_parts(parts, engine.world(), bytes.len())?;
    let mut rest = bytes;
    let mut split = |part: &usize| {
        let (one, others) = std::mem::take(&mut rest).split_at_mut(*part);
        rest = others;
        one
    };
    let mut parts: Vec<&mut [u8]> = parts.iter().map(&mut split).collect();
    engine.all_gather(&mut parts)
}

/// Rank and world, which must match those of the contributions.
pub(crate) fn check_place<T: Number>(engine: &dyn Engine, own: &Pairwise<T>) -> Result<(usize, usize)> {
    let (expected, found) = ((own.share().rank, own.share().world), (engine.rank(), engine.world()));
    if expected == found {
        return Ok(found);
    }
    Err(Error::Place { what: "a share of the contributions", expected, found })
}

pub(crate) fn check_parts(parts: &[usize], world: usize, len: usize) -> Result<()> {
    if parts.len() != world {
        return Err(Error::Length {
            what: "a list of parts, one a rank",
            expected: world,
            found: parts.len(),
        });
    }
    let found = parts.iter().sum();
    if found == len {
        Ok(())
    } else {
        Err(Error::Length { what: "all parts together", expected: len, found })
    }
}
