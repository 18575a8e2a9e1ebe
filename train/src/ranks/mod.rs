//! The ranks of a run: processes that compute a step's micro-batches together and then take the same step each.
//!
//! Every rank has the whole model and sees the same losses, the same norm and the same verdict, to the bit; so nothing but
//! gradients, losses and the wish to stop needs to be agreed on. Rank 0 leads: it alone evaluates, samples, saves and prints.

mod launch;
mod one_bit;
mod residuals;

pub(crate) use launch::{RankArgs, launch};
pub(crate) use residuals::SavedAt;

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use exchange::launch::Place;
use exchange::{Alone, Costs, Counted, Engine, Exact, Exchange, Pairwise, Share, Watchdog};
use runs::BadInput;
use runs::config::{Config, ExchangeKind, RanksSection};
use runs::directory::RunDirectory;

use crate::exit::is_bad_input;
use one_bit::OneBits;

/// An engine that can be watched for ranks that do not arrive, where another process can fail to.
trait Watched: Engine {
    fn watchdog(&self, _patience: Duration) -> Option<Watchdog> {
        None
    }
}

impl Watched for Alone {}

#[cfg(unix)]
impl Watched for exchange::Mpi {
    fn watchdog(&self, patience: Duration) -> Option<Watchdog> {
        Some(Self::watchdog(self, patience))
    }
}

/// An engine with a meter.
trait Metered: Watched {
    fn costs(&self) -> Costs;
}

impl<E: Watched> Watched for Counted<E> {
    fn watchdog(&self, patience: Duration) -> Option<Watchdog> {
        self.engine().watchdog(patience)
    }
}

impl<E: Watched> Metered for Counted<E> {
    fn costs(&self) -> Costs {
        Self::costs(self)
    }
}

/// How rank 0's work ended. All ranks end alike, since a launcher returns the code of whichever ends first.
const SUCCEEDED: u8 = 0;
const WAS_ASKED_WRONGLY: u8 = 1;
const FAILED: u8 = 2;

/// This process among those of its run.
pub(crate) struct Ranks {
    /// Until it is left: see [`Ranks::end`].
    engine: ManuallyDrop<Box<dyn Metered>>,
    exact: Exact,
    /// Exchanges of gradients where they are compressed.
    one_bit: Option<OneBits>,
    /// Ranks on this host, which share its memory, and the number of this one among them.
    local: (usize, usize),
    watchdog: Option<Watchdog>,
}

impl Ranks {
    /// The only one.
    pub(crate) fn alone() -> Self {
        Self::over(Alone, (1, 0))
    }

    fn over(engine: impl Watched + 'static, local: (usize, usize)) -> Self {
        let engine: Box<dyn Metered> = Box::new(Counted::new(engine));
        let engine = ManuallyDrop::new(engine);
        Self { engine, exact: Exact::default(), one_bit: None, local, watchdog: None }
    }

    /// Leaves the others, once all have come to the end. A process that ends otherwise must not: it would wait for the others, who
    /// wait for it, where its launcher ends them.
    pub(crate) fn end(mut self) {
        let left: Box<dyn Metered> = Box::new(Counted::new(Alone));
        drop(ManuallyDrop::into_inner(std::mem::replace(&mut self.engine, ManuallyDrop::new(left))));
    }

    /// The ranks that a launcher has started; a world of one where none has.
    pub(crate) fn open() -> anyhow::Result<Self> {
        launch::found()?.map_or_else(|| Ok(Self::alone()), Self::over_mpi)
    }

    /// Ends the run, from here on, when one rank waits for another for longer than this. Before the first step rank 0 may
    /// prepare data for hours.
    pub(crate) fn watch(&mut self, patience: Duration) {
        self.watchdog = self.engine.watchdog(patience);
    }

    #[cfg(unix)]
    fn over_mpi(place: Place) -> anyhow::Result<Self> {
        let engine = exchange::Mpi::open().context("joining the other ranks")?;
        place.agrees_with(&engine)?;
        Ok(Self::over(engine, (place.local_world, place.local_rank)))
    }

    #[cfg(not(unix))]
    fn over_mpi(place: Place) -> anyhow::Result<Self> {
        anyhow::bail!("{} ranks were started, and this system's MPI is not known", place.world)
    }

    /// Bytes and time of the exchange with other ranks so far; `None` in a world of one.
    pub(crate) fn costs(&self) -> Option<Costs> {
        (!self.is_alone()).then(|| self.engine.costs())
    }

    pub(crate) fn world(&self) -> usize {
        self.engine.world()
    }

    pub(crate) fn rank(&self) -> usize {
        self.engine.rank()
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.world() == 1
    }

    pub(crate) fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Ranks on this host, and the number of this one among them.
    pub(crate) fn local(&self) -> (usize, usize) {
        self.local
    }

