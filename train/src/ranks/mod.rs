//! The ranks of a run: processes that share a step's micro-batches and take the same step.
//!
//! Only rank 0 saves and prints, and samples unless weights are divided. All evaluate
//! (`ranks_evaluate_together_to_the_bits_of_one`) and compare weights at the end
//! (`ranks_that_end_with_other_weights_than_rank_0_are_an_error_of_all`). Each has its own GPU
//! (`each_rank_takes_its_own_gpu_and_ends_with_the_bits_of_one`).

mod background_sums;
mod launch;
mod messages;
mod pipe;
mod state_file;
mod survival;

pub(crate) use background_sums::{BackgroundSums, Gathers, Job, Summed};
pub(crate) use launch::{RankArgs, launch};
pub(crate) use pipe::{Pipe, Route};
pub(crate) use state_file::{Kept, Pair, Pairs, SavedAt};
pub(crate) use survival::Loss;

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use exchange::launch::Place;
use exchange::{Alone, Costs, Counted, Engine, Share, Watchdog};
use runs::BadInput;
use runs::directory::RunDirectory;

use crate::stages::refusal;
use survival::Failures;

/// Bytes that share a round, for each rank.
pub(crate) const BUCKET_BYTES: usize = 4 << 20;

const LEFT: &str = "these ranks have been left";

trait Metered: Engine {
    fn costs(&self) -> Costs;
}

impl<E: Engine> Metered for Counted<E> {
    fn costs(&self) -> Costs {
        Self::costs(self)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Includes background sums.
    pub(crate) costs: Costs,
    /// Time that the training thread waited.
    pub(crate) stood: Duration,
}

struct Layout {
    /// Ranks on this host, and this one's index among them.
    local: (usize, usize),
    /// Ranks on each host, if all have equally many with consecutive numbers; else 1.
    of_each: usize,
    /// Stages of each pipeline: rank `stages * n + s` has stage `s` of pipeline `n`.
    stages: usize,
}

pub(crate) struct Ranks {
    /// `None` after [`Ranks::end`] and in background sums.
    engine: ManuallyDrop<Option<Box<dyn Metered>>>,
    rank: usize,
    world: usize,
    survives: bool,
    failures: Failures,
    /// The engine's costs when this thread last had it.
    costs: Costs,
    /// Time of background calls, and of waits for them.
    in_background: Duration,
    waited: Duration,
    layout: Layout,
    watchdog: Option<Watchdog>,
}

impl Ranks {
    pub(crate) fn alone() -> Self {
        Self::over(Alone, (1, 0))
    }

    fn over(engine: impl Engine + 'static, local: (usize, usize)) -> Self {
        let engine: Box<dyn Metered> = Box::new(Counted::new(engine));
        Self {
            rank: engine.rank(),
            world: engine.world(),
            survives: engine.survives(),
            costs: engine.costs(),
            engine: ManuallyDrop::new(Some(engine)),
            failures: Failures::default(),
            in_background: Duration::ZERO,
            waited: Duration::ZERO,
            layout: Layout { local, of_each: 1, stages: 1 },
            watchdog: None,
        }
    }

    /// Leaves MPI. Only after success: failed and other ranks would wait for each other.
    pub(crate) fn end(mut self) {
        drop(self.engine.take());
    }

    fn engine(&mut self) -> anyhow::Result<&mut dyn Metered> {
        let engine = self.engine.as_deref_mut().context(LEFT)?;
        Ok(engine)
    }

    pub(crate) fn open() -> anyhow::Result<Self> {
        launch::found()?.map_or_else(|| Ok(Self::alone()), Self::over_mpi)
    }

    /// Ends the run after a longer wait for a rank. Call it at step 1: rank 0 may prepare data for hours.
    pub(crate) fn watch(&mut self, patience: Duration) {
        self.watchdog = self.engine.as_ref().and_then(|engine| engine.watchdog(patience));
    }

    /// No wait ends the run until the next [`watch`](Self::watch).
    pub(crate) fn unwatch(&mut self) {
        self.watchdog = None;
    }

    /// Announces that rank 0 works alone: the others' next call may last for any time.
    pub(crate) fn expect_work_of_lead(&self) {
        if !self.leads() {
            self.expect_work(Duration::MAX);
        }
    }

