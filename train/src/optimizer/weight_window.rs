//! The blocks' matrices of which each rank keeps its own (`memory.shard` = `"weights"`).
//!
//! All ranks enter recomputed segments in one order. On entering, a rank drops the last segment, waits for this one's
//! matrices and requests the next one's: two segments are held at most
//! (`a_rank_holds_a_share_of_the_weights_and_gathers_two_segments_at_most`). Sums and gathers share a thread.
//!
//! A use gets its matrix by [`OnDemand`]. The parameter receives the gradient; only the owner's has weights, unless in
//! tiles. Embeddings, vectors and the head are whole on all ranks and travel after each step.
//!
//! A training pass announces its route; a forward pass begins at its first segment. A rank with fewer passes enters the
//! others' segments idly.

mod matrices;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, anyhow};
use backend_offload::{Managed, host_memory};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{
    Tensor,
    backend::{AutodiffBackend, Backend},
};
use models::{Gpt, OnDemand};

use super::streamed::Waited;
use super::{HostPart, Owners};
use crate::ranks::{BackgroundSums, Gathers, Ranks};
use matrices::{Form, Matrices, Matrix, Own, WithoutOthers};

pub(crate) struct WeightWindow<I: Backend>(Arc<Mutex<Window<I>>>);

impl<I: Backend> Clone for WeightWindow<I> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<I: Backend> fmt::Debug for WeightWindow<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeightWindow")
    }
}

struct Window<I: Backend> {
    matrices: Matrices<I>,
    own: HashMap<ParamId, Own<I>>,
    here: Option<Segment>,
    /// Requested, and not yet received.
    ahead: Option<usize>,
    /// Segments that the pass is still to enter.
    route: VecDeque<usize>,
    gathers: Option<Gathers>,
    counts: Counts,
    failure: Option<String>,
}

struct Segment {
    number: usize,
    weights: HashMap<ParamId, OnDemand>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Segments received since the session began.
    pub(crate) received: usize,
    held: u64,
    /// Most bytes at once, and of one segment.
    pub(crate) peak: u64,
    pub(crate) largest: u64,
}

impl<I: Managed> Window<I> {
    fn enter(&mut self, segment: usize) {
        let is_here = self.here.as_ref().is_some_and(|here| here.number == segment);
        if is_here && self.route.front() != Some(&segment) {
            return;
        }
        if self.route.is_empty() {
            self.route = (0..self.matrices.segments.len()).collect();
        }
        let next = self.route.pop_front();
        assert_eq!(next, Some(segment), "ranks enter segments in one order");

        if !is_here {
            self.leave();
            if self.ahead != Some(segment) {
                self.request(segment);
            }
            self.receive(segment);
        }
        let next = self.route.iter().copied().find(|next| *next != segment);
        if let Some(next) = next.filter(|_| self.ahead.is_none()) {
            self.request(next);
        }
    }

    fn leave(&mut self) {
        if let Some(here) = self.here.take() {
            self.counts.held -= self.matrices.bytes(here.number);
        }
    }

    fn request(&mut self, segment: usize) {
        let gathers = self.gathers.as_ref().expect("ranks gather weights in a session");
        for round in self.matrices.rounds(segment) {
            let round = &self.matrices.segments[segment][round];
            let (owned, places) = self.matrices.places(round);
            let mut bytes = vec![0; owned.iter().sum()];
            for (matrix, place) in round.iter().zip(places) {
                let Some(own) = self.own.get(&matrix.id) else { continue };
                // Other ranks wait for this round nevertheless.
                if let Err(error) = own.read("a gathered matrix", &mut bytes[place]) {
                    self.failure.get_or_insert(format!("{error:#}"));
                }
            }
            gathers.request(bytes, owned);
        }
        self.ahead = Some(segment);
        let bytes = self.matrices.bytes(segment);
        self.counts.held += bytes;
        self.counts.peak = self.counts.peak.max(self.counts.held);
        self.counts.largest = self.counts.largest.max(bytes);
    }

