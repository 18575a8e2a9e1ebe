//! State shared by the threads of a world: living ranks, messages, and the vote in progress.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::engine::Message;
use crate::error::{Call, Error, Result};
use crate::waiting::Waiting;

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    signal: Condvar,
}

/// State of a world, indexed by seat.
#[derive(Debug)]
pub(super) struct State {
    pub(super) alive: Vec<bool>,
    pub(super) broken: bool,
    pub(super) calls: Vec<u64>,
    pub(super) mail: BTreeMap<(usize, usize), VecDeque<Letter>>,
    /// By sender, receiver and tag.
    pub(super) messages: BTreeMap<(usize, usize, u8), VecDeque<Vec<u8>>>,
    members: Vec<usize>,
    votes: Vec<Option<(Call, bool)>>,
    rounds: u64,
    /// Result of the last vote. The next vote ends only after every rank has read it.
    agreed: Result<Agreed>,
}

#[derive(Debug)]
pub(super) struct Letter {
    pub(super) call: Call,
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
}

/// The same on all living ranks.
#[derive(Debug, Clone)]
pub(super) struct Agreed {
    pub(super) ok: bool,
    /// All ranks live, and no call has failed.
    pub(super) whole: bool,
    pub(super) members: Vec<usize>,
}

impl Shared {
    pub(super) fn new(ranks: usize) -> Self {
        let state = State {
            alive: vec![true; ranks],
            broken: false,
            calls: vec![0; ranks],
            mail: BTreeMap::new(),
            messages: BTreeMap::new(),
            members: (0..ranks).collect(),
            votes: vec![None; ranks],
            rounds: 0,
            agreed: Err(Error::Broken { call: Call::Commit }),
        };
        Self { state: Mutex::new(state), signal: Condvar::new() }
    }

    /// Ranks run no foreign code under the lock, so a poisoned state is intact.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changed(&self) {
        self.signal.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.signal.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the peer of the returned letter from `missing` (rank and seat). Waits until a letter comes, or none can.
    pub(super) fn take(
        &self,
        call: Call,
        to: usize,
        missing: &mut Vec<(usize, usize)>,
    ) -> Result<(usize, Letter)> {
        let mut state = self.lock();
        loop {
            for at in 0..missing.len() {
                let (peer, from) = missing[at];
                if let Some(letter) = state.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
                    missing.swap_remove(at);
                    state.expect(call, to, peer, &letter)?;
                    return Ok((peer, letter));
                }
            }
            for (peer, from) in missing.iter().copied() {
                // Letters of a rank that died later still count.
                if !state.alive[from] {
                    return Err(Error::Lost { call, peer, reason: String::new() });
                }
                if let Some((other, _)) = state.votes[from]
                    && !state.broken
                {
                    return Err(Error::OtherCall {
                        peer,
                        expected: call.to_string(),
                        found: other.to_string(),
                    });
                }
            }
            if state.broken {
                return Err(Error::Broken { call });
            }
            state = self.wait(state);
        }
    }

    pub(super) fn message(
        &self,
        to: usize,
        members: &[usize],
        expected: &mut Vec<(usize, u8, usize)>,
    ) -> Result<Option<Message>> {
        let call = Call::Message;
        let mut state = self.lock();
        for at in 0..expected.len() {
            let (peer, tag, len) = expected[at];
            if expected[..at].iter().any(|(other, theirs, _)| (*other, *theirs) == (peer, tag)) {
                continue;
            }
            let from = members[peer];
            let box_of_peer = state.messages.get_mut(&(from, to, tag));
            if let Some(bytes) = box_of_peer.and_then(VecDeque::pop_front) {
                expected.remove(at);
                let found = bytes.len();
                if found != len {
                    return Err(Error::Bytes { call, peer, expected: len, found });
                }
                return Ok(Some(((peer, tag), bytes)));
            }
            if state.broken {
                return Err(Error::Broken { call });
            }
            if !state.alive[from] {
                return Err(Error::Lost { call, peer, reason: String::new() });
            }
            if let Some((other, _)) = state.votes[from] {
                let [expected, found] = [call, other].map(|call| call.to_string());
                return Err(Error::OtherCall { peer, expected, found });
            }
        }
        Ok(None)
    }

    pub(super) fn agree(
        &self,
        call: Call,
        seat: usize,
        ok: bool,
        waiting: &Waiting,
        members: &[usize],
    ) -> Result<Agreed> {
        let rank = |seat: usize| members.iter().position(|member| *member == seat);
        waiting.begin(call, rank(seat).expect("a member"), 0..members.len());
        let mut state = self.lock();
        state.votes[seat] = Some((call, ok));

        // Another rank may wait for a letter in vain.
        self.changed();
        let round = state.rounds;
        while state.rounds == round {
            let absent: Vec<usize> = state.absent().filter_map(rank).collect();
            if absent.is_empty() {
                state.close_vote();
                self.changed();
            } else {
                waiting.wait_for(absent.into_iter());
                state = self.wait(state);
            }
        }
        waiting.end();
        state.agreed.clone()
    }
}

impl State {
    fn expect(&self, call: Call, to: usize, peer: usize, letter: &Letter) -> Result<()> {
        let own = self.calls[to] - 1;
        if (letter.call, letter.number) == (call, own) {
            return Ok(());
        }
        let found = format!("{}, number {}", letter.call, letter.number);
        Err(Error::OtherCall { peer, expected: format!("{call}, number {own}"), found })
    }

    fn absent(&self) -> impl Iterator<Item = usize> {
        self.members.iter().copied().filter(|seat| self.alive[*seat] && self.votes[*seat].is_none())
    }

    fn close_vote(&mut self) {
        let members: Vec<usize> = self.members.iter().copied().filter(|seat| self.alive[*seat]).collect();
        let votes: Vec<(Call, bool)> = members.iter().filter_map(|seat| self.votes[*seat]).collect();
        let whole = !self.broken && members.len() == self.members.len();
        let differs = votes.iter().position(|(call, _)| *call != votes[0].0);
        self.agreed = if let Some(peer) = differs {
            self.broken = true;
            let [expected, found] = [votes[0].0, votes[peer].0].map(|call| call.to_string());
            Err(Error::OtherCall { peer, expected, found })
        } else {
            Ok(Agreed { ok: votes.iter().all(|(_, ok)| *ok), whole, members: members.clone() })
        };

        if differs.is_none() && votes.first().is_some_and(|(call, _)| *call == Call::Shrink) {
            self.members = members;
            self.broken = false;
            self.mail.clear();
            self.messages.clear();
            self.calls.fill(0);
        } else if !whole {
            self.broken = true;
        }
        self.votes.fill(None);
        self.rounds += 1;
    }
}
