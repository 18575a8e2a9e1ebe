//! The exact exchange: each rank sums its slice over all ranks, then all gather the slices.
//!
//! Buffers travel in pieces, so other ranks' rows take little memory and stay in cache. Pieces change no bit: no
//! element is added to another.
//!
//! On several hosts with several ranks each, ranks first add within their host. Then each slice crosses the network
//! once per host (`hosts_send_each_sum_over_the_network_once`).

use std::ops::Range;

use bytemuck::Pod;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pairwise::{Block, Pairwise, Tree, add_to, blocks};
use crate::share::{Share, range};
use crate::slices::Slices;

/// Sums to the same bits in every world.
#[derive(Debug, Clone, Copy)]
pub struct Exact {
    piece: usize,
    on_host: usize,
}

impl Default for Exact {
    fn default() -> Self {
        Self::in_pieces_of(1 << 18)
    }
}

/// Ranks that exchange parts of their rows.
struct Stage {
    peers: Vec<usize>,
    own: usize,
    /// Each peer's part of a row.
    parts: Vec<Range<usize>>,
    /// Each peer's rows.
    lists: Vec<Vec<Block>>,
    /// Calls, equal on all ranks: pieces of the longest part, rows of the rank with most.
    rounds: usize,
    levels: usize,
}

impl Exact {
    /// Exchanges at most this many elements with each rank at once; changes no bit.
    ///
    /// # Panics
    ///
    /// If `elements` is zero.
    pub fn in_pieces_of(elements: usize) -> Self {
        assert!(elements > 0, "a piece has at least one element");
        Self { piece: elements, on_host: 1 }
    }

    /// Adds within each host before the network. Every host has this many ranks, with consecutive numbers; another
    /// world counts as one rank per host.
    #[must_use]
    pub fn on_hosts_of(self, ranks: usize) -> Self {
        Self { on_host: ranks, ..self }
    }

    pub(crate) fn slices(self, len: usize, world: usize) -> Slices {
        Slices::even(len, world, self.on_host)
    }

    /// Sums over all ranks; every rank gets the same bits.
    pub fn sum(self, engine: &mut dyn Engine, own: Pairwise) -> Result<Vec<f32>> {
        let (rank, world) = check_place(engine, &own)?;
        if world == 1 {
            return own.fold();
        }
        let slices = self.slices(own.len(), world);
        let (reduced, mut whole) = self.reduce(engine, own, &slices)?;
        whole[slices.of(rank)].copy_from_slice(&reduced);
        gather(engine, &mut whole, &slices)?;
        Ok(whole)
    }

    /// This rank's slice of the sum, and a buffer as long as the whole sum.
    pub(crate) fn reduce(
        self,
        engine: &mut dyn Engine,
        own: Pairwise,
        slices: &Slices,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        own.complete()?;
        let Share { count, world, rank } = own.share();
        let len = own.len();
        let lists: Vec<Vec<Block>> = (0..world).map(|rank| blocks(range(count, world, rank))).collect();
        let mut rows = own.rows();
        let reduced = if slices.has_two_levels() {
            let within = self.within_hosts(&lists, rank, slices);
            let of_host = self.joined(engine, &within, &rows)?;
            let across = self.across_hosts(count, rank, slices);
            self.summed(engine, &across, &of_host, slices.of(rank).len())?
        } else {
            let stage = Stage {
                peers: (0..world).collect(),
                own: rank,
                parts: (0..world).map(|rank| slices.of(rank)).collect(),
                levels: most_rows(&lists),
                lists,
                rounds: slices.longest().div_ceil(self.piece),
            };
            self.summed(engine, &stage, &rows, slices.of(rank).len())?
        };
        let whole = if rows.is_empty() { vec![0.0; len] } else { rows.swap_remove(0) };
        Ok((reduced, whole))
    }

    fn within_hosts(self, lists: &[Vec<Block>], rank: usize, slices: &Slices) -> Stage {
        let peers = slices.on_host(rank);
        let longest = peers.iter().map(|peer| slices.part(*peer).len()).max().unwrap_or(0);
        Stage {
            own: rank - peers[0],
            parts: peers.iter().map(|peer| slices.part(*peer)).collect(),
            levels: most_rows(lists),
            lists: peers.iter().map(|peer| lists[*peer].clone()).collect(),
            rounds: longest.div_ceil(self.piece),
            peers,
        }
    }

    fn across_hosts(self, count: u64, rank: usize, slices: &Slices) -> Stage {
        let peers = slices.across(rank);
        let lists: Vec<Vec<Block>> =
            (0..slices.hosts()).map(|host| blocks(range(count, slices.hosts(), host))).collect();
        let begin = slices.part(rank).start;
        let of_part = |slice: Range<usize>| slice.start - begin..slice.end - begin;
        Stage {
            own: rank / slices.on_host(rank).len(),
            parts: peers.iter().map(|peer| of_part(slices.of(*peer))).collect(),
            levels: most_rows(&lists),
            lists,
            rounds: slices.longest().div_ceil(self.piece),
            peers,
        }
    }

    /// This rank's part of the sum over a stage's ranks.
    fn summed(
        self,
        engine: &mut dyn Engine,
        stage: &Stage,
        rows: &[Vec<f32>],
        len: usize,
    ) -> Result<Vec<f32>> {
        let (mut sum, order) = (Vec::with_capacity(len), stage.lists.concat());
        self.pass(engine, stage, rows, |received, width| add_rows(received, width, &order, &mut sum))?;
        Ok(sum)
    }