    fn receive(&mut self, segment: usize) {
        let gathers = self.gathers.as_ref().expect("ranks gather weights in a session");
        let mut weights = HashMap::new();
        for round in self.matrices.rounds(segment) {
            let round = &self.matrices.segments[segment][round];
            let (_, places) = self.matrices.places(round);
            let bytes = gathers.receive();
            for (matrix, place) in round.iter().zip(places) {
                let made = match (&bytes, self.own.get(&matrix.id)) {
                    (_, Some(own)) => own.weights(matrix),
                    (Some(bytes), None) => self.matrices.received(matrix, &bytes[place]),
                    (None, None) => self.matrices.missing(matrix),
                };
                weights.insert(matrix.id, made);
            }
        }
        self.ahead = None;
        self.counts.received += 1;
        self.here = Some(Segment { number: segment, weights });
    }

    fn end(&mut self) -> Option<String> {
        if let Some(ahead) = self.ahead.take() {
            self.receive(ahead);
        }
        self.leave();
        self.route.clear();
        self.gathers = None;
        self.counts.held = 0;
        self.failure.take()
    }
}

impl<I: Managed> WeightWindow<I> {
    pub(super) fn without_others<B: AutodiffBackend<InnerBackend = I>>(
        owners: &Owners,
        host: Option<&HostPart>,
        gpt: Gpt<B>,
    ) -> Gpt<B> {
        gpt.map(&mut WithoutOthers { owners, host, path: Vec::new() })
    }

    /// `None` if no rank gathers weights. `every` blocks make a segment.
    pub(super) fn new<B: AutodiffBackend<InnerBackend = I>>(
        owners: &Owners,
        host: Option<&HostPart>,
        gpt: &Gpt<B>,
        every: usize,
    ) -> anyhow::Result<Option<Self>> {
        let device = gpt.wte.val().inner().device();
        let segments = Matrix::segments(owners, host, gpt, every.max(1));
        if segments.is_empty() || owners.are_stages() {
            return Ok(None);
        }

        let mut own = HashMap::new();
        for matrix in segments.iter().flatten().filter(|matrix| matrix.owner == owners.rank()) {
            if let Form::Tiles(code, _) = matrix.form {
                let state =
                    host.and_then(|host| host.states.get(&matrix.id)).context("tiles have masters")?;
                let tiles = state.tiles::<I>(code, &device)?;
                let tiles: Waited<I> = Arc::new(move || tiles.clone());
                own.insert(matrix.id, Own::Tiles(tiles));
            }
        }
        let (rank, world, memory) = (owners.rank(), owners.world(), host_memory::<I>(&device));
        let window = Window {
            matrices: Matrices { segments, rank, world, memory, device },
            own,
            here: None,
            ahead: None,
            route: VecDeque::new(),
            gathers: None,
            counts: Counts::default(),
            failure: None,
        };
        let window = Self(Arc::new(Mutex::new(window)));
        window.refresh(gpt);
        Ok(Some(window))
    }

