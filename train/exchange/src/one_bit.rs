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
//! - A repeated step must not see its first attempt's residual: new residuals wait for [`OneBit::settle`].

mod pack;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exact::{Exact, add_rows, all_gather, check_place};
use crate::pairwise::{Pairwise, one_each};
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
    /// Residual of the gradients, per element of the buffer.
    pub own: Vec<f32>,
    /// Residual of this rank's part of the sums, per element.
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

    /// Sums over all ranks; every rank gets the same bits.
    pub fn sum(&mut self, engine: &mut dyn Engine, own: Pairwise) -> Result<Vec<f32>> {
        let (_, world) = self.check(engine, &own)?;
        if world == 1 || self.warm_up > 0 {
            return self.exact.sum(engine, own);
        }
        Ok(Self::sum_all(engine, vec![(self, own)])?.swap_remove(0))
    }

    /// Ends a step after its `commit`. An uncommitted step is forgotten, so that it can be repeated.
    pub fn settle(&mut self, committed: bool) {
        if committed {
            self.warm_up = self.warm_up.saturating_sub(1);
        }
        if let Some(State { own, part, .. }) = &mut self.state {
            own.settle(committed);
            part.settle(committed);
        }
    }

    /// Sums several buffers in one round, each as [`sum`](Self::sum) does.
    pub fn sum_all(engine: &mut dyn Engine, buffers: Vec<(&mut Self, Pairwise)>) -> Result<Vec<Vec<f32>>> {
        let (rank, world) = (engine.rank(), engine.world());
        if world == 1 || buffers.iter().any(|(buffer, _)| buffer.warm_up > 0) {
            return buffers.into_iter().map(|(buffer, own)| buffer.sum(engine, own)).collect();
        }

        let mut open = Vec::with_capacity(buffers.len());
        for (buffer, own) in buffers {
            let place = buffer.check(engine, &own)?;
            let parts = places(&even(own.len(), world));
            open.push((buffer.state(place)?, own.fold()?, parts));
        }

        let mut send = vec![Vec::new(); world];
        for (state, row, parts) in &mut open {
            for (bytes, part) in send.iter_mut().zip(parts) {
                state.own.pack(part.start, &row[part.clone()], bytes);
            }
        }
        let lens: Vec<usize> = (0..world)
            .map(|rank| open.iter().map(|(_, _, parts)| packed_len(parts[rank].len())).sum())
            .collect();
        let mut received = vec![vec![0; lens[rank]]; world];
        let send: Vec<&[u8]> = send.iter().map(Vec::as_slice).collect();
        let mut receive: Vec<&mut [u8]> = received.iter_mut().map(Vec::as_mut_slice).collect();
        engine.all_to_all(&send, &mut receive)?;

        let order = one_each(world);
        let (mut sums, mut begin) = (Vec::with_capacity(lens[rank]), 0);
        for (state, _, parts) in &mut open {
            let width = parts[rank].len();
            let packed = begin..begin + packed_len(width);
            let mut rows = vec![0.0; width * world];
            for (row, bytes) in rows.chunks_exact_mut(width.max(1)).zip(&received) {
                unpack(&bytes[packed.clone()], row);
            }
            let mut sum = Vec::with_capacity(width);
            add_rows(&mut rows, width, &order, &mut sum);
            state.part.pack(0, &sum, &mut sums);
            begin = packed.end;
        }

        let mut all = vec![0; lens.iter().sum()];
        let of_ranks = places(&lens);
        all[of_ranks[rank].clone()].copy_from_slice(&sums);
        all_gather(engine, &mut all, &lens)?;
        for (rank, bytes) in of_ranks.into_iter().enumerate() {
            let mut rest = &all[bytes];
            for (_, row, parts) in &mut open {
                let part = parts[rank].clone();
                let (packed, others) = rest.split_at(packed_len(part.len()));
                unpack(packed, &mut row[part]);
                rest = others;
            }
        }
        Ok(open.into_iter().map(|(_, row, _)| row).collect())
    }
}
