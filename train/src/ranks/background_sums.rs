//! Sums over ranks, and gathers of what ranks own, on a thread during the passes.
//!
//! The thread has the engine, so no other call is possible meanwhile. A failed run never leaves MPI: others would wait
//! (`a_rank_that_fails_keeps_no_other_waiting`).

use std::mem::ManuallyDrop;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use exchange::{Engine, Pairwise};

use super::{LEFT, Metered, Ranks};

pub(crate) struct BackgroundSums {
    calls: Sender<Call>,
    sums: Receiver<Option<Vec<f32>>>,
    gathered: Option<Receiver<Option<Vec<u8>>>>,
    thread: JoinHandle<Returned>,
    stood: Stood,
}

pub(crate) struct Gathers {
    calls: Sender<Call>,
    gathered: Receiver<Option<Vec<u8>>>,
    stood: Stood,
}

enum Call {
    Sum(Job),
    /// See [`exchange::Exact::gather_owned`].
    Gather {
        bytes: Vec<u8>,
        owned: Vec<usize>,
    },
    End,
}

/// Nanoseconds, shared by clones.
#[derive(Clone, Default)]
struct Stood(Arc<AtomicU64>);

impl Stood {
    fn wait_for<T>(&self, calls: &Receiver<Option<T>>) -> Option<T> {
        let begun = Instant::now();
        let result = calls.recv().ok().flatten();
        self.0.fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
        result
    }
}

pub(crate) struct Job {
    pub(crate) own: Pairwise,
    /// The parameter's index in the model.
    pub(crate) place: usize,
    /// The rank that receives the sum; `None` for all.
    pub(crate) owner: Option<usize>,
    /// The bucket is summed now.
    pub(crate) ends_bucket: bool,
}

pub(crate) type Summed = exchange::Result<Vec<Vec<f32>>>;

pub(super) struct Returned {
    pub(super) engine: ManuallyDrop<Box<dyn Metered>>,
    pub(super) outcome: exchange::Result<()>,
}

impl Ranks {
    pub(crate) fn begin_gathers(&mut self) -> anyhow::Result<BackgroundSums> {
        self.begin_sums(|_, bucket| Ok(vec![Vec::new(); bucket.len()]))
    }

    pub(crate) fn begin_sums(
        &mut self,
        mut sum: impl FnMut(&mut dyn Engine, Vec<Job>) -> Summed + Send + 'static,
    ) -> anyhow::Result<BackgroundSums> {
        let exact = self.exact();
        let engine = self.engine.take().context(LEFT)?;
        self.costs = engine.costs();
        let mut engine = ManuallyDrop::new(engine);
        let (calls, waiting) = channel();
        let (done, sums) = channel();
        let (filled, gathered) = channel();
        let summing = move || {
            let (mut outcome, mut bucket) = (Ok(()), Vec::new());
            for call in waiting {
                let job = match call {
                    Call::Sum(job) => job,
                    Call::Gather { mut bytes, owned } => {
                        outcome =
                            outcome.and_then(|()| exact.gather_owned(engine.as_mut(), &mut bytes, &owned));
                        _ = filled.send(outcome.is_ok().then_some(bytes));
                        continue;
                    }
                    Call::End => break,
                };
                let is_whole = job.ends_bucket;
                bucket.push(job);
                if !is_whole {
                    continue;
                }
                let bucket = std::mem::take(&mut bucket);
                let count = bucket.len();
                let summed = outcome.clone().and_then(|()| sum(engine.as_mut(), bucket));
                let sums = match summed {
                    Ok(sums) => sums.into_iter().map(Some).collect(),
                    Err(error) => {
                        outcome = Err(error);
                        vec![None; count]
                    }
                };
                // A receiver that is gone has failed.
                for sum in sums {
                    _ = done.send(sum);
                }
            }
            Returned { engine, outcome }
        };

        let thread = thread::Builder::new().name("sums".to_owned()).spawn(summing);
        let thread = thread.context("starting a thread that sums gradients")?;
        Ok(BackgroundSums { calls, sums, gathered: Some(gathered), thread, stood: Stood::default() })
    }

    /// Fails with the first error.
    pub(crate) fn end_sums(&mut self, sums: BackgroundSums) -> anyhow::Result<()> {
        let begun = Instant::now();
        _ = sums.calls.send(Call::End);
        let stood = Duration::from_nanos(sums.stood.0.load(Relaxed));
        self.take_back(sums.thread, (stood, begun)).context("summing gradients over the ranks")
    }

    /// `stood` was waited before `begun`.
    pub(super) fn take_back(
        &mut self,
        thread: JoinHandle<Returned>,
        (stood, begun): (Duration, Instant),
    ) -> exchange::Result<()> {
        let Returned { engine, outcome } = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        let before = std::mem::replace(&mut self.costs, engine.costs());
        self.in_background += self.costs.time.saturating_sub(before.time);
        self.waited += stood + begun.elapsed();
        *self.engine = Some(ManuallyDrop::into_inner(engine));
        self.note_failed_call(outcome)
    }
}

impl BackgroundSums {
    pub(crate) fn submit(&self, job: Job) {
        // Sending fails after a panic of the thread; `end_sums` reports it.
        _ = self.calls.send(Call::Sum(job));
    }

    /// Panics if called twice.
    pub(crate) fn gathers(&mut self) -> Gathers {
        let gathered = self.gathered.take().expect("one caller gathers");
        Gathers { calls: self.calls.clone(), gathered, stood: self.stood.clone() }
    }

    /// Waits for the next sum, whose bucket must be whole. `None` after a failure; empty on ranks that do not own the
    /// parameter.
    pub(crate) fn take(&self) -> Option<Vec<f32>> {
        self.stood.wait_for(&self.sums)
    }
}

impl Gathers {
    pub(crate) fn request(&self, bytes: Vec<u8>, owned: Vec<usize>) {
        _ = self.calls.send(Call::Gather { bytes, owned });
    }

    /// In the order of requests; `None` after a failure.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        self.stood.wait_for(&self.gathered)
    }
}

#[cfg(test)]
mod tests {
    use exchange::threads::{self, Threads};
    use exchange::{Alone, Costs, Counted, Error, Exact};

    use super::*;

    const CALL: Duration = Duration::from_hours(1);

    struct Hours(Counted<Threads>);

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
            assert!(ranks.all_succeeded(true).expect("no fault"));
            assert_eq!(stood(&ranks), CALL);
            let exact = |engine: &mut dyn Engine, mut bucket: Vec<Job>| {
                Exact::default().sum(engine, bucket.remove(0).own).map(|sum| vec![sum])
            };
            let sums = ranks.begin_sums(exact).expect("no fault");
            let own = Pairwise::of_sums(ranks.share(2), 1, vec![vec![1.5]]).expect("one each");
            sums.submit(Job { own, place: 0, owner: None, ends_bucket: true });
            assert_eq!(stood(&ranks), CALL, "nobody waits");
            assert_eq!(sums.take(), Some(vec![3.0]));
            ranks.end_sums(sums).expect("no fault");
            let spent = ranks.spent().expect("two ranks");
            assert!(spent.costs.calls > 2, "sums are calls, too");
            // Only waits count, not the hour of calls.
            assert!(spent.stood > CALL && spent.stood < 2 * CALL, "{:?}", spent.stood);
            assert!(ranks.all_succeeded(true).expect("no fault"));
            assert_eq!(stood(&ranks), spent.stood + CALL);
            ranks.end();
        });
    }
}
