//! A thread that does jobs in order, and their tickets.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

pub(super) type Ticket<E> = Arc<OnceLock<Result<E, String>>>;

/// A drop waits for all jobs.
#[derive(Debug)]
pub(super) struct Worker<J, E> {
    jobs: Option<Sender<(J, Promise<E>)>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Promise<E>(Ticket<E>);

impl<E> Drop for Promise<E> {
    fn drop(&mut self) {
        _ = self.0.set(Err("the thread that copies has ended".to_owned()));
    }
}

impl<J: Send + 'static, E: Send + Sync + 'static> Worker<J, E> {
    /// `begin` runs on the thread. `None` if it fails, or without a thread.
    pub fn start<W>(name: &str, begin: impl FnOnce() -> Option<W> + Send + 'static) -> Option<Self>
    where
        W: FnMut(J) -> Result<E, String> + 'static,
    {
        let (jobs, waiting): (_, Receiver<(J, Promise<E>)>) = channel();
        let (answer, has_begun) = channel();
        let run = move || {
            let begun = begin();
            let _asked = answer.send(begun.is_some());
            let Some(mut work) = begun else { return };
            for (job, promise) in waiting {
                let end = work(job);
                _ = promise.0.set(end);
            }
        };
        let thread = Builder::new().name(name.to_owned()).spawn(run).ok()?;
        let worker = Self { jobs: Some(jobs), thread: Some(thread) };
        has_begun.recv().unwrap_or(false).then_some(worker)
    }

    pub fn submit(&self, job: J) -> Ticket<E> {
        let ticket = Ticket::default();
        let promise = Promise(ticket.clone());
        if let Some(jobs) = &self.jobs {
            _ = jobs.send((job, promise));
        }
        ticket
    }
}

impl<J, E> Drop for Worker<J, E> {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(job: u64) -> Result<u64, String> {
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert_ne!(job, 13, "a job that panics");
        if job == 7 { Err("seven".to_owned()) } else { Ok(job) }
    }

    fn worker() -> Worker<u64, u64> {
        Worker::start("test", || Some(slow)).expect("a thread")
    }

    #[test]
    fn a_worker_that_is_dropped_does_its_jobs_first() {
        let worker = worker();
        let tickets: Vec<_> = [5, 7, 9].into_iter().map(|job| worker.submit(job)).collect();
        drop(worker);
        let ends = tickets.iter().map(|ticket| ticket.get().cloned());
        assert!(ends.eq([Some(Ok(5)), Some(Err("seven".to_owned())), Some(Ok(9))]));
    }

    #[test]
    fn jobs_of_a_worker_that_panics_fail_and_nobody_waits_for_ever() {
        let worker = worker();
        let tickets: Vec<_> = [5, 13, 9].into_iter().map(|job| worker.submit(job)).collect();
        assert_eq!(tickets[0].wait(), &Ok(5));
        assert!(tickets[1].wait().is_err() && tickets[2].wait().is_err());
        assert!(worker.submit(3).wait().is_err());
    }

    #[test]
    fn a_worker_that_cannot_begin_is_none() {
        assert!(Worker::<u64, u64>::start("test", || None::<fn(u64) -> Result<u64, String>>).is_none());
        let panics = || -> Option<fn(u64) -> Result<u64, String>> { panic!("no context") };
        assert!(Worker::start("test", panics).is_none());
    }
}