    /// The directory that rank 0 finds, as every rank sees it.
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
        // A run that was named goes on where it is; any other is where rank 0 makes it.
        let mut directory = find(out).or_else(|_| find(Some(&path)))?;
        directory.path = path;
        Ok(directory)
    }

    /// Where this rank writes down its own steps: rank 0 in the run's directory, the others in one each within it.
    pub(crate) fn folder(&self, run: &Path) -> PathBuf {
        if self.leads() { run.to_owned() } else { run.join("ranks").join(self.rank().to_string()) }
    }

    /// Refuses ranks that would not end with the same numbers, or not end: on devices of another kind, or of another program.
    pub(crate) fn must_be_alike(&mut self, device: &str) -> anyhow::Result<()> {
        let own = format!("{device} with version {}", env!("CARGO_PKG_VERSION"));
        let all = self.gathered(own.as_bytes())?;
        let Some(other) = all.iter().position(|told| *told != all[0]) else { return Ok(()) };
        let told = |rank: usize| String::from_utf8_lossy(&all[rank]).into_owned();
        Err(BadInput(format!(
            "rank 0 works on {} and rank {other} on {}; all have to be alike to end with the same numbers. Name a --device that \
             every rank has, or start fewer with --ranks",
            told(0),
            told(other)
        ))
        .into())
    }

    /// Sums gradients from here on as `settings` say.
    pub(crate) fn exchange_by(&mut self, settings: &RanksSection) {
        let compresses = settings.exchange == ExchangeKind::OneBit && !self.is_alone();
        self.one_bit = compresses.then(|| OneBits::new(settings));
    }

    /// Whether ranks save something of their own with each checkpoint. The same on all of them.
    pub(crate) fn have_residuals(&self) -> bool {
        self.one_bit.is_some()
    }

    /// Begins the exchange of step `step`, counted from 1.
    pub(crate) fn begin_step(&mut self, step: u64) {
        if let Some(one_bit) = &mut self.one_bit {
            one_bit.begin(step);
        }
    }

    /// Ends the step: `committed` where its update is made.
    pub(crate) fn settle_step(&mut self, committed: bool) {
        if let Some(one_bit) = &mut self.one_bit {
            one_bit.settle(committed);
        }
    }

    /// Saves this rank's residuals beside the checkpoint `at` in `run`, if there are any.
    pub(crate) fn save_residuals(&self, run: &Path, at: SavedAt<'_>) -> anyhow::Result<()> {
        let Some(one_bit) = self.one_bit.as_ref().filter(|one_bit| one_bit.owe_after(at.step)) else {
            return Ok(());
        };
        let place = (self.rank(), self.world());
        residuals::save(run, place, at, &one_bit.buffers).context("saving residuals of the exchange")
    }

    /// Goes on with the residuals that were saved beside a checkpoint in `run`, if every rank finds its own. Otherwise all go on
    /// without, and the reason comes back.
    pub(crate) fn restore_residuals(
        &mut self,
        run: &Path,
        at: SavedAt<'_>,
    ) -> anyhow::Result<Option<String>> {
        let place = (self.rank(), self.world());
        if !self.one_bit.as_ref().is_some_and(|one_bit| one_bit.owe_after(at.step)) {
            return Ok(None);
        }
        let loaded = residuals::load(run, place, at);
        let own = loaded.as_ref().err().map_or_else(String::new, |error| format!("{error:#}"));
        let reasons = self.gathered(own.as_bytes())?;
        if let Some((rank, reason)) = reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty()) {
            return Ok(Some(format!("rank {rank}: {}", String::from_utf8_lossy(reason))));
        }
        if let (Some(one_bit), Ok(buffers)) = (&mut self.one_bit, loaded) {
            one_bit.buffers = buffers;
        }
        Ok(None)
    }

    /// Says so where ranks have nothing to do.
    pub(crate) fn note_idle(&self, config: &Config) {
        let (ranks, micro_batches) = (self.world(), config.train.accumulate);
        if self.leads() && ranks > micro_batches {
            eprintln!(
                "{ranks} ranks share {micro_batches} micro-batches of a step, so some have nothing to do; raise \
                 `train.accumulate` and lower `train.micro_batch`"
            );
        }
    }

    /// This rank's share of so many micro-batches.
    pub(crate) fn share(&self, count: usize) -> Share {
        Share { count: count as u64, world: self.world(), rank: self.rank() }
    }

    /// Whether every rank says so.
    pub(crate) fn all(&mut self, ok: bool) -> anyhow::Result<bool> {
        self.engine.commit(ok).context("agreeing with the other ranks")
    }

    /// Runs `work` on rank 0 and gives its result to all. If it fails, all ranks end.
    pub(crate) fn led(&mut self, work: impl FnOnce() -> anyhow::Result<Vec<u8>>) -> anyhow::Result<Vec<u8>> {
        const GAVE_UP: &str = "rank 0 failed; its own messages say why";
        if !self.leads() {
            let told = self.told(&[])?;
            return match told.split_first() {
                Some((&SUCCEEDED, said)) => Ok(said.to_owned()),
                Some((&WAS_ASKED_WRONGLY, _)) => Err(BadInput(GAVE_UP.to_owned()).into()),
                _ => bail!(GAVE_UP),
            };
        }
        let said = work();
        let words = match &said {
            Ok(said) => [&[SUCCEEDED], said.as_slice()].concat(),
            Err(error) if is_bad_input(error) => vec![WAS_ASKED_WRONGLY],
            Err(_) => vec![FAILED],
        };
        self.told(&words)?;
        said
    }

    /// Sends rank 0's bytes to all. The other ranks pass an empty slice.
    fn told(&mut self, said: &[u8]) -> anyhow::Result<Vec<u8>> {
        if self.is_alone() {
            return Ok(said.to_owned());
        }
        let mut length = (said.len() as u64).to_le_bytes();
        self.hear_lead(&mut length)?;
        let length = u64::from_le_bytes(length) as usize;
        let mut told = if self.leads() { said.to_owned() } else { vec![0; length] };
        ensure!(told.len() == length, "rank 0 announces {length} bytes");
        self.hear_lead(&mut told)?;
        Ok(told)
    }

    fn hear_lead(&mut self, bytes: &mut [u8]) -> anyhow::Result<()> {
        self.hear(0, bytes)
    }

    /// Sends the `bytes` of `rank` to all, into theirs.
    pub(crate) fn hear(&mut self, rank: usize, bytes: &mut [u8]) -> anyhow::Result<()> {
        let mut parts: Vec<&mut [u8]> = (1..self.world()).map(|_| &mut [] as &mut [u8]).collect();
        parts.insert(rank, bytes);
        self.engine.all_gather(&mut parts).with_context(|| format!("receiving from rank {rank}"))
    }

    /// Rank 0's number, for all.
    pub(crate) fn number(&mut self, own: f32) -> anyhow::Result<f32> {
        let mut bytes = own.to_le_bytes();
        self.hear_lead(&mut bytes)?;
        Ok(f32::from_le_bytes(bytes))
    }

    /// Gathers the bytes of every rank, in their order.
    pub(crate) fn gathered(&mut self, own: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut all = Vec::with_capacity(self.world());
        for rank in 0..self.world() {
            let mut length = (own.len() as u64).to_le_bytes();
            self.hear(rank, &mut length)?;
            let mut bytes = own.to_owned();
            bytes.resize(u64::from_le_bytes(length) as usize, 0);
            self.hear(rank, &mut bytes)?;
            all.push(bytes);
        }
        Ok(all)
    }

    /// The losses of all micro-batches, in the order of their numbers.
    pub(crate) fn losses(&mut self, own: Vec<f32>, count: usize) -> anyhow::Result<Vec<f32>> {
        if self.is_alone() {
            return Ok(own);
        }
        let lengths = exchange::even(count, self.world());
        let mut all = vec![0.0; count];
        let range = self.share(count).range();
        all[range.start as usize..range.end as usize].copy_from_slice(&own);
        let bytes: Vec<usize> = lengths.iter().map(|length| length * size_of::<f32>()).collect();
        let all_bytes = bytemuck::cast_slice_mut(&mut all);
        self.exact.all_gather(self.engine.as_mut(), all_bytes, &bytes).context("gathering the losses")?;
        Ok(all)
    }

    /// The sum over all micro-batches, of this rank's sums of neighbours and those of the others.
    pub(crate) fn sum(&mut self, share: Share, len: usize, own: Vec<Vec<f32>>) -> anyhow::Result<Vec<f32>> {
        let own = Pairwise::of_sums(share, len, own)?;
        let summed = match self.one_bit.as_mut().and_then(|one_bit| one_bit.next(len)) {
            Some(one_bit) => one_bit.sum(self.engine.as_mut(), own),
            None => self.exact.sum(self.engine.as_mut(), own),
        };
        summed.context("summing gradients over the ranks")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use exchange::threads::{self, Threads};

    use super::*;

    impl Watched for Threads {}

    /// Runs `work` on several ranks, each a thread, and returns their results. A rank that panics leaves the world, so that
    /// no other waits for it.
    pub(crate) fn on_each<T: Send>(world: usize, work: impl Fn(&mut Ranks) -> T + Sync) -> Vec<T> {
        threads::on_each(world, |engine| {
            let mut ranks = Ranks::over(engine, (1, 0));
            let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut ranks)));
            ranks.end();
            outcome.unwrap_or_else(|panic| resume_unwind(panic))
        })
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
    fn everybody_hears_rank_0_and_has_all_losses_in_order() {
        for world in [1, 2, 3] {
            let heard = on_each(world, |ranks| {
                let told = ranks.led(|| Ok(b"begin".to_vec())).expect("no fault");
                let failed = ranks.led(|| anyhow::bail!("no room")).expect_err("rank 0 fails").to_string();
                assert_eq!(failed.contains("no room"), ranks.leads(), "{failed}");
                let refused = ranks.led(|| Err(BadInput("no such file".to_owned()).into()));
                assert!(is_bad_input(&refused.expect_err("rank 0 refuses")));
                let own = ranks.share(5).range().map(|n| n as f32).collect();
                let all = ranks.all(ranks.rank() != 1).expect("no fault");
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
