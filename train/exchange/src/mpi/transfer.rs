//! One collective call as messages: letters, then the parts that are too long for one.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use crate::error::{Call, Error, Result};

use super::Mpi;
use super::library::{Handle, Status};

const LETTER: c_int = 1;
const PART: c_int = 2;

/// Bytes of the call's number, its kind, and the part's length.
const HEAD: usize = 24;

/// Parts up to this length travel within their letter.
const SHORT: usize = 4096;

/// `MPI_ERR_PROC_FAILED` and `MPI_ERR_REVOKED` of Open MPI 5.
const PROC_FAILED: c_int = 75;
const REVOKED: c_int = 77;

/// Without progress for this long, a waiting rank sleeps between polls.
const PATIENT: Duration = Duration::from_millis(5);
pub(super) const NAP: Duration = Duration::from_micros(50);

/// A part that leaves for longer lets the next one begin: its receiver may have stopped.
const STUCK: Duration = Duration::from_millis(200);

/// Time for other transfers after a failure, without ULFM.
pub(super) const GRACE: Duration = Duration::from_secs(2);

pub(super) struct Pending {
    request: Handle,
    peer: usize,
    receives: bool,
    /// Bytes that a receive must bring; `None` if the sender decides.
    bytes: Option<usize>,
}

/// Transfers of one phase. Their borrowed memory must stay in place until [`Mpi::finish`] returns.
#[derive(Default)]
pub(super) struct Phase {
    pub(super) pending: Vec<Pending>,
    pub(super) failed: Option<Error>,
    pub(super) lengths: Vec<usize>,
}

