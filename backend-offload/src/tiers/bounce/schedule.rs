//! Transfers that end at times drawn from a seed, on any machine.

use crate::tiers::transfer::{BUFFERS, Direction, move_all};
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// A piece moves at its start or landing, and ends at some poll.
pub(in crate::tiers) struct Schedule {
    /// One poll in `polls` finds an end.
    polls: u64,
    state: u64,
    pieces: [Option<Scheduled>; BUFFERS],
}

struct Scheduled {
    job: Job,
    moved: Option<io::Result<()>>,
    has_ended: bool,
}

struct Job {
    file: Arc<File>,
    direction: Direction,
    piece: NonNull<[u8]>,
    place: u64,
}

// SAFETY: the sender does not touch the piece until it has landed.
unsafe impl Send for Job {}

impl Schedule {
    pub(super) fn new(seed: u64) -> Self {
        Self { polls: 1 << (seed % 7), state: seed, pieces: [const { None }; BUFFERS] }
    }

    fn draw(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state >> 33
    }

    /// # Safety
    /// Nothing else touches the piece until it has [landed](Self::landed).
    pub(super) unsafe fn start(
        &mut self,
        slot: usize,
        file: &Arc<File>,
        direction: Direction,
        piece: NonNull<[u8]>,
        place: u64,
    ) {
        let mut job = Job { file: file.clone(), direction, piece, place };
        let moved = self.draw().is_multiple_of(2).then(|| job.run());
        self.pieces[slot] = Some(Scheduled { job, moved, has_ended: false });
    }

    pub(super) fn has_ended(&mut self, slot: usize) -> bool {
        let ends = self.draw().is_multiple_of(self.polls);
        self.pieces[slot].as_mut().is_some_and(|piece| {
            piece.has_ended |= ends;
            piece.has_ended
        })
    }

    pub(super) fn landed(&mut self, slot: usize) -> io::Result<()> {
        let mut piece = self.pieces[slot].take().expect("the piece was started");
        piece.moved.take().unwrap_or_else(|| piece.job.run())
    }
}

impl Job {
    fn run(&mut self) -> io::Result<()> {
        // SAFETY: nothing else touches the piece until it has landed.
        move_all(&self.file, self.direction, unsafe { self.piece.as_mut() }, self.place)
    }
}
