//! One bit per element with error feedback, for links slower than the step.
//!
//! A rank adds its residual, the unsent part, to its gradient. For each block of [`BLOCK`] elements it sends the mean
//! magnitude and the signs; their error is the next residual. A slice's owner sums the received parts and sends the sum
//! likewise, with a residual of its own.
//!
//! # Exactness
//! `residual = gradient + old residual − sent` is computed in f64 and rounded to f32 once. So `sent + residual =
//! gradient + old residual` holds up to half a unit in the new residual's last place.
//!
//! # Traps
//! - A value that is not finite would stay in the residual. Its block is sent as NaN: every rank skips the update, and
//!   the residual stays.
//! - A repeated step must not see its first attempt's residual: new residuals wait for
//!   [`settle`](crate::Exchange::settle).

mod pack;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exact::{Exact, Exchange, add_rows, all_gather, check_parts, check_place};
use crate::pairwise::{Block, Pairwise};
use crate::share::{even, places};

pub use pack::BLOCK;
use pack::{pack, packed_len, unpack};

/// The compressed exchange of one buffer, with its residual.
///
/// Sends at most a 30th of [`Exact`]'s bytes if a rank's part has 1024 elements or more. Holds two f32 for each element
/// and two for each of its part. A world of one sends nothing and is exact.
#[derive(Debug, Clone)]
pub struct OneBit {
    exact: Exact,
    warm_up: u64,
    len: usize,
    state: Option<State>,
}

#[derive(Debug, Clone, PartialEq)]
struct State {
    place: (usize, usize),
    own: Feedback,
    part: Feedback,
}

/// A residual: the last committed one, and the next, valid once committed.
#[derive(Debug, Clone, Default, PartialEq)]
struct Feedback {
    settled: Vec<f32>,
    aside: Option<Vec<f32>>,
}

/// Residuals of one rank, for a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Residuals {
    /// Rank and world of the residuals.
    pub place: (usize, usize),
    /// Residual of this rank's gradients, per element of the buffer.
    pub own: Vec<f32>,
    /// Residual of this rank's part of the sums, per element of the part.
    pub part: Vec<f32>,
}

impl Feedback {
    fn zeros(len: usize) -> Self {
        Self { settled: vec![0.0; len], aside: None }
    }

    /// Packs `values` plus the residual of elements `begin..`; keeps the next residual apart.
    fn pack(&mut self, begin: usize, values: &[f32], out: &mut Vec<u8>) {
        let settled = &self.settled;
        let aside = self.aside.get_or_insert_with(|| settled.clone());
        pack(values, &settled[begin..][..values.len()], &mut aside[begin..][..values.len()], out);
    }

    fn settle(&mut self, committed: bool) {
        if let Some(aside) = self.aside.take()
            && committed
        {
            self.settled = aside;
        }
    }
}

impl OneBit {
    /// An exchange for a buffer of `len` elements. The first `warm_up` committed steps are exact.
    pub fn new(len: usize, warm_up: u64) -> Self {
        Self { exact: Exact::default(), warm_up, len, state: None }
    }

    /// Packed size of `len` elements.
    pub fn packed_bytes(len: usize) -> usize {
        packed_len(len)
    }

    /// Exact steps left.
    pub fn warm_up(&self) -> u64 {
        self.warm_up
    }

    /// This rank's residuals as of the last committed step; `None` before the first compressed step.
    pub fn residuals(&self) -> Option<Residuals> {
        let State { place, own, part } = self.state.as_ref()?;
        Some(Residuals { place: *place, own: own.settled.clone(), part: part.settled.clone() })
    }

    /// Length of both residuals, if any.
    pub fn owed(&self) -> Option<[usize; 2]> {
        let State { own, part, .. } = self.state.as_ref()?;
        Some([own.settled.len(), part.settled.len()])
    }

    /// Continues with residuals saved at the same place in the world.
    pub fn restore(&mut self, saved: Residuals) -> Result<()> {
        let Residuals { place: (rank, world), own, part } = saved;
        let wrong = |what, expected, found| Err(Error::Length { what, expected, found });
        if own.len() != self.len {
            return wrong("a residual", self.len, own.len());
        }
        let expected = even(self.len, world).get(rank).copied().unwrap_or(0);
        if part.len() != expected {
            return wrong("a residual of sums", expected, part.len());
        }
        let feedback = |settled| Feedback { settled, aside: None };
        self.state = Some(State { place: (rank, world), own: feedback(own), part: feedback(part) });
        Ok(())
    }

