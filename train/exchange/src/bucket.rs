//! Sums several buffers in one round: many small ones cost few messages, and each link carries its share whoever owns
//! the sums.
//!
//! Each rank sums an even slice of the bucket. Then slices go to all ranks, or each buffer's slices to its owner. An
//! owner's link carries about twice the bytes of its buffers, instead of those of every rank
//! (`no_rank_receives_much_more_than_its_even_share`). Two ranks, or owners of about equal parts, exchange their parts
//! directly (`owners_of_even_parts_receive_each_byte_once`).

use std::ops::Range;

use bytemuck::Pod;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exact::{Exact, check_parts, check_place, gather, nothing_of_each};
use crate::pairwise::Pairwise;
use crate::share::places;
use crate::slices::{Slices, overlap};

impl Exact {
    /// Sums each of `buffers`, which have the same share. With `owners`, one rank per buffer, ranks other than the
    /// owner get an empty sum.
    pub fn sum_all(
        self,
        engine: &mut dyn Engine,
        buffers: Vec<Pairwise>,
        owners: Option<&[usize]>,
    ) -> Result<Vec<Vec<f32>>> {
        let Bucket { sum, places } = Bucket::new(engine, buffers, owners)?;
        let Some(owned) = &places.owned else { return Ok(places.split(self.sum(engine, sum)?)) };
        if engine.world() == 1 {
            return Ok(places.split(sum.fold()?));
        }
        let slices = self.slices(sum.len(), engine.world()).for_owners(owned);
        let slice = self.reduce(engine, sum, &slices)?.0;
        let own = to_owners(engine, slice, &slices, owned)?;
        Ok(places.split(own))
    }

    /// Fills `bytes` from the ranks that own their parts, one after the other; `owned` has each rank's bytes. Ranks
    /// first even out their parts, so that none sends much more than others.
    pub fn gather_owned(self, engine: &mut dyn Engine, bytes: &mut [u8], owned: &[usize]) -> Result<()> {
        let (rank, world) = (engine.rank(), engine.world());
        check_parts(owned, world, bytes.len())?;
        if world == 1 {
            return Ok(());
        }
        let owned = places(owned);
        let slices = self.slices(bytes.len(), world).for_owners(&owned);
        if slices.are(&owned) {
            return gather(engine, bytes, &slices);
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

/// Buffers one behind the other, in the order of their owners.
pub(crate) struct Bucket {
    pub(crate) sum: Pairwise,
    pub(crate) places: Places,
}

pub(crate) struct Places {
    /// The elements of each owner; `None` if every rank gets all sums.
    pub(crate) owned: Option<Vec<Range<usize>>>,
    own: Vec<usize>,
    lens: Vec<usize>,
}

impl Bucket {
    pub(crate) fn new(engine: &dyn Engine, buffers: Vec<Pairwise>, owners: Option<&[usize]>) -> Result<Self> {
        for buffer in &buffers {
            check_place(engine, buffer)?;
        }
        let lens: Vec<usize> = buffers.iter().map(Pairwise::len).collect();
        let Some(owners) = owners else {
            let places = Places { owned: None, own: (0..lens.len()).collect(), lens };
            return Ok(Self { sum: Pairwise::beside(buffers)?, places });
        };

        if owners.len() != lens.len() {
            let (expected, found) = (lens.len(), owners.len());
            return Err(Error::Length { what: "a list of owners, one a buffer", expected, found });
        }
        let mut owned = vec![0; engine.world()];
        for (owner, len) in owners.iter().zip(&lens) {
            let expected = owned.len();
            let owned = owned.get_mut(*owner);
            *owned.ok_or(Error::Length { what: "ranks up to an owner", expected, found: *owner })? += len;
        }
        let mut buffers: Vec<(usize, Pairwise)> = owners.iter().copied().zip(buffers).collect();
        buffers.sort_by_key(|(owner, _)| *owner);
        let own = (0..lens.len()).filter(|at| owners[*at] == engine.rank()).collect();
        let sum = Pairwise::beside(buffers.into_iter().map(|(_, buffer)| buffer).collect())?;
        Ok(Self { sum, places: Places { owned: Some(places(&owned)), own, lens } })
    }
}

impl Places {
    pub(crate) fn split(&self, joined: Vec<f32>) -> Vec<Vec<f32>> {
        let mut buffers = vec![Vec::new(); self.lens.len()];
        if let [buffer] = buffers.as_mut_slice() {
            *buffer = joined;
            return buffers;
        }
        let mut rest = joined.as_slice();
        for place in &self.own {
            let (buffer, others) = rest.split_at(self.lens[*place]);
            buffers[*place] = buffer.to_vec();
            rest = others;
        }
        buffers
    }
}

/// Sends this rank's slice to its elements' owners. Returns this rank's own elements.
pub(crate) fn to_owners<T: Pod>(
    engine: &mut dyn Engine,
    slice: Vec<T>,
    slices: &Slices,
    owned: &[Range<usize>],
) -> Result<Vec<T>> {
    let (rank, place) = (engine.rank(), slices.of(engine.rank()));
    if slices.are(owned) {
        return Ok(slice);
    }
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
