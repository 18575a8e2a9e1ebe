//! Sums that are made beside what the program computes: the backward pass of their own step, or the step after it.
//!
//! A thread has the engine from the first of some sums to the last, so nothing else is told to other ranks meanwhile. It sums
//! in the order in which parameters are handed in, which has to be the same on all ranks. The step's own thread stands still only
//! where it waits for a sum.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use exchange::{Engine, Exact, Exchange, Pairwise};

use super::one_bit::OneBits;
use super::{LEFT, Metered, Ranks};

/// Sums on their way.
pub(crate) struct Beside {
    jobs: Sender<Job>,
    sums: Receiver<Option<Vec<f32>>>,
    thread: JoinHandle<Returned>,
    /// Time for which sums were waited for.
    stood: Cell<Duration>,
}

/// One parameter's contributions.
pub(crate) struct Job {
    pub(crate) own: Pairwise,
    /// The parameter's place in the model.
    pub(crate) place: usize,
    /// The one rank that wants the sum; all where there is none.
    pub(crate) owner: Option<usize>,
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
            for job in waiting {
                let summed = outcome.clone().and_then(|()| sum(engine.as_mut(), one_bit.as_mut(), job));
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
        let thread = thread.context("starting a thread that sums gradients")?;
        Ok(Beside { jobs, sums, thread, stood: Cell::default() })
    }

    /// Waits for all that was handed in. What has failed is told here.
    pub(crate) fn end_sums(&mut self, sums: Beside) -> anyhow::Result<()> {
        let begun = Instant::now();
        drop(sums.jobs);
        let returned = sums.thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        let Returned { engine, one_bit, outcome } = returned;
        let before = std::mem::replace(&mut self.costs, engine.costs());
        self.beside += self.costs.time.saturating_sub(before.time);
        self.waited += sums.stood.get() + begun.elapsed();
        *self.engine = Some(ManuallyDrop::into_inner(engine));
        self.one_bit = one_bit;
        self.heard(outcome).context("summing gradients over the ranks")
    }
}

impl Beside {
    /// Has contributions summed with those of other ranks.
    pub(crate) fn hand_in(&self, job: Job) {
        // After a panic nobody takes it, which is told at the end.
        _ = self.jobs.send(job);
    }

    /// Waits for the first sum that was handed in and not taken; `None` where it has failed, or one before it has. Whoever does not
    /// own the parameter gets no numbers.
    pub(crate) fn take(&self) -> Option<Vec<f32>> {
        let begun = Instant::now();
        let sum = self.sums.recv().ok().flatten();
        self.stood.set(self.stood.get() + begun.elapsed());
        sum
    }
}

fn sum(
    engine: &mut dyn Engine,
    one_bit: Option<&mut OneBits>,
    Job { own, place, owner }: Job,
) -> exchange::Result<Vec<f32>> {
    if let Some(one_bit) = one_bit.and_then(|one_bit| one_bit.of(place, own.len())) {
        return one_bit.sum(engine, own);
    }
    let Some(owner) = owner else { return Exact::default().sum(engine, own) };
    let mut parts = vec![0; engine.world()];
    parts[owner] = own.len();
    Exact::default().reduce_scatter(engine, own, &parts)
}

#[cfg(test)]
mod tests {
    use exchange::threads::{self, Threads};
    use exchange::{Alone, Costs, Counted, Error};

    use super::super::Watched;
    use super::*;

    const CALL: Duration = Duration::from_hours(1);

    /// An engine whose meter says an hour for each call.
    struct Hours(Counted<Threads>);

    impl Watched for Hours {}

    impl Metered for Hours {
        fn costs(&self) -> Costs {
            let costs = self.0.costs();
            Costs { time: CALL * costs.calls as u32, ..costs }
        }
    }

    impl Engine for Hours {
        fn rank(&self) -> usize {
            self.0.rank()
        }

        fn world(&self) -> usize {
            self.0.world()
        }

        fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<(), Error> {
            self.0.all_to_all(send, receive)
        }

        fn all_gather(&mut self, parts: &mut [&mut [u8]]) -> Result<(), Error> {
            self.0.all_gather(parts)
        }

        fn barrier(&mut self) -> Result<(), Error> {
            self.0.barrier()
        }

        fn commit(&mut self, ok: bool) -> Result<bool, Error> {
            self.0.commit(ok)
        }

        fn shrink(&mut self) -> Result<(), Error> {
            self.0.shrink()
        }
    }

    #[test]
    fn a_step_stands_still_in_its_own_calls_and_where_it_waits_for_those_beside_it() {
        threads::on_each(2, |engine| {
            let _leaves = engine.leave_later();
            let mut ranks = Ranks::over(Alone, (1, 0));
            (ranks.rank, ranks.world) = (engine.rank(), engine.world());
            *ranks.engine = Some(Box::new(Hours(Counted::new(engine))));
            let stood = |ranks: &Ranks| ranks.spent().expect("two ranks").stood;
            assert!(ranks.all(true).expect("no fault"));
            assert_eq!(stood(&ranks), CALL);
            let sums = ranks.begin_sums().expect("no fault");
            let own = Pairwise::of_sums(ranks.share(2), 1, vec![vec![1.5]]).expect("one each");
            sums.hand_in(Job { own, place: 0, owner: None });
            assert_eq!(stood(&ranks), CALL, "nobody waits");
            assert_eq!(sums.take(), Some(vec![3.0]));
            ranks.end_sums(sums).expect("no fault");
            let spent = ranks.spent().expect("two ranks");
            assert!(spent.costs.calls > 2, "sums are calls, too");
            // What was waited for is a moment, and no call of an hour.
            assert!(spent.stood > CALL && spent.stood < 2 * CALL, "{:?}", spent.stood);
            assert!(ranks.all(true).expect("no fault"));
            assert_eq!(stood(&ranks), spent.stood + CALL);
            ranks.end();
        });
    }
}
