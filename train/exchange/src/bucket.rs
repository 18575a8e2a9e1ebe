//! Several buffers in one round, so that many small ones cost few messages, and every rank's link carries its share
//! whoever owns the sums.
//!
//! Each rank sums an even slice of the bucket. Then slices go to all ranks, or each buffer's slices to its owner. An
//! owner's link carries about twice the bytes of its buffers, instead of those of every rank
//! (`no_rank_receives_much_more_than_its_even_share`). Two ranks, or owners of about equal parts, exchange their parts
//! directly (`owners_of_even_parts_receive_each_byte_once`).

use std::ops::Range;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exact::{Exact, check_parts, check_place, gather, nothing_of_each};
use crate::pairwise::{Number, Pairwise};
use crate::share::places;
use crate::slices::{Slices, overlap};

impl Exact {
    /// Sums each of `buffers`, which have the same share. With `owners`, one rank per buffer, only the owner gets a
    /// buffer's sum, and other ranks get an empty one.
    pub fn sum_all(
        self,
        engine: &mut dyn Engine,
        buffers: Vec<Pairwise>,
        owners: Option<&[usize]>,
    ) -> Result<Vec<Vec<f32>>> {
        let mut place = (0, 1);
        for buffer in &buffers {
            place = check_place(engine, buffer)?;
        }
        let lens: Vec<usize> = buffers.iter().map(Pairwise::len).collect();
        let Some(owners) = owners else {
            let all = 0..buffers.len();
            let sum = self.sum_of(engine, Pairwise::beside(buffers)?)?;
            return Ok(split(sum, all, &lens));
        };

        let (rank, world) = place;
        let (order, owned) = by_owner(owners, &lens, world)?;
        let mut buffers: Vec<Option<Pairwise>> = buffers.into_iter().map(Some).collect();
        let in_order = order.iter().filter_map(|at| buffers[*at].take()).collect();
        let bucket = Pairwise::beside(in_order)?;
        let slices = self.slices(bucket.len(), world);
        let own = if world == 1 {
            bucket.fold()?
        } else if is_direct(&owned, &slices) {
            self.reduce(engine, bucket, &Slices::owned(&owned))?.0
        } else {
            let slice = self.reduce(engine, bucket, &slices)?.0;
            to_owners(engine, &slice, &slices, &owned)?
        };
        Ok(split(own, order.into_iter().filter(|at| owners[*at] == rank), &lens))
    }

    /// Fills `bytes` from the ranks that own their parts, one after the other; `owned` has each rank's bytes. Ranks
    /// first even out their parts, so that none sends much more than others.
    pub fn gather_owned(self, engine: &mut dyn Engine, bytes: &mut [u8], owned: &[usize]) -> Result<()> {
        let (rank, world) = (engine.rank(), engine.world());
        check_parts(owned, world, bytes.len())?;
        if world == 1 {
            return Ok(());
        }
        let (slices, owned) = (self.slices(bytes.len(), world), places(owned));
        if is_direct(&owned, &slices) {
            return gather(engine, bytes, &Slices::owned(&owned));
        }
        let (place, own) = (slices.of(rank), &owned[rank]);
        let (before, from) = bytes.split_at_mut(place.start);
        let (slice, after) = from.split_at_mut(place.len());
        let mut send: Vec<&[u8]> = vec![&[]; world];
        let mut receive = nothing_of_each(world);
        let mut rest = slice;
        for peer in 0..world {
            let received = overlap(&owned[peer], &place);
            let (part, others) = std::mem::take(&mut rest).split_at_mut(received.len());
            rest = others;
            if peer == rank {
                continue;
            }
            receive[peer] = part;
            let sent = overlap(own, &slices.of(peer));
            if sent.end <= place.start {
                send[peer] = &before[sent];
            } else if sent.start >= place.end {
                send[peer] = &after[sent.start - place.end..sent.end - place.end];
            }
        }
        engine.all_to_all(&send, &mut receive)?;
        gather(engine, bytes, &slices)
    }
}

/// Whether slices would spare the largest owner's link nothing, or so little that their detour costs more.
fn is_direct(owned: &[Range<usize>], slices: &Slices) -> bool {
    let (world, len) = (owned.len(), owned.iter().map(Range::len).sum::<usize>());
    let largest = owned.iter().map(Range::len).max().unwrap_or(0);
    world == 2 || (!slices.has_two_levels() && 4 * world * largest <= 5 * len)
}

/// Buffers in the order of their owners, and the elements of each owner.
fn by_owner(owners: &[usize], lens: &[usize], world: usize) -> Result<(Vec<usize>, Vec<Range<usize>>)> {
    if owners.len() != lens.len() {
        let (expected, found) = (lens.len(), owners.len());
        return Err(Error::Length { what: "a list of owners, one a buffer", expected, found });
    }
    let mut owned = vec![0; world];
    for (owner, len) in owners.iter().zip(lens) {
        match owned.get_mut(*owner) {
            Some(elements) => *elements += len,
            None => {
                return Err(Error::Length { what: "ranks up to an owner", expected: world, found: *owner });
            }
        }
    }
    let mut order: Vec<usize> = (0..owners.len()).collect();
    order.sort_by_key(|at| owners[*at]);
    Ok((order, places(&owned)))
}

/// Sends this rank's slice to the owners of its elements. Returns the elements that this rank owns.
fn to_owners<T: Number>(
    engine: &mut dyn Engine,
    slice: &[T],
    slices: &Slices,
    owned: &[Range<usize>],
) -> Result<Vec<T>> {
    let (rank, place) = (engine.rank(), slices.of(engine.rank()));
    let send = owned.iter().map(|owned| {
        let part = overlap(owned, &place);
        let part = if part.is_empty() { &[] } else { &slice[part.start - place.start..][..part.len()] };
        bytemuck::cast_slice(part)
    });
    let send: Vec<&[u8]> = send.collect();
    let mut own = vec![T::zeroed(); owned[rank].len()];
    let mut receive = nothing_of_each(engine.world());
    let mut rest = own.as_mut_slice();
    for peer in slices.ranks() {
        let (part, others) =
            std::mem::take(&mut rest).split_at_mut(overlap(&owned[rank], &slices.of(peer)).len());
        receive[peer] = bytemuck::cast_slice_mut(part);
        rest = others;
    }
    engine.all_to_all(&send, &mut receive)?;
    Ok(own)
}

/// Gives the buffers at `places`, in order, their elements of `joined`.
fn split(joined: Vec<f32>, places: impl Iterator<Item = usize>, lens: &[usize]) -> Vec<Vec<f32>> {
    let mut buffers = vec![Vec::new(); lens.len()];
    if let [_] = lens {
        buffers[0] = joined;
        return buffers;
    }
    let mut rest = joined.as_slice();
    for place in places {
        let (buffer, others) = rest.split_at(lens[place]);
        buffers[place] = buffer.to_vec();
        rest = others;
    }
    buffers
}