    /// Other ranks may come so much later to the next call.
    pub(crate) fn expect_work(&self, time: Duration) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.allow_next_call(time);
        }
    }

    /// Whether this rank is known to share a host with rank 0.
    pub(crate) fn is_beside_lead(&self) -> bool {
        self.rank < self.layout.of_each
    }

    #[cfg(unix)]
    fn over_mpi(place: Place) -> anyhow::Result<Self> {
        let engine = exchange::Mpi::open().context("joining the other ranks")?;
        place.agrees_with(&engine)?;
        let mut ranks = Self::over(engine, (place.local_world, place.local_rank));
        ranks.find_hosts()?;
        Ok(ranks)
    }

    #[cfg(not(unix))]
    fn over_mpi(place: Place) -> anyhow::Result<Self> {
        anyhow::bail!("{} ranks were started, and this system's MPI is not known", place.world)
    }

    /// `None` with one rank.
    pub(crate) fn spent(&self) -> Option<Spent> {
        let costs = self.engine.as_ref().map_or(self.costs, |engine| engine.costs());
        let stood = costs.time.saturating_sub(self.in_background) + self.waited;
        (!self.is_alone()).then_some(Spent { costs, stood })
    }

    pub(crate) fn world(&self) -> usize {
        self.world
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.world() == 1
    }

    pub(crate) fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Sums cross the network once per host if ranks know who shares one.
    fn find_hosts(&mut self) -> anyhow::Result<()> {
        let (on_host, number) = self.layout.local;
        let is_in_turn = number == self.rank % on_host.max(1);
        let own = (if is_in_turn { on_host as u64 } else { 0 }).to_le_bytes();
        let all = self.gathered(&own)?;
        let are_alike = is_in_turn && all.iter().all(|theirs| *theirs == own);
        self.layout.of_each = if are_alike { on_host } else { 1 };
        Ok(())
    }

    pub(crate) fn exact(&self) -> exchange::Exact {
        exchange::Exact::default().on_hosts_of(self.layout.of_each)
    }

    pub(crate) fn local(&self) -> (usize, usize) {
        self.layout.local
    }

    /// The directory that rank 0 finds.
    pub(crate) fn same_directory(
        &mut self,
        out: Option<&Path>,
        find: impl Fn(Option<&Path>) -> anyhow::Result<RunDirectory>,
    ) -> anyhow::Result<RunDirectory> {
        let mut found = None;
        let path = self.led(|| {
            let directory = found.insert(find(out)?);
            let path =
                directory.path.to_str().context("a path that is not UTF-8 cannot be sent to other ranks")?;
            Ok(path.as_bytes().to_owned())
        })?;

        if let Some(found) = found {
            return Ok(found);
        }
        let path = PathBuf::from(String::from_utf8(path).context("reading rank 0's directory")?);

        // A resumed run is found by name; rank 0 creates a new one.
        let mut directory = find(out).or_else(|_| find(Some(&path)))?;
        directory.path = path;
        Ok(directory)
    }

    /// The run's directory on rank 0, a directory within it on others.
    pub(crate) fn folder(&self, run: &Path) -> PathBuf {
        if self.leads() { run.to_owned() } else { run.join("ranks").join(self.rank().to_string()) }
    }

    /// Refuses ranks with another device kind or version: results would differ.
    pub(crate) fn must_be_alike(&mut self, device: &str) -> anyhow::Result<()> {
        let own = format!("{device} with version {}", env!("CARGO_PKG_VERSION"));
        let all = self.gathered(own.as_bytes())?;
        let Some(other) = all.iter().position(|theirs| *theirs != all[0]) else { return Ok(()) };
        let device_of = |rank: usize| String::from_utf8_lossy(&all[rank]).into_owned();
        Err(BadInput(format!(
            "rank 0 works on {} and rank {other} on {}; all have to be alike to end with the same numbers. Name a --device that \
             every rank has, or start fewer with --ranks",
            device_of(0),
            device_of(other)
        ))
        .into())
    }

    pub(crate) fn must_have_same_weights(&mut self, digest: &str) -> anyhow::Result<()> {
        let theirs = self.led(|| Ok(digest.as_bytes().to_owned()))?;
        let same = self.all_succeeded(theirs == digest.as_bytes())?;
        ensure!(same, "the ranks ended with different weights: their devices compute differently");
        Ok(())
    }

    /// Equal on all stages of a pipeline.
    pub(crate) fn share(&self, count: usize) -> Share {
        let stages = self.stages();
        Share { count: count as u64, world: self.world() / stages, rank: self.rank() / stages }
    }

    pub(crate) fn divide(&mut self, stages: usize) -> anyhow::Result<()> {
        self.layout.stages = if self.is_alone() { 1 } else { stages };
        refusal(self.world(), stages).map_or(Ok(()), |refusal| Err(BadInput(refusal).into()))
    }

    pub(crate) fn stages(&self) -> usize {
        self.layout.stages
    }

    pub(crate) fn form_pipelines(&self) -> bool {
        self.stages() > 1
    }

    pub(crate) fn stage(&self) -> usize {
        self.rank() % self.stages()
    }

    pub(crate) fn of_same_stage(&self) -> Vec<usize> {
        (self.stage()..self.world()).step_by(self.stages()).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread::sleep;

    use anyhow::anyhow;
    use exchange::threads::{self, Fault, Threads};

    use super::*;
    use crate::exit::is_bad_input;

    static EXPIRED: AtomicUsize = AtomicUsize::new(0);

    impl Ranks {
        /// As under release 4 of Open MPI.
        pub(crate) fn without_survivors(&mut self) {
            self.survives = false;
        }

        pub(crate) fn watch_by(&mut self, watchdog: Watchdog) {
            self.watchdog = Some(watchdog);
        }
    }

    /// Runs `work` on threads that own their `Ranks`. A rank leaves when `work` returns or panics.
    pub(crate) fn on_each_with_its_own<T: Send>(
        world: usize,
        change: impl Fn(Threads) -> Threads + Sync,
        work: impl Fn(Ranks) -> T + Sync,
    ) -> Vec<T> {
        threads::on_each(world, |engine| {
            let _leaves = engine.leave_later();
            work(Ranks::over(change(engine), (1, 0)))
        })
    }

    /// Runs `work` on threads. A rank that panics leaves.
    pub(crate) fn on_each<T: Send>(world: usize, work: impl Fn(&mut Ranks) -> T + Sync) -> Vec<T> {
        on_each_of(world, |engine| engine, work)
    }

    pub(crate) fn on_each_of<T: Send>(
        world: usize,
        change: impl Fn(Threads) -> Threads + Sync,
        work: impl Fn(&mut Ranks) -> T + Sync,
    ) -> Vec<T> {
        threads::on_each(world, |engine| {
            let mut ranks = Ranks::over(change(engine), (1, 0));
            let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut ranks)));
            ranks.end();
            outcome.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    #[test]
    fn survivors_wait_for_announced_work_of_rank_0_beyond_their_patience() {
        static EXPIRED: AtomicUsize = AtomicUsize::new(0);
        threads::on_each(3, |engine| {
            let expired = |_| _ = EXPIRED.fetch_add(1, Ordering::Relaxed);
            let watchdog = Watchdog::start(engine.waiting(), Duration::from_millis(200), expired);
            let engine = if engine.rank() == 1 { engine.with_fault(0, Fault::Die) } else { engine };
            let _leaves = engine.leave_later();
            let mut ranks = Ranks::over(engine, (1, 0));
            ranks.watch_by(watchdog);
            ranks.expect_work_of_lead();
            if ranks.leads() {
                sleep(Duration::from_secs(1));
            }
            let failed = ranks.gathered_alike(0_u8).is_err();
            if ranks.rank() != 1 {
                assert!(failed, "rank 1 is gone");
                ranks.drop_lost_ranks().expect("rank 0 lives");
            }
            ranks.end();
        });
        assert_eq!(EXPIRED.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ranks_that_were_told_wait_for_work_of_rank_0_beyond_their_patience() {
        let expired = |announced: bool| {
            let before = EXPIRED.load(Ordering::Relaxed);
            threads::on_each(2, |engine| {
                let expired = |_| _ = EXPIRED.fetch_add(1, Ordering::Relaxed);
                let watchdog = Watchdog::start(engine.waiting(), Duration::from_millis(200), expired);
                let mut ranks = Ranks::over(engine, (1, 0));
                ranks.watchdog = Some(watchdog);
                if announced {
                    ranks.expect_work_of_lead();
                }
                if ranks.leads() {
                    sleep(Duration::from_secs(1));
                }
                let agreed = ranks.all_succeeded(true);
                ranks.end();
                agreed.expect("no fault")
            });
            EXPIRED.load(Ordering::Relaxed) - before
        };
        assert_eq!((expired(true), expired(false)), (0, 1));
    }

    #[test]
    fn ranks_add_within_hosts_that_have_equally_many_with_consecutive_numbers() {
        // By rank: the ranks of its host, and its number among them.
        let cases: [(&[(usize, usize)], usize); 6] = [
            (&[(2, 0), (2, 1), (2, 0), (2, 1)], 2),
            (&[(4, 0), (4, 1), (4, 2), (4, 3)], 4),
            (&[(1, 0), (1, 0), (1, 0)], 1),
            // One after the other on two hosts.
            (&[(2, 0), (2, 0), (2, 1), (2, 1)], 1),
            (&[(3, 0), (3, 1), (3, 2), (1, 0)], 1),
            (&[(1, 0), (2, 0), (2, 1)], 1),
        ];
        for (places, expected) in cases {
            let found = on_each(places.len(), |ranks| {
                ranks.layout.local = places[ranks.rank()];
                ranks.find_hosts().expect("no fault");
                ranks.layout.of_each
            });
            assert!(found.iter().all(|of_each| *of_each == expected), "{places:?}: {found:?}");
        }
    }

    #[test]
    fn ranks_that_know_of_a_failure_end_after_rank_0() {
        let has_saved = AtomicBool::new(false);
        on_each(3, |ranks| {
            ranks.without_survivors();
            assert!(ranks.all_succeeded(true).expect("no fault") && !ranks.all_know_failure());
            let own = if ranks.rank() == 1 { Err(anyhow!("no memory")) } else { Ok(vec![0_u8]) };
            ranks.joined(own).expect_err("rank 1 has failed");
            assert!(ranks.all_know_failure() && !ranks.have_failed());
            if ranks.leads() {
                sleep(Duration::from_millis(200));
                has_saved.store(true, Ordering::Relaxed);
            }
            ranks.wait_for_lead();
            assert!(has_saved.load(Ordering::Relaxed), "rank {} ends too early", ranks.rank());
        });
    }

    #[test]
    fn a_vote_that_says_no_drops_no_rank() {
        let losses = on_each(2, |ranks| {
            assert!(!ranks.all_succeeded(ranks.leads()).expect("no fault"));
            ranks.drop_lost_ranks().expect("no fault")
        });
        assert_eq!(losses, [None, None]);
    }

    #[test]
    fn ranks_on_other_devices_are_refused_by_all() {
        let names = ["a card", "a card", "the CPU"];
        assert!(on_each(2, |ranks| ranks.must_be_alike(names[ranks.rank()])).iter().all(Result::is_ok));
        for outcome in on_each(3, |ranks| ranks.must_be_alike(names[ranks.rank()])) {
            let error = outcome.expect_err("they differ");
            assert!(is_bad_input(&error) && error.to_string().contains("rank 2 on the CPU"), "{error}");
        }
    }

    #[test]
    fn ranks_that_end_with_other_weights_than_rank_0_are_an_error_of_all() {
        let digests = ["one", "one", "another"];
        let end = |world| on_each(world, |ranks| ranks.must_have_same_weights(digests[ranks.rank()]));
        assert!([1, 2].into_iter().flat_map(end).all(|outcome| outcome.is_ok()));
        for outcome in end(3) {
            let error = outcome.expect_err("rank 2 has others");
            assert!(error.to_string().contains("different weights") && !is_bad_input(&error), "{error}");
        }
    }

    #[test]
    fn everybody_hears_rank_0_and_has_all_losses_in_order() {
        for world in [1, 2, 3] {
            let heard = on_each(world, |ranks| {
                let told = ranks.led(|| Ok(b"begin".to_vec())).expect("no fault");
                let failed = ranks.led(|| anyhow::bail!("no room")).expect_err("rank 0 fails").to_string();
                assert_eq!(failed.contains("no room"), ranks.leads(), "{failed}");
                let refused = ranks.led(|| Err(BadInput("no such file".to_owned()).into()));
                assert!(is_bad_input(&refused.expect_err("rank 0 refuses")));
                let own = ranks.share(5).range().map(|n| n as f32).collect();
                let all = ranks.all_succeeded(ranks.rank() != 1).expect("no fault");
                let gathered = ranks.gathered(&vec![7; ranks.rank() * 3]).expect("no fault");
                assert!(gathered.iter().enumerate().all(|(rank, bytes)| *bytes == vec![7; rank * 3]));
                (told, ranks.losses(own, 5).expect("no fault"), all)
            });
            for (told, losses, all) in heard {
                assert_eq!((told.as_slice(), losses), (&b"begin"[..], vec![0.0, 1.0, 2.0, 3.0, 4.0]));
                assert_eq!(all, world == 1, "rank 1 says no");
            }
        }
    }
}