    /// This rank's part of the rows that all ranks of a stage would have as one rank.
    fn joined(self, engine: &mut dyn Engine, stage: &Stage, rows: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let (mut joined, order) = (Vec::<Vec<f32>>::new(), stage.lists.concat());
        self.pass(engine, stage, rows, |received, width| {
            let rows = join_rows(received, width, &order).rows();
            joined.resize_with(rows.len(), Vec::new);
            for (joined, row) in joined.iter_mut().zip(rows) {
                joined.extend_from_slice(&received[row * width..][..width]);
            }
        })?;
        Ok(joined)
    }

    /// Sends each peer its part of every row. `take` gets all rows of this rank's part, a piece at a time.
    fn pass(
        self,
        engine: &mut dyn Engine,
        stage: &Stage,
        rows: &[Vec<f32>],
        mut take: impl FnMut(&mut [f32], usize),
    ) -> Result<()> {
        let Stage { peers, own, parts, lists, .. } = stage;
        let mut received = Vec::new();
        for round in 0..stage.rounds {
            let cut = |part: &Range<usize>| {
                let begin = part.end.min(part.start + round * self.piece);
                begin..part.end.min(begin + self.piece)
            };
            let cuts: Vec<_> = parts.iter().map(cut).collect();
            let width = cuts[*own].len();
            received.resize(width * lists.iter().map(Vec::len).sum::<usize>(), 0.0);
            for level in 0..stage.levels {
                let mut send: Vec<&[u8]> = vec![&[]; engine.world()];
                if let Some(row) = rows.get(level) {
                    for (peer, cut) in peers.iter().zip(&cuts) {
                        send[*peer] = bytemuck::cast_slice(&row[cut.clone()]);
                    }
                }
                let mut receive = nothing_of_each(engine.world());
                let of_peers = one_row_of_each(&mut received, width, lists, level);
                for (peer, row) in peers.iter().zip(of_peers) {
                    receive[*peer] = row;
                }
                engine.all_to_all(&send, &mut receive)?;
            }
            take(&mut received, width);
        }
        Ok(())
    }
}

fn most_rows(lists: &[Vec<Block>]) -> usize {
    lists.iter().map(Vec::len).max().unwrap_or(0)
}

pub(crate) fn nothing_of_each<'a>(world: usize) -> Vec<&'a mut [u8]> {
    (0..world).map(|_| &mut [] as &mut [u8]).collect()
}

pub(crate) fn gather<T: Pod>(engine: &mut dyn Engine, whole: &mut [T], slices: &Slices) -> Result<()> {
    let rank = engine.rank();
    if slices.has_two_levels() {
        gather_among(engine, whole, slices.across(rank).into_iter().map(|peer| (peer, slices.of(peer))))?;
        return gather_among(
            engine,
            whole,
            slices.on_host(rank).into_iter().map(|peer| (peer, slices.part(peer))),
        );
    }
    let lens: Vec<usize> = (0..engine.world()).map(|rank| slices.of(rank).len() * size_of::<T>()).collect();
    all_gather(engine, bytemuck::cast_slice_mut(whole), &lens)
}

/// Fills the parts of other peers, which lie in order.
fn gather_among<T: Pod>(
    engine: &mut dyn Engine,
    whole: &mut [T],
    peers: impl Iterator<Item = (usize, Range<usize>)>,
) -> Result<()> {
    let (mut rest, mut begin, mut own): (_, _, &[u8]) = (whole, 0, &[]);
    let (mut others, mut receive) = (Vec::new(), nothing_of_each(engine.world()));
    for (peer, part) in peers {
        let (_, from) = std::mem::take(&mut rest).split_at_mut(part.start - begin);
        let (bytes, after) = from.split_at_mut(part.len());
        (rest, begin) = (after, part.end);
        let bytes = bytemuck::cast_slice_mut(bytes);
        if peer == engine.rank() {
            own = bytes;
        } else {
            others.push(peer);
            receive[peer] = bytes;
        }
    }
    let mut send: Vec<&[u8]> = vec![&[]; engine.world()];
    for peer in others {
        send[peer] = own;
    }
    engine.all_to_all(&send, &mut receive)
}

/// Empty for ranks with fewer rows.
fn one_row_of_each<'a>(
    received: &'a mut [f32],
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

/// Adds rows of `width` elements that are neighbours in the tree.
fn join_rows(rows: &mut [f32], width: usize, order: &[Block]) -> Tree<usize> {
    let mut tree = Tree::new();
    for (row, block) in order.iter().enumerate() {
        tree.push(*block, row, |left, right| add_row(rows, width, *left, right));
    }
    tree
}

fn add_row(rows: &mut [f32], width: usize, left: usize, right: usize) {
    let (before, after) = rows.split_at_mut(right * width);
    add_to(&mut before[left * width..][..width], &after[..width]);
}

/// In tree order; zeros without rows.
pub(crate) fn add_rows(rows: &mut [f32], width: usize, order: &[Block], sum: &mut Vec<f32>) {
    let tree = join_rows(rows, width, order);
    match tree.finish(|left: &mut usize, right| add_row(rows, width, *left, right)) {
        Some(row) => sum.extend_from_slice(&rows[row * width..][..width]),
        None => sum.resize(sum.len() + width, 0.0),
    }
}

/// Fills the other ranks' parts of `bytes`. `parts` has the bytes of each.
pub fn all_gather(engine: &mut dyn Engine, bytes: &mut [u8], parts: &[usize]) -> Result<()> {
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
pub(crate) fn check_place(engine: &dyn Engine, own: &Pairwise) -> Result<(usize, usize)> {
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
