//! The engine: carries bytes between ranks and returns errors as values.

use std::time::Duration;

use crate::error::{Call, Error, Result};
use crate::watchdog::Watchdog;

/// Connects the ranks of a run. Every method but `rank`, `world`, `survives`, `watchdog` and those of messages is
/// collective: all ranks make the same calls in order.
///
/// After an error the buffers are undefined, and this rank refuses all calls but `commit` and `shrink`. Other ranks get
/// an error by their next `commit`.
pub trait Engine: Send {
    /// This rank, below [`world`](Self::world).
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world(&self) -> usize;

    /// Sends `send[r]` to rank `r` and fills `receive[r]` from it. Parts may differ in size or be empty; both ranks
    /// must expect the same size.
    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()>;

    /// Sends `parts[rank]` to all ranks and fills every other part from its rank.
    fn all_gather(&mut self, parts: &mut [&mut [u8]]) -> Result<()>;

    /// Begins to send `bytes` to another rank. Messages to one peer with one `tag` arrive in order.
    fn send(&mut self, (peer, tag): (usize, u8), bytes: Vec<u8>) -> Result<()> {
        _ = (tag, bytes);
        Err(no_peer(peer))
    }

    /// Begins to receive the peer's next message with `tag`, which must have `len` bytes.
    fn expect(&mut self, (peer, tag): (usize, u8), len: usize) -> Result<()> {
        _ = (tag, len);
        Err(no_peer(peer))
    }

    /// An expected message that has arrived, with its peer and tag. Never waits.
    fn arrived(&mut self) -> Result<Option<Message>> {
        Ok(None)
    }

    /// Whether a message is still leaving; [`arrived`](Self::arrived) carries it on.
    fn is_sending(&self) -> bool {
        false
    }

    /// Returns once no message is leaving. [`watchdog`](Self::watchdog) watches the wait, as a call.
    fn finish_sending(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns once every rank has called it.
    fn barrier(&mut self) -> Result<()>;

    /// Whether every rank says `ok`, equal on all living ranks.
    ///
    /// An error means that a rank is gone or an earlier call failed: call [`shrink`](Self::shrink) and repeat the work.
    /// `false`: a rank said so, and no call failed.
    fn commit(&mut self, ok: bool) -> Result<bool>;

    /// Whether [`shrink`](Self::shrink) is possible.
    fn survives(&self) -> bool {
        false
    }

    /// Continues with the living ranks, renumbered in order.
    fn shrink(&mut self) -> Result<()>;

    /// Ends all ranks, naming the missing ones, when a call of this rank takes longer than `limit`. `None` if the engine
    /// cannot.
    ///
    /// # Panics
    ///
    /// If the system starts no thread.
    #[must_use = "the watchdog ends when it is dropped"]
    fn watchdog(&self, limit: Duration) -> Option<Watchdog> {
        _ = limit;
        None
    }
}

/// Peer, tag and bytes.
pub type Message = ((usize, u8), Vec<u8>);

fn no_peer(peer: usize) -> Error {
    let reason = "this engine carries no messages".to_owned();
    Error::Failed { call: Call::Message, peer: Some(peer), reason }
}

/// A world of one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Engine for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        keep_own(0, 1, send, receive)
    }

    fn all_gather(&mut self, parts: &mut [&mut [u8]]) -> Result<()> {
        count_parts(Call::AllGather, 1, parts.len())
    }

    fn barrier(&mut self) -> Result<()> {
        Ok(())
    }

    fn commit(&mut self, ok: bool) -> Result<bool> {
        Ok(ok)
    }

    fn shrink(&mut self) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn count_parts(call: Call, world: usize, found: usize) -> Result<()> {
    if found == world { Ok(()) } else { Err(Error::Parts { call, world, found }) }
}

pub(crate) fn keep_own(rank: usize, world: usize, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
    count_parts(Call::AllToAll, world, send.len())?;
    count_parts(Call::AllToAll, world, receive.len())?;
    let (expected, found) = (receive[rank].len(), send[rank].len());
    if expected != found {
        return Err(Error::Bytes { call: Call::AllToAll, peer: rank, expected, found });
    }
    receive[rank].copy_from_slice(send[rank]);
    Ok(())
}

pub(crate) fn gathered<'a>(rank: usize, parts: &'a mut [&mut [u8]]) -> (Vec<&'a [u8]>, Vec<&'a mut [u8]>) {
    let mut own: &[u8] = &[];
    let mut receive: Vec<&mut [u8]> = Vec::with_capacity(parts.len());
    for (peer, part) in parts.iter_mut().enumerate() {
        if peer == rank {
            own = part;
            receive.push(&mut []);
        } else {
            receive.push(part);
        }
    }
    (vec![own; receive.len()], receive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_every_call_succeeds_and_returns_what_was_given() {
        let mut received = [0; 3];
        Alone.all_to_all(&[b"abc"], &mut [&mut received]).expect("sent to itself");
        assert_eq!(&received, b"abc");
        Alone.all_gather(&mut [&mut received]).expect("gathered");
        assert_eq!(&received, b"abc");
        assert_eq!((Alone.commit(true), Alone.commit(false)), (Ok(true), Ok(false)));
        assert_eq!((Alone.barrier(), Alone.shrink(), Alone.rank(), Alone.world()), (Ok(()), Ok(()), 0, 1));
    }

    #[test]
    fn wrong_sizes_are_reported_with_their_numbers() {
        let error = Alone.all_to_all(&[b"abc"], &mut [&mut [0; 2]]).expect_err("one byte too many");
        assert_eq!(error.to_string(), "all_to_all: 2 bytes are expected of rank 0, which sends 3");
        let error = Alone.all_gather(&mut []).expect_err("no part");
        assert_eq!(error.to_string(), "all_gather: 0 parts were given for a world of 1");
    }
}
