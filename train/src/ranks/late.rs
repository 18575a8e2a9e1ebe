//! Sums that are under way beside the next step's arithmetic.
//!
//! A thread has the engine for as long as it sums. Whatever else is to be told to other ranks waits for it, so all ranks make
//! their calls in one order.

use std::mem::ManuallyDrop;
use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};

use anyhow::{Context, ensure};
use exchange::{Exact, Exchange, Pairwise};

use super::Metered;

/// One sum per parameter.
pub(crate) type Sums = Vec<Vec<f32>>;

/// Sums of at most one step, and the wish that is told before they begin.
#[derive(Default)]
pub(super) struct Late {
    under_way: Option<JoinHandle<Returned>>,
    landed: Option<Sums>,
    pub(super) wishes_to_stop: bool,
    pub(super) stops: bool,
}

struct Returned {
    /// Not left with a run that fails: see [`Ranks::end`](super::Ranks::end).
    engine: ManuallyDrop<Box<dyn Metered>>,
    sums: exchange::Result<Sums>,
}

impl Late {
    /// Sums `own` beside what the caller does next, with an engine that comes back as the sums land.
    pub(super) fn start(&mut self, engine: Box<dyn Metered>, own: Vec<Pairwise>) -> anyhow::Result<()> {
        let mut engine = ManuallyDrop::new(engine);
        ensure!(self.landed.is_none() && self.under_way.is_none(), "sums of two steps are under way");
        let summing = move || {
            let each = own.into_iter().map(|own| Exact::default().sum(engine.as_mut(), own));
            let sums = each.collect();
            Returned { engine, sums }
        };
        let thread = thread::Builder::new().name("late sums".to_owned()).spawn(summing);
        self.under_way = Some(thread.context("starting a thread that sums gradients")?);
        Ok(())
    }

    /// Waits for the sums that are under way; the engine, where there were any.
    pub(super) fn land(&mut self) -> Option<(Box<dyn Metered>, anyhow::Result<()>)> {
        let returned = self.under_way.take()?.join();
        let Returned { engine, sums } = returned.unwrap_or_else(|panic| resume_unwind(panic));
        let outcome = sums.context("summing gradients over the ranks beside a step");
        let outcome = outcome.map(|sums| self.landed = Some(sums));
        Some((ManuallyDrop::into_inner(engine), outcome))
    }

    /// The sums that have landed, once.
    pub(super) fn take(&mut self) -> Option<Sums> {
        self.landed.take()
    }
}
