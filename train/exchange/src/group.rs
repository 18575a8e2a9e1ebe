//! Some ranks of a world as a world of their own, connected by messages.

use std::time::Duration;

use crate::engine::{Engine, count_parts, gathered, keep_own};
use crate::error::{Call, Error, Result};

const TAG: u8 = u8::MAX;

const NAP: Duration = Duration::from_micros(50);

/// The engine of a group. It takes every message that arrives.
pub struct Group<'e> {
    engine: &'e mut dyn Engine,
    members: Vec<usize>,
    rank: usize,
}

impl<'e> Group<'e> {
    /// `members` are equal and in order on each of them.
    ///
    /// # Panics
    ///
    /// If this rank is no member.
    pub fn new(engine: &'e mut dyn Engine, members: Vec<usize>) -> Self {
        let own = engine.rank();
        let rank = members.iter().position(|member| *member == own).expect("this rank is a member");
        Self { engine, members, rank }
    }

    fn transfer(&mut self, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        let mut missing = 0;
        for (peer, member) in self.members.iter().enumerate().filter(|(peer, _)| *peer != self.rank) {
            if !receive[peer].is_empty() {
                self.engine.expect((*member, TAG), receive[peer].len())?;
                missing += 1;
            }
            if !send[peer].is_empty() {
                self.engine.send((*member, TAG), send[peer].to_vec())?;
            }
        }
        while missing > 0 {
            let Some(((from, _), bytes)) = self.engine.arrived()? else {
                std::thread::sleep(NAP);
                continue;
            };
            let peer = self.members.iter().position(|member| *member == from);
            receive[peer.expect("only members send")].copy_from_slice(&bytes);
            missing -= 1;
        }
        Ok(())
    }
}

impl Engine for Group<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.members.len()
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        keep_own(self.rank, self.world(), send, receive)?;
        self.transfer(send, receive)
    }

    fn all_gather(&mut self, parts: &mut [&mut [u8]]) -> Result<()> {
        count_parts(Call::AllGather, self.world(), parts.len())?;
        let (send, mut receive) = gathered(self.rank, parts);
        self.transfer(&send, &mut receive)
    }

    fn barrier(&mut self) -> Result<()> {
        self.commit(true).map(drop)
    }

    fn commit(&mut self, ok: bool) -> Result<bool> {
        let mut said = vec![[u8::from(ok)]; self.world()];
        self.all_gather(&mut said.iter_mut().map(<[u8; 1]>::as_mut_slice).collect::<Vec<_>>())?;
        Ok(said.iter().all(|said| *said == [1]))
    }

    fn shrink(&mut self) -> Result<()> {
        let reason = "a group keeps its members".to_owned();
        Err(Error::Failed { call: Call::Shrink, peer: None, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::Exact;
    use crate::pairwise::Pairwise;
    use crate::share::Share;
    use crate::threads;

    #[test]
    fn groups_sum_beside_each_other_to_the_bits_of_a_world_of_their_size() {
        let numbers = |micro_batch: u64| vec![0.1 + micro_batch as f32 / 3.0; 5];
        let sum = |engine: &mut dyn Engine| {
            let share = Share { count: 6, world: engine.world(), rank: engine.rank() };
            let mut own = Pairwise::new(share, 5);
            for micro_batch in share.range() {
                own.push(numbers(micro_batch)).expect("its turn");
            }
            Exact::default().sum(engine, own).expect("no rank is gone")
        };
        let alone = threads::on_each(1, |mut engine| sum(&mut engine));
        for (world, groups) in [(4, 2), (6, 2), (6, 3), (3, 3)] {
            let sums = threads::on_each(world, |mut engine| {
                let own = engine.rank() % groups;
                let members = (own..world).step_by(groups).collect();
                let summed = sum(&mut Group::new(&mut engine, members));
                assert_eq!(engine.commit(true), Ok(true));
                summed
            });
            assert!(sums.iter().all(|summed| *summed == alone[0]), "{groups} groups of {world}");
        }
    }
}
