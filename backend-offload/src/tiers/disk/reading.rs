//! Reads blocks from the disk, piece by piece, waiting or in the background.
//!
//! Every read is verified, for its block alone (`a_changed_byte_on_the_disk_fails_the_read`,
//! `a_failed_background_read_fails_no_other_block`).

use super::Spilled;
use crate::error::OffloadError;
use crate::tiers::bounce::Bounce;
use crate::tiers::checksum::Checksum;
use crate::tiers::transfer::Direction;
use std::collections::VecDeque;
use std::io;

#[derive(Debug, Default)]
pub(in crate::tiers) struct Landing {
    pub(super) pieces: usize,
    at: usize,
    /// Covers all pieces but the last.
    checksum: Checksum,
}

impl Landing {
    fn take(&mut self, into: &mut [u8], piece: &[u8]) {
        let end = into.len().min(self.at + piece.len());
        let is_last = end == into.len();
        let now = &mut into[self.at..end];
        now.copy_from_slice(&piece[..now.len()]);
        if !is_last {
            self.checksum.add(now);
            self.at = end;
        }
        self.pieces += 1;
    }
}

impl Spilled {
    pub(in crate::tiers) fn read(&self, into: &mut [u8]) -> Result<(), OffloadError> {
        self.read_rest(into, Landing::default())
    }

    pub(in crate::tiers) fn read_rest(&self, into: &mut [u8], landing: Landing) -> Result<(), OffloadError> {
        let mut bounce = self.disk.bounce();
        bounce.wait_for_writes(self.number);
        let was_ahead = landing.pieces > 0 || bounce.has_read(self.number);
        let mut found = self.land(&mut bounce, into, landing);
        if found.is_err() {
            bounce.forget(self.number, Some(Direction::Read));
        }
        if found.is_err() && was_ahead {
            // A background read may have failed earlier.
            found = self.land(&mut bounce, into, Landing::default());
            bounce.forget(self.number, Some(Direction::Read));
        }
        drop(bounce);
        let landing = found.map_err(|error| self.failed("reading", &error.to_string()))?;
        self.verify(into, landing)
    }

    /// `None` once the block is complete.
    pub(in crate::tiers) fn read_in_background(
        &self,
        into: &mut [u8],
        mut landing: Landing,
    ) -> Result<Option<Landing>, OffloadError> {
        let Ok(mut bounce) = self.disk.bounce.try_lock() else { return Ok(Some(landing)) };
        bounce.reap();

        let mut left = self.pieces().skip(landing.pieces).peekable();
        while let Some(slot) = left.peek().and_then(|part| bounce.find(part.owner, part.place))
            && bounce.has_landed(slot)
        {
            let taken = bounce.take(slot, |piece| landing.take(into, piece));
            if let Err(error) = taken {
                bounce.forget(self.number, Some(Direction::Read));
                return Err(self.failed("reading", &error.to_string()));
            }
            left.next();
        }

        let is_whole = left.peek().is_none();
        for part in left {
            if !bounce.read_ahead(part) {
                break;
            }
        }
        drop(bounce);
        if is_whole { self.verify(into, landing).map(|()| None) } else { Ok(Some(landing)) }
    }

    fn land(&self, bounce: &mut Bounce, into: &mut [u8], mut landing: Landing) -> io::Result<Landing> {
        let mut under_way = VecDeque::new();
        for part in self.pieces().skip(landing.pieces) {
            let slot = match bounce.find(self.number, part.place) {
                Some(slot) => slot,
                None => loop {
                    if let Some(slot) = bounce.spare(self.number) {
                        // A block of one piece has nothing to overlap.
                        bounce.begin(slot, part, Direction::Read, part.len < self.len);
                        break slot;
                    }
                    let first = under_way.pop_front().expect("every other buffer is under way");
                    bounce.take(first, |piece| landing.take(into, piece))?;
                },
            };

            under_way.push_back(slot);
        }

        for slot in under_way {
            bounce.take(slot, |piece| landing.take(into, piece))?;
        }
        Ok(landing)
    }

    fn verify(&self, read: &[u8], landing: Landing) -> Result<(), OffloadError> {
        if landing.checksum.of_last(&read[landing.at..]) != self.checksum {
            return Err(self.failed("reading", "its bytes are not those that were written"));
        }
        Ok(())
    }
}
