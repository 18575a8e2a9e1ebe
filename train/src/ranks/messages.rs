//! Messages other than gradients: votes, rank 0's bytes, losses.

use anyhow::{Context, bail, ensure};
use bytemuck::Pod;
use runs::BadInput;

use super::Ranks;
use crate::exit::is_bad_input;

/// The launcher returns the first exit code, so all ranks end alike.
const SUCCEEDED: u8 = 0;
const WAS_ASKED_WRONGLY: u8 = 1;
const FAILED: u8 = 2;

impl Ranks {
    pub(crate) fn all_succeeded(&mut self, ok: bool) -> anyhow::Result<bool> {
        let agreed = self.engine()?.commit(ok);
        self.note_failed_vote(agreed).context("agreeing with the other ranks")
    }

    /// One value per rank, in order.
    pub(crate) fn gathered_alike<T: Pod>(&mut self, own: T) -> anyhow::Result<Vec<T>> {
        let mut all = vec![own; self.world()];
        let mut parts: Vec<&mut [u8]> = all.iter_mut().map(bytemuck::bytes_of_mut).collect();
        let gathered = self.engine()?.all_gather(&mut parts);
        self.note_failed_call(gathered).context("gathering a value of each rank")?;
        Ok(all)
    }

    /// Broadcasts the result of `work` on rank 0. If it fails, all ranks end.
    pub(crate) fn led(&mut self, work: impl FnOnce() -> anyhow::Result<Vec<u8>>) -> anyhow::Result<Vec<u8>> {
        const GAVE_UP: &str = "rank 0 failed; its own messages say why";
        if !self.leads() {
            let heard = self.broadcast(&[])?;
            return match heard.split_first() {
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
        self.broadcast(&words)?;
        said
    }

    /// Other ranks pass an empty slice.
    pub(crate) fn broadcast(&mut self, said: &[u8]) -> anyhow::Result<Vec<u8>> {
        if self.is_alone() {
            return Ok(said.to_owned());
        }
        let mut length = (said.len() as u64).to_le_bytes();
        self.receive_from_rank_0(&mut length)?;
        let length = u64::from_le_bytes(length) as usize;
        let mut bytes = if self.leads() { said.to_owned() } else { vec![0; length] };
        ensure!(bytes.len() == length, "rank 0 announces {length} bytes");
        self.receive_from_rank_0(&mut bytes)?;
        Ok(bytes)
    }

    fn receive_from_rank_0(&mut self, bytes: &mut [u8]) -> anyhow::Result<()> {
        self.broadcast_from(0, bytes)
    }

    /// Broadcasts the `bytes` of `rank` into those of all.
    pub(crate) fn broadcast_from(&mut self, rank: usize, bytes: &mut [u8]) -> anyhow::Result<()> {
        let mut parts: Vec<&mut [u8]> = (1..self.world()).map(|_| &mut [] as &mut [u8]).collect();
        parts.insert(rank, bytes);
        let gathered = self.engine()?.all_gather(&mut parts);
        self.note_failed_call(gathered).with_context(|| format!("receiving from rank {rank}"))
    }

    /// As [`exchange::Exact::gather_owned`].
    pub(crate) fn gather_owned(&mut self, bytes: &mut [u8], owned: &[usize]) -> anyhow::Result<()> {
        let exact = self.exact();
        let gathered = exact.gather_owned(self.engine()?, bytes, owned);
        self.note_failed_call(gathered).context("gathering what each rank owns")
    }

    /// Broadcasts rank 0's number.
    pub(crate) fn number<T: Pod>(&mut self, mut own: T) -> anyhow::Result<T> {
        self.receive_from_rank_0(bytemuck::bytes_of_mut(&mut own))?;
        Ok(own)
    }

    pub(crate) fn gathered(&mut self, own: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut all = Vec::with_capacity(self.world());
        for rank in 0..self.world() {
            let mut length = (own.len() as u64).to_le_bytes();
            self.broadcast_from(rank, &mut length)?;
            let mut bytes = own.to_owned();
            bytes.resize(u64::from_le_bytes(length) as usize, 0);
            self.broadcast_from(rank, &mut bytes)?;
            all.push(bytes);
        }
        Ok(all)
    }

    pub(crate) fn losses(&mut self, own: Vec<f32>, count: usize) -> anyhow::Result<Vec<f32>> {
        if self.is_alone() {
            return Ok(own);
        }
        let stages = self.stages();
        let lengths = exchange::even(count, self.world() / stages);
        let length = |rank: usize| if rank % stages + 1 == stages { lengths[rank / stages] } else { 0 };
        let mut all = vec![0.0; count];
        let begin = self.share(count).range().start as usize;
        all[begin..begin + own.len()].copy_from_slice(&own);
        let bytes: Vec<usize> = (0..self.world()).map(|rank| length(rank) * size_of::<f32>()).collect();
        let all_bytes = bytemuck::cast_slice_mut(&mut all);
        let gathered = exchange::all_gather(self.engine()?, all_bytes, &bytes);
        self.note_failed_call(gathered).context("gathering the losses")?;
        Ok(all)
    }

    /// Fails on all ranks if one has failed.
    pub(crate) fn if_all_succeeded<T>(&mut self, own: anyhow::Result<T>) -> anyhow::Result<T> {
        let all_have = self.all_succeeded(own.is_ok());
        let own = own?;
        ensure!(all_have?, "another rank failed; its own messages say why");
        Ok(own)
    }

    /// All ranks' items, in order. All living ranks succeed, or all fail.
    pub(crate) fn joined<T: Pod>(&mut self, own: anyhow::Result<Vec<T>>) -> anyhow::Result<Vec<T>> {
        if self.is_alone() {
            return own;
        }
        let own = self.if_all_succeeded(own)?;
        let all = self.gathered(bytemuck::cast_slice(&own))?;
        if self.survives {
            // The gather may have failed on others, which repeat it.
            ensure!(self.all_succeeded(true)?, "another rank has not heard all");
        }
        Ok(all.iter().flat_map(|bytes| bytemuck::pod_collect_to_vec::<u8, T>(bytes)).collect())
    }

    /// One number per parameter, from its owner. `own` are this rank's, in order.
    pub(crate) fn of_owners(&mut self, own: &[f64], owners: &[usize]) -> anyhow::Result<Vec<f64>> {
        let counts: Vec<usize> =
            (0..self.world()).map(|rank| owners.iter().filter(|owner| **owner == rank).count()).collect();
        let begin = |rank: usize| counts[..rank].iter().sum::<usize>();
        let (rank, found) = (self.rank(), own.len());
        ensure!(counts[rank] == found, "this rank owns {} parameters, not {found}", counts[rank]);
        let mut by_owner = vec![0.0; owners.len()];
        by_owner[begin(rank)..][..found].copy_from_slice(own);
        let bytes: Vec<usize> = counts.iter().map(|count| count * size_of::<f64>()).collect();
        let gathered = exchange::all_gather(self.engine()?, bytemuck::cast_slice_mut(&mut by_owner), &bytes);
        self.note_failed_call(gathered).context("gathering what each rank has of its own")?;
        let mut next: Vec<usize> = (0..counts.len()).map(begin).collect();
        let in_order = owners.iter().map(|owner| {
            next[*owner] += 1;
            by_owner[next[*owner] - 1]
        });
        Ok(in_order.collect())
    }
}
