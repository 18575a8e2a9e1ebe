//! Messages between two ranks: transfers that own their memory until they end.

use std::time::Instant;

use crate::engine::Message;
use crate::error::{Call, Error, Result};

use super::Mpi;
use super::transfer::{GRACE, NAP, Phase};

/// Above the tags of collective calls.
const FIRST_TAG: i32 = 16;

pub(super) struct Transfer {
    at: (usize, u8),
    bytes: Vec<u8>,
    phase: Phase,
}

#[derive(Default)]
pub(super) struct Messages {
    leaving: Vec<Transfer>,
    expected: Vec<Transfer>,
}

impl Messages {
    pub(super) fn are_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    fn receivers(&self) -> impl Iterator<Item = usize> {
        self.leaving.iter().map(|transfer| transfer.at.0)
    }
}

impl Mpi {
    fn begin(&self, at: (usize, u8), mut bytes: Vec<u8>, receives: bool) -> Transfer {
        let mut phase = Phase { lengths: vec![0; self.world], ..Phase::default() };
        let to = (at.0, FIRST_TAG + i32::from(at.1));
        for piece in bytes.chunks_mut(self.piece) {
            if receives {
                let len = piece.len();
                self.post_receive(Call::Message, &mut phase, to, piece, Some(len));
            } else {
                self.post_send(Call::Message, &mut phase, to, piece);
            }
        }
        Transfer { at, bytes, phase }
    }

    fn has_ended(&self, transfer: &mut Transfer) -> bool {
        let mut pending = std::mem::take(&mut transfer.phase.pending);
        pending.retain_mut(|one| !self.ended(Call::Message, &mut transfer.phase, one));
        transfer.phase.pending = pending;
        transfer.phase.pending.is_empty()
    }

    fn forget_sent(&mut self) -> Result<()> {
        let mut leaving = std::mem::take(&mut self.messages.leaving);
        leaving.retain_mut(|transfer| !self.has_ended(transfer) || transfer.phase.failed.is_some());
        let failed = leaving.iter_mut().find_map(|transfer| transfer.phase.failed.take());
        self.messages.leaving = leaving;
        self.unless(failed)
    }

    fn unless(&mut self, failed: Option<Error>) -> Result<()> {
        let Some(error) = failed else { return Ok(()) };
        self.waiting.fail();
        self.broken = true;
        self.revoke();
        Err(error)
    }

    fn wait_for_messages(&self) {
        if self.messages.expected.is_empty() {
            return self.waiting.end();
        }
        let peers = self.messages.expected.iter().map(|transfer| transfer.at.0);
        self.waiting.begin(Call::Message, self.rank, peers);
    }

    pub(super) fn send_message(&mut self, to: (usize, u8), bytes: Vec<u8>) -> Result<()> {
        self.works()?;
        let transfer = self.begin(to, bytes, false);
        self.messages.leaving.push(transfer);
        self.forget_sent()
    }

    pub(super) fn expect_message(&mut self, from: (usize, u8), len: usize) -> Result<()> {
        self.works()?;
        let transfer = self.begin(from, vec![0; len], true);
        self.messages.expected.push(transfer);
        self.wait_for_messages();
        Ok(())
    }

    pub(super) fn arrived_message(&mut self) -> Result<Option<Message>> {
        self.works()?;
        self.forget_sent()?;
        let mut expected = std::mem::take(&mut self.messages.expected);
        let (mut found, mut failed) = (None, None);
        for at in 0..expected.len() {
            let place = expected[at].at;
            let is_in_turn = expected[..at].iter().all(|earlier| earlier.at != place);
            if is_in_turn && self.has_ended(&mut expected[at]) {
                failed = expected[at].phase.failed.take();
                found = Some(at);
                break;
            }
        }
        // Memory of a failed call stays: other transfers may use it.
        let found = found.filter(|_| failed.is_none()).map(|at| expected.remove(at));
        self.messages.expected = expected;
        self.unless(failed)?;
        if found.is_some() {
            self.wait_for_messages();
        }
        Ok(found.map(|Transfer { at, bytes, .. }| (at, bytes)))
    }

    /// Names receivers that are frozen.
    pub(super) fn finish_messages(&mut self) -> Result<()> {
        if !self.messages.are_leaving() {
            return Ok(());
        }
        self.waiting.begin(Call::Message, self.rank, self.messages.receivers());
        let mut sent = self.forget_sent();
        while sent.is_ok() && self.messages.are_leaving() {
            self.waiting.wait_for(self.messages.receivers());
            std::thread::sleep(NAP);
            sent = self.forget_sent();
        }
        self.waiting.end_with(&sent);
        sent
    }

    fn works(&self) -> Result<()> {
        if self.broken { Err(Error::Broken { call: Call::Message }) } else { Ok(()) }
    }

    /// Memory of messages that no peer takes is never freed.
    pub(super) fn end_messages(&mut self) {
        let begun = Instant::now();
        while !self.broken && self.messages.are_leaving() && begun.elapsed() < GRACE {
            if self.forget_sent().is_ok() {
                std::thread::sleep(NAP);
            }
        }
        _ = std::mem::ManuallyDrop::new(std::mem::take(&mut self.messages));
    }
}
