//! Sums that are made beside what the program computes: the backward pass of their own step, or the step after it.
//!
//! A thread has the engine from the first of some sums to the last, so nothing else is told to other ranks meanwhile. It sums
//! in the order in which parameters are handed in, which has to be the same on all ranks.

use std::mem::ManuallyDrop;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use exchange::{Engine, Exact, Exchange, Pairwise};

use super::one_bit::OneBits;
use super::{LEFT, Metered, Ranks};

/// Sums on their way.
pub(crate) struct Beside {
    jobs: Sender<Job>,
    sums: Receiver<Option<Vec<f32>>>,
    thread: JoinHandle<Returned>,
}

/// One parameter's contributions, and the one rank that wants their sum.
struct Job {
    own: Pairwise,
    owner: Option<usize>,
}

struct Returned {
    /// Not left with a run that fails: see [`Ranks::end`].
    engine: ManuallyDrop<Box<dyn Metered>>,
    one_bit: Option<OneBits>,
    outcome: exchange::Result<()>,
}

impl Ranks {
    /// Begins sums. Until they [end](Self::end_sums) nothing else can be told.
    pub(crate) fn begin_sums(&mut self) -> anyhow::Result<Beside> {
        self.engine()?;
        let engine = self.engine.take().context(LEFT)?;
        self.costs = engine.costs();
        let mut engine = ManuallyDrop::new(engine);
        let mut one_bit = self.one_bit.take();
        let (jobs, waiting) = channel::<Job>();
        let (done, sums) = channel();
        let summing = move || {
            let mut outcome = Ok(());
            for Job { own, owner } in waiting {
                let summed =
                    outcome.clone().and_then(|()| sum(engine.as_mut(), one_bit.as_mut(), own, owner));
                let numbers = match summed {
                    Ok(numbers) => Some(numbers),
                    Err(error) => {
                        outcome = Err(error);
                        None
                    }
                };
                // Whoever does not wait any more has failed itself.
                _ = done.send(numbers);
            }
            Returned { engine, one_bit, outcome }
        };
        let thread = thread::Builder::new().name("sums".to_owned()).spawn(summing);
        Ok(Beside { jobs, sums, thread: thread.context("starting a thread that sums gradients")? })
    }

    /// Waits for all that was handed in. What has failed is told here.
    pub(crate) fn end_sums(&mut self, sums: Beside) -> anyhow::Result<()> {
        drop(sums.jobs);
        let returned = sums.thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        let Returned { engine, one_bit, outcome } = returned;
        self.costs = engine.costs();
        *self.engine = Some(ManuallyDrop::into_inner(engine));
        self.one_bit = one_bit;
        self.heard(outcome).context("summing gradients over the ranks")
    }
}

impl Beside {
    /// Sums `own` with the contributions of other ranks, for all of them or for their one `owner`.
    pub(crate) fn hand_in(&self, own: Pairwise, owner: Option<usize>) {
        // After a panic nobody takes it, which is told at the end.
        _ = self.jobs.send(Job { own, owner });
    }

    /// Waits for the first sum that was handed in and not taken; `None` where it has failed, or one before it has. Whoever does not
    /// own the parameter gets no numbers.
    pub(crate) fn take(&self) -> Option<Vec<f32>> {
        self.sums.recv().ok().flatten()
    }
}

fn sum(
    engine: &mut dyn Engine,
    one_bit: Option<&mut OneBits>,
    own: Pairwise,
    owner: Option<usize>,
) -> exchange::Result<Vec<f32>> {
    if let Some(one_bit) = one_bit.and_then(|one_bit| one_bit.next(own.len())) {
        return one_bit.sum(engine, own);
    }
    let Some(owner) = owner else { return Exact::default().sum(engine, own) };
    let mut parts = vec![0; engine.world()];
    parts[owner] = own.len();
    Exact::default().reduce_scatter(engine, own, &parts)
}