    fn lock(&self) -> MutexGuard<'_, Window<I>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bind<B: AutodiffBackend<InnerBackend = I>>(&self, gpt: Gpt<B>) -> Gpt<B> {
        let segments = self.lock().matrices.segments.clone();
        let numbered = segments.into_iter().enumerate();
        let mut places: HashMap<ParamId, usize> = numbered
            .flat_map(|(number, segment)| segment.into_iter().map(move |matrix| (matrix.id, number)))
            .collect();
        gpt.with_weights_on_demand(|id| {
            let (segment, window) = (places.remove(&id)?, self.clone());
            Some(OnDemand::new(move || window.weights(segment, id)))
        })
    }

    fn weights(&self, segment: usize, id: ParamId) -> Tensor<I, 2> {
        let mut window = self.lock();
        window.enter(segment);
        let weights = window.here.as_ref().map(|here| here.weights[&id].clone());
        drop(window);
        weights.expect("it was entered").weights::<I>()
    }

    pub(super) fn replace_tiles(&self, id: ParamId, tiles: Waited<I>) {
        self.lock().own.insert(id, Own::Tiles(tiles));
    }

    /// Lets parameters go, so that an update changes them in place.
    pub(super) fn release(&self) {
        self.lock().own.retain(|_, own| matches!(own, Own::Tiles(_)));
    }

    pub(super) fn refresh<B: AutodiffBackend<InnerBackend = I>>(&self, gpt: &Gpt<B>) {
        gpt.visit(&mut Refresh { window: &mut self.lock() });
    }

    pub(crate) fn begin_pass(&self) {
        let mut window = self.lock();
        let all = 0..window.matrices.segments.len();
        window.route = all.clone().chain(all.rev()).collect();
    }

    /// Waits for a segment's weights. Other threads' ranks may need the tape's lock meanwhile.
    pub(crate) fn enter(&self, segment: usize) {
        self.lock().enter(segment);
    }

    /// Gathers for ranks that run up to `passes` forward passes.
    pub(crate) fn idle_until(&self, passes: usize) {
        let mut window = self.lock();
        let segments = window.matrices.segments.len();
        // A single segment stays.
        let most = if segments == 1 { passes.min(1) } else { passes * segments };
        while window.counts.received < most {
            let next = window.route.front().copied().unwrap_or(0);
            window.enter(next);
        }
    }

    pub(crate) fn begin(&self, gathers: Gathers) {
        let mut window = self.lock();
        window.gathers = Some(gathers);
        window.counts.received = 0;
    }

    /// Returns a failure to read own weights. Call it before the sums end.
    pub(crate) fn end(&self) -> Option<String> {
        self.lock().end()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }
}

/// Gathers between training steps.
pub(crate) struct Session<I: Backend>(Option<(WeightWindow<I>, BackgroundSums)>);

impl<I: Managed> Session<I> {
    pub(crate) fn begin(window: Option<&WeightWindow<I>>, ranks: &mut Ranks) -> anyhow::Result<Self> {
        let Some(window) = window else { return Ok(Self(None)) };
        let mut sums = ranks.begin_gathers()?;
        window.begin(sums.gathers());
        Ok(Self(Some((window.clone(), sums))))
    }

    /// [`end`](Self::end) after gathers for `passes` forward passes. Kernels differ, so texts may end at other tokens
    /// on other ranks: no rank may gather less often.
    pub(crate) fn end_after<T>(
        self,
        passes: usize,
        done: anyhow::Result<T>,
        ranks: &mut Ranks,
    ) -> anyhow::Result<T> {
        if let Some((window, _)) = &self.0 {
            window.idle_until(passes);
        }
        self.end(done, ranks)
    }

    pub(crate) fn end<T>(self, done: anyhow::Result<T>, ranks: &mut Ranks) -> anyhow::Result<T> {
        let Some((window, sums)) = self.0 else { return done };
        let failure = window.end();
        ranks.end_sums(sums)?;
        match failure {
            Some(failure) => Err(anyhow!("the weights of this rank could not be read: {failure}")),
            None => done,
        }
    }
}

struct Refresh<'a, I: Backend> {
    window: &'a mut Window<I>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Refresh<'_, B::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let matrices = &self.window.matrices;
        let mut own = matrices.segments.iter().flatten().filter(|matrix| matrix.owner == matrices.rank);
        let is_own = own.any(|matrix| matrix.id == param.id && matches!(matrix.form, Form::Numbers(_)));
        if !is_own {
            return;
        }
        let (id, param) = (param.id, param.clone());
        let value = move || Tensor::from_primitive(param.val().inner().into_primitive());
        self.window.own.insert(id, Own::Parameter(Box::new(value)));
    }
}

#[cfg(test)]
impl<I: Managed> WeightWindow<I> {
    pub(crate) fn own_bytes(&self) -> u64 {
        let window = self.lock();
        let all = window.matrices.segments.iter().flatten();
        all.filter(|matrix| window.own.contains_key(&matrix.id)).map(|matrix| matrix.bytes() as u64).sum()
    }
}