/// The other ranks in the order in which `rank` sends to them. In each turn a rank receives from one.
fn in_turn(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (1..world).map(move |distance| (rank + distance) % world)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[8 * at..][..8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn letter(call: Call, calls: u64, part: &[u8]) -> Vec<u8> {
    let kind = Call::ALL.iter().position(|known| *known == call).unwrap_or(Call::ALL.len());
    let mut letter = Vec::with_capacity(HEAD + SHORT);
    for number in [calls, kind as u64, part.len() as u64] {
        letter.extend_from_slice(&number.to_le_bytes());
    }
    if part.len() <= SHORT {
        letter.extend_from_slice(part);
    }
    letter
}

impl Mpi {
    /// Returns when no transfer is pending.
    pub(super) fn transfer(&mut self, call: Call, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        if self.broken {
            return Err(Error::Broken { call });
        }
        if self.world == 1 {
            return Ok(());
        }
        self.waiting.begin(call, self.rank, 0..self.world);
        let letters = self.letters(call, send);
        let done = letters.and_then(|letters| self.read(call, &letters, receive));
        let done = done.and_then(|()| self.parts(call, send, receive));
        self.waiting.end_with(&done);
        self.calls += 1;
        if done.is_err() {
            self.broken = true;
            self.revoke();
        }
        done
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world).filter(move |peer| *peer != rank)
    }

    fn letters(&self, call: Call, send: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let mut received = vec![vec![0; HEAD + SHORT]; self.world];
        let letters: Vec<Vec<u8>> = send.iter().map(|part| letter(call, self.calls, part)).collect();
        let mut phase = Phase { lengths: vec![0; self.world], ..Phase::default() };
        for peer in self.others() {
            self.post_receive(call, &mut phase, (peer, LETTER), &mut received[peer], None);
            self.post_send(call, &mut phase, (peer, LETTER), &letters[peer]);
        }
        self.finish(call, &mut phase)?;
        for (letter, len) in received.iter_mut().zip(phase.lengths) {
            letter.truncate(len);
        }
        Ok(received)
    }

    fn read(&self, call: Call, letters: &[Vec<u8>], receive: &mut [&mut [u8]]) -> Result<()> {
        for peer in self.others() {
            let letter = &letters[peer];
            let short = || Error::Bytes { call, peer, expected: HEAD, found: letter.len() };
            let (head, part) = letter.split_at_checked(HEAD).ok_or_else(short)?;
            let (calls, kind, found) = (number(head, 0), number(head, 1), number(head, 2) as usize);
            let kind = Call::ALL.get(kind as usize);
            if (calls, kind) != (self.calls, Some(&call)) {
                let kind = kind.map_or("of another program".into(), Call::to_string);
                let (expected, found) = (self.calls, format!("{kind}, number {calls}"));
                return Err(Error::OtherCall { peer, expected: format!("{call}, number {expected}"), found });
            }
            let expected = receive[peer].len();
            if expected != found {
                return Err(Error::Bytes { call, peer, expected, found });
            }
            if found <= SHORT {
                receive[peer].copy_from_slice(part);
            }
        }
        Ok(())
    }

    /// Sends to one rank after the other, each rank first to its next one: parts of several ranks do not meet in the
    /// queue of one card.
    fn parts(&self, call: Call, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        let mut phase = Phase { lengths: vec![0; self.world], ..Phase::default() };
        for peer in self.others() {
            if receive[peer].len() > SHORT {
                for piece in receive[peer].chunks_mut(self.piece) {
                    let bytes = Some(piece.len());
                    self.post_receive(call, &mut phase, (peer, PART), piece, bytes);
                }
            }
        }
        let parts = in_turn(self.rank, self.world).filter(|peer| send[*peer].len() > SHORT);
        let mut queued: VecDeque<_> =
            parts.flat_map(|peer| send[peer].chunks(self.piece).map(move |piece| (peer, piece))).collect();

        let awaited =
            phase.pending.iter().map(|pending| pending.peer).chain(queued.iter().map(|(peer, _)| *peer));
        self.waiting.wait_for(awaited);
        self.finish_after(call, &mut phase, &mut queued)
    }

    pub(super) fn post_receive(
        &self,
        call: Call,
        phase: &mut Phase,
        (peer, tag): (usize, c_int),
        piece: &mut [u8],
        bytes: Option<usize>,
    ) {
        let mut request = std::ptr::null_mut();
        let (at, count, byte) = (piece.as_mut_ptr().cast(), piece.len() as c_int, self.library.byte);
        // SAFETY: the piece stays in place until `finish` returns, or a message's memory until its transfer ends.
        let code = unsafe {
            (self.library.receive)(at, count, byte, peer as c_int, tag, self.communicator, &raw mut request)
        };
        self.posted(call, phase, code, Pending { request, peer, receives: true, bytes });
    }

    pub(super) fn post_send(&self, call: Call, phase: &mut Phase, (peer, tag): (usize, c_int), piece: &[u8]) {
        let mut request = std::ptr::null_mut();
        let (at, count, byte) = (piece.as_ptr().cast(), piece.len() as c_int, self.library.byte);
        // SAFETY: as above.
        let code = unsafe {
            (self.library.send)(at, count, byte, peer as c_int, tag, self.communicator, &raw mut request)
        };
        self.posted(call, phase, code, Pending { request, peer, receives: false, bytes: None });
    }

    fn posted(&self, call: Call, phase: &mut Phase, code: c_int, pending: Pending) {
        if code == 0 {
            phase.pending.push(pending);
        } else {
            self.fail(phase, self.error(call, pending.peer, code));
        }
    }

    fn finish(&self, call: Call, phase: &mut Phase) -> Result<()> {
        self.finish_after(call, phase, &mut VecDeque::new())
    }

    /// Sends the `queued` pieces, too, one after the other.
    fn finish_after(
        &self,
        call: Call,
        phase: &mut Phase,
        queued: &mut VecDeque<(usize, &[u8])>,
    ) -> Result<()> {
        let mut progress = Instant::now();
        loop {
            if phase.failed.is_some() {
                queued.clear();
            }
            let none_leaves = phase.pending.iter().all(|pending| pending.receives);
            if (none_leaves || progress.elapsed() > STUCK)
                && let Some((peer, piece)) = queued.pop_front()
            {
                self.post_send(call, phase, (peer, PART), piece);
            }
            if phase.pending.is_empty() {
                break;
            }
            let mut waiting = std::mem::take(&mut phase.pending);
            let before = waiting.len();
            waiting.retain_mut(|pending| !self.ended(call, phase, pending));
            phase.pending = waiting;
            if phase.pending.len() < before {
                progress = Instant::now();
                continue;
            }
            if let Some(error) = &phase.failed
                && self.library.ulfm.is_none()
                && progress.elapsed() > GRACE
            {
                // Only ULFM ends a pending transfer, and its memory must not be handed back.
                eprintln!("error: {error}; transfers are pending that {} cannot end", self.version());
                std::process::abort();
            }
            if progress.elapsed() < PATIENT {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
        phase.failed.take().map_or(Ok(()), Err)
    }

    pub(super) fn ended(&self, call: Call, phase: &mut Phase, pending: &mut Pending) -> bool {
        let (mut flag, mut status) = (0, Status::default());
        // SAFETY: the request was returned by a send or receive and has not ended.
        let code = unsafe { (self.library.test)(&raw mut pending.request, &raw mut flag, &raw mut status) };
        if code != 0 {
            self.fail(phase, self.error(call, pending.peer, code));
            return true;
        }

        if flag == 0 {
            return false;
        }

        if pending.receives {
            let mut count = 0;
            // SAFETY: the status was filled by the call above.
            let code = unsafe { (self.library.count)(&raw const status, self.library.byte, &raw mut count) };
            if code != 0 {
                self.fail(phase, self.error(call, pending.peer, code));
                return true;
            }
            let (peer, found) = (pending.peer, count as usize);
            match pending.bytes {
                Some(expected) if expected != found => {
                    self.fail(phase, Error::Bytes { call, peer, expected, found });
                }
                Some(_) => {}
                None => {
                    phase.lengths[peer] = found;
                    self.waiting.arrived(peer);
                }
            }
        }
        true
    }

    /// Keeps the first error of a phase and ends the other transfers.
    fn fail(&self, phase: &mut Phase, error: Error) {
        if phase.failed.is_none() {
            self.revoke();
        }
        // A revoked call says less than its cause.
        if phase.failed.is_none() || matches!(phase.failed, Some(Error::Broken { .. })) {
            phase.failed = Some(error);
        }
    }

    fn error(&self, call: Call, peer: usize, code: c_int) -> Error {
        let reason = self.library.text(code);
        match self.library.class(code) {
            Some(PROC_FAILED) if self.library.ulfm.is_some() => Error::Lost { call, peer, reason },
            Some(REVOKED) if self.library.ulfm.is_some() => Error::Broken { call },
            _ => Error::Failed { call, peer: Some(peer), reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::library::failing;
    use super::*;
    use crate::engine::Engine;

    #[test]
    fn a_letter_of_unknown_length_is_an_error_and_no_empty_letter() {
        let mut engine = Mpi::over(failing::library(), 1 << 10);
        (engine.rank, engine.world) = (0, 2);
        let error = engine.barrier().expect_err("its length is unknown").to_string();
        assert_eq!(error, "barrier failed with rank 1: error 13");
        assert!(engine.barrier().is_err(), "nothing follows a failure");
    }

    #[test]
    fn each_rank_sends_to_all_others_and_receives_from_one_at_a_time() {
        for world in 1..9 {
            let ranks = 0..world;
            let orders: Vec<Vec<usize>> = ranks.clone().map(|rank| in_turn(rank, world).collect()).collect();
            for (rank, order) in orders.iter().enumerate() {
                let mut others: Vec<usize> = order.iter().copied().chain([rank]).collect();
                others.sort_unstable();
                assert!(others.into_iter().eq(ranks.clone()));
            }
            for turn in 0..world - 1 {
                let mut receivers: Vec<usize> = orders.iter().map(|order| order[turn]).collect();
                receivers.sort_unstable();
                assert!(receivers.into_iter().eq(ranks.clone()), "two send to one rank");
            }
        }
    }

    #[test]
    fn a_letter_says_number_kind_and_length_and_carries_short_parts() {
        let short = letter(Call::Barrier, 300, b"abc");
        assert_eq!([number(&short, 0), number(&short, 1), number(&short, 2)], [300, 2, 3]);
        assert_eq!(&short[HEAD..], b"abc");
        let long = letter(Call::AllToAll, u64::MAX, &[7; SHORT + 1]);
        assert_eq!([number(&long, 0), number(&long, 2)], [u64::MAX, SHORT as u64 + 1]);
        assert_eq!(long.len(), HEAD);
    }
}