    /// Required after the world has changed: sums refuse residuals of another division.
    pub fn drop_residuals(&mut self) {
        self.state = None;
    }

    fn state(&mut self, place: (usize, usize)) -> Result<&mut State> {
        let (rank, world) = place;
        let fresh = || State {
            place,
            own: Feedback::zeros(self.len),
            part: Feedback::zeros(even(self.len, world)[rank]),
        };
        let state = self.state.get_or_insert_with(fresh);
        if state.place == place {
            // A call after a failed one starts over.
            state.own.settle(false);
            state.part.settle(false);
            return Ok(state);
        }
        Err(Error::Place { what: "a residual of one-bit exchange", expected: state.place, found: place })
    }

    fn check(&self, engine: &dyn Engine, own: &Pairwise) -> Result<(usize, usize)> {
        if own.len() == self.len {
            return check_place(engine, own);
        }
        Err(Error::Length {
            what: "a contribution to one-bit exchange",
            expected: self.len,
            found: own.len(),
        })
    }
}

fn reduce(
    engine: &mut dyn Engine,
    feedback: &mut Feedback,
    row: &[f32],
    parts: &[usize],
    rank: usize,
) -> Result<Vec<f32>> {
    let packed = |place: std::ops::Range<usize>| {
        let mut bytes = Vec::with_capacity(packed_len(place.len()));
        feedback.pack(place.start, &row[place], &mut bytes);
        bytes
    };

    let send: Vec<Vec<u8>> = places(parts).into_iter().map(packed).collect();
    let width = parts[rank];
    let mut received = vec![0; packed_len(width) * parts.len()];
    let send: Vec<&[u8]> = send.iter().map(Vec::as_slice).collect();

    if width == 0 {
        let mut nothing: Vec<&mut [u8]> = parts.iter().map(|_| -> &mut [u8] { &mut [] }).collect();
        engine.all_to_all(&send, &mut nothing)?;
        return Ok(Vec::new());
    }

    let mut receive: Vec<&mut [u8]> = received.chunks_exact_mut(packed_len(width)).collect();
    engine.all_to_all(&send, &mut receive)?;
    let mut rows = vec![0.0; width * parts.len()];
    for (row, bytes) in rows.chunks_exact_mut(width).zip(received.chunks_exact(packed_len(width))) {
        unpack(bytes, row);
    }

    let order: Vec<Block> = (0..parts.len() as u64).map(|index| Block { level: 0, index }).collect();
    let mut sum = Vec::with_capacity(width);
    add_rows(&mut rows, width, &order, &mut sum);
    Ok(sum)
}

impl Exchange for OneBit {
    fn sum(&mut self, engine: &mut dyn Engine, own: Pairwise) -> Result<Vec<f32>> {
        let (rank, world) = self.check(engine, &own)?;
        if world == 1 || self.warm_up > 0 {
            return self.exact.sum(engine, own);
        }

        let mut row = own.fold()?;
        let parts = even(self.len, world);
        let state = self.state((rank, world))?;
        let reduced = reduce(engine, &mut state.own, &row, &parts, rank)?;
        let packed: Vec<usize> = parts.iter().map(|part| packed_len(*part)).collect();
        let mut bytes = Vec::new();
        state.part.pack(0, &reduced, &mut bytes);
        let mut all = vec![0; packed.iter().sum()];
        all[places(&packed)[rank].clone()].copy_from_slice(&bytes);
        all_gather(engine, &mut all, &packed)?;
        for (place, bytes) in places(&parts).into_iter().zip(places(&packed)) {
            unpack(&all[bytes], &mut row[place]);
        }
        Ok(row)
    }

    /// The part is not compressed again.
    fn reduce_scatter(
        &mut self,
        engine: &mut dyn Engine,
        own: Pairwise,
        parts: &[usize],
    ) -> Result<Vec<f32>> {
        let (rank, world) = self.check(engine, &own)?;
        check_parts(parts, world, self.len)?;
        if world == 1 || self.warm_up > 0 {
            return self.exact.reduce_scatter(engine, own, parts);
        }
        let row = own.fold()?;
        let state = self.state((rank, world))?;
        reduce(engine, &mut state.own, &row, parts, rank)
    }

    fn settle(&mut self, committed: bool) {
        if committed {
            self.warm_up = self.warm_up.saturating_sub(1);
        }
        if let Some(State { own, part, .. }) = &mut self.state {
            own.settle(committed);
            part.settle(committed);
        }
    }
}
