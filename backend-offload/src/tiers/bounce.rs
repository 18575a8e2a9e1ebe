//! The buffers that blocks pass to and from the disk.
//!
//! Background transfers take at most [`BACKGROUND_BUFFERS`]; the rest serves a block that the program awaits
//! (`blocks_are_written_in_the_background_in_a_bounded_number_of_buffers`).
//!
//! A block counts as spilled once its bytes are in buffers. After a failed write, the buffer keeps its contents and
//! serves reads. No block is written until a retry succeeds
//! (`a_failed_background_write_keeps_its_contents_and_fails_the_next_block`).
//!
//! A dropped block waits for its pieces (`a_block_dropped_while_it_is_written_overwrites_no_other_block`). A piece lost
//! in a dead ring keeps its buffer and its place in the file; its slot gets another buffer
//! (`a_write_lost_in_a_dead_ring_keeps_its_contents_and_its_place`).

mod carriers;
#[cfg(test)]
mod schedule;

pub(super) use self::carriers::Means;
use self::carriers::{Carrier, Carriers};
use super::aligned::Memory;
use super::extents::ALIGNMENT;
#[cfg(test)]
use super::ring::Ring;
use super::transfer::{BUFFERS, Direction, finish, move_all};
#[cfg(any(test, feature = "test-util"))]
use crate::faults::DiskFault;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;

pub(super) const PIECE: usize = 4 << 20;

pub(super) const BACKGROUND_BUFFERS: usize = BUFFERS - 2;

pub(super) struct Bounce {
    file: Arc<File>,
    /// Dropped before `memory`, which transfers may use.
    carriers: Carriers,
    memory: Memory,
    pieces: [Option<Piece>; BUFFERS],
    begun: u64,
    /// Blocks whose places a lost piece may still write.
    lost: Vec<u64>,
    #[cfg(test)]
    pub(super) broken: Arc<std::sync::atomic::AtomicU8>,
    #[cfg(feature = "test-util")]
    pub(super) breaks_every: Option<(DiskFault, u64)>,
    #[cfg(feature = "test-util")]
    moved: std::cell::Cell<u64>,
}

struct Piece {
    part: Part,
    direction: Direction,
    turn: u64,
    progress: Progress,
    #[cfg(any(test, feature = "test-util"))]
    fault: Option<DiskFault>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// The block's number in order of spills.
    pub owner: u64,
    pub place: u64,
    /// Bytes in the file.
    pub len: usize,
    pub block: usize,
}

enum Progress {
    Moving(Carrier),
    Landed(io::Result<()>),
}

impl Bounce {
    pub(super) fn new(file: Arc<File>, len: u64, means: Means) -> Self {
        let memory = Memory::zeroed(BUFFERS, (PIECE as u64).min(len).next_multiple_of(ALIGNMENT) as usize);
        Self {
            file,
            carriers: Carriers::new(&memory, means),
            memory,
            pieces: [const { None }; BUFFERS],
            begun: 0,
            lost: Vec::new(),
            #[cfg(test)]
            broken: Arc::default(),
            #[cfg(feature = "test-util")]
            breaks_every: None,
            #[cfg(feature = "test-util")]
            moved: std::cell::Cell::default(),
        }
    }

    /// Waits for a write, or drops another block's read-ahead. `None` if only `owner`'s reads and failed writes remain.
    pub(super) fn spare(&mut self, owner: u64) -> Option<usize> {
        loop {
            if let Some(slot) = self.free_or_reaped() {
                return Some(slot);
            }
            if let Some(slot) = self.oldest_write() {
                self.land(slot);
            } else {
                let slot = self.latest_read(|other| other != owner)?;
                self.drop_piece(slot);
            }
        }
    }

    fn free_or_reaped(&mut self) -> Option<usize> {
        let free = |pieces: &[Option<Piece>]| pieces.iter().position(Option::is_none);
        free(&self.pieces).or_else(|| {
            self.reap();
            free(&self.pieces)
        })
    }

    /// The rest of `len` bytes is zeros.
    pub(super) fn fill(&mut self, slot: usize, bytes: &[u8], len: usize) {
        assert!(self.pieces[slot].is_none(), "the buffer is in use");
        // SAFETY: no transfer uses a spare buffer.
        let buffer = unsafe { self.memory.part(slot, len).as_mut() };
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer[bytes.len()..].fill(0);
    }

    pub(super) fn begin(&mut self, slot: usize, part: Part, direction: Direction, background: bool) {
        assert!(self.pieces[slot].is_none(), "the buffer is in use");
        let bytes = self.memory.part(slot, part.len);
        #[cfg(any(test, feature = "test-util"))]
        let fault = if background { self.fault(direction) } else { None };

        let carrier = if background {
            // SAFETY: the buffer is not touched until the piece lands.
            unsafe { self.carriers.start(slot, &self.file, direction, bytes, part.place) }
        } else {
            None
        };

        let progress = match carrier {
            Some(carrier) => Progress::Moving(carrier),
            None => Progress::Landed(self.run(slot, &part, direction)),
        };

        self.begun += 1;
        if !matches!((direction, &progress), (Direction::Write, Progress::Landed(Ok(())))) {
            self.pieces[slot] = Some(Piece {
                part,
                direction,
                turn: self.begun,
                progress,
                #[cfg(any(test, feature = "test-util"))]
                fault,
            });
        }
    }

    /// Nothing else uses the buffer.
    fn run(&self, slot: usize, part: &Part, direction: Direction) -> io::Result<()> {
        // SAFETY: the caller has the buffer to itself.
        let bytes = unsafe { self.memory.part(slot, part.len).as_mut() };
        move_all(&self.file, direction, bytes, part.place)?;
        #[cfg(any(test, feature = "test-util"))]
        if let Some(fault) = self.fault(direction) {
            fault.strike(bytes)?;
        }
        Ok(())
    }

    /// A completed write frees the buffer.
    fn land(&mut self, slot: usize) {
        let Some(piece) = &mut self.pieces[slot] else { return };
        let moved = match piece.progress {
            Progress::Landed(_) => return,
            Progress::Moving(carrier) => self.carriers.landed(carrier, slot, piece.part.len),
        };
        let moved = moved.unwrap_or_else(|| {
            match piece.direction {
                Direction::Write => {
                    self.lost.push(piece.part.owner);
                    self.memory.replace_by_copy(slot);
                }
                Direction::Read => self.memory.replace(slot),
            }
            Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not end the transfer"))
        });
        // SAFETY: the transfer has ended.
        let bytes = unsafe { self.memory.part(slot, piece.part.len).as_mut() };
        let end = finish(&self.file, piece.direction, bytes, piece.part.place, moved);
        #[cfg(any(test, feature = "test-util"))]
        let end = end.and_then(|()| piece.fault.map_or(Ok(()), |fault| fault.strike(bytes)));
        if piece.direction == Direction::Write && end.is_ok() {
            self.pieces[slot] = None;
        } else {
            piece.progress = Progress::Landed(end);
        }
    }

    pub(super) fn land_all(&mut self) {
        for slot in 0..BUFFERS {
            self.land(slot);
        }
    }

    fn has_ended(&mut self, slot: usize) -> bool {
        match self.pieces[slot] {
            Some(Piece { progress: Progress::Moving(carrier), .. }) => self.carriers.has_ended(carrier, slot),
            _ => false,
        }
    }

    pub(super) fn has_landed(&self, slot: usize) -> bool {
        matches!(self.pieces[slot], Some(Piece { progress: Progress::Landed(_), .. }))
    }

    /// A read frees its buffer; a failed write stays.
    pub(super) fn take(&mut self, slot: usize, work: impl FnOnce(&[u8])) -> io::Result<()> {
        self.land(slot);
        let piece = self.pieces[slot].take().expect("the buffer has a piece");
        if piece.direction == Direction::Write {
            work(self.contents(slot, piece.part.len));
            self.pieces[slot] = Some(piece);
            return Ok(());
        }
        if let Progress::Landed(end) = piece.progress {
            end?;
        }
        work(self.contents(slot, piece.part.len));
        Ok(())
    }

    fn contents(&self, slot: usize, len: usize) -> &[u8] {
        // SAFETY: callers waited for the piece, and `&self` excludes changes.
        unsafe { self.memory.part(slot, len).as_ref() }
    }

    pub(super) fn find(&self, owner: u64, place: u64) -> Option<usize> {
        let is_it = |piece: &Piece| piece.part.owner == owner && piece.part.place == place;
        self.pieces.iter().position(|piece| piece.as_ref().is_some_and(is_it))
    }

    pub(super) fn wait_for_writes(&mut self, owner: u64) {
        for slot in self.slots_of(|piece| piece.part.owner == owner && piece.direction == Direction::Write) {
            self.land(slot);
        }
    }

    /// Leaves at most [`BACKGROUND_BUFFERS`] in use.
    pub(super) fn leave_behind(&mut self, owner: u64) -> io::Result<()> {
        while self.taken() > BACKGROUND_BUFFERS {
            if let Some(slot) = self.oldest_write() {
                self.land(slot);
            } else if let Some(slot) = self.latest_read(|_| true) {
                self.drop_piece(slot);
            } else {
                break;
            }
        }
        self.error_of(owner).map_or(Ok(()), Err)
    }

    pub(super) fn error_of(&self, owner: u64) -> Option<io::Error> {
        self.unwritten().find(|piece| piece.part.owner == owner).and_then(Piece::error).map(same)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.unwritten().next().is_some()
    }

    fn unwritten(&self) -> impl Iterator<Item = &Piece> {
        let failed = |piece: &&Piece| piece.direction == Direction::Write && piece.error().is_some();
        self.pieces.iter().flatten().filter(failed)
    }

    pub(super) fn repeat_failed(&mut self) -> Result<(), (Part, io::Error)> {
        for slot in self.slots_of(|piece| piece.direction == Direction::Write && piece.error().is_some()) {
            let Some(part) = self.pieces[slot].as_ref().map(|piece| piece.part) else { continue };
            let end = self.run(slot, &part, Direction::Write);
            end.map_err(|error| (part, error))?;
            self.pieces[slot] = None;
        }
        Ok(())
    }

    pub(super) fn wait_for_all_writes(&mut self) -> Result<(), (Part, io::Error)> {
        while let Some(slot) = self.oldest_write() {
            self.land(slot);
        }
        self.repeat_failed()
    }

    /// False without a free buffer, or while the block is written.
    pub(super) fn read_ahead(&mut self, part: Part) -> bool {
        if self.find(part.owner, part.place).is_some() {
            return true;
        }
        let Some(slot) = self.spare_in_background() else { return false };
        let writes = |piece: &Piece| piece.part.owner == part.owner && piece.direction == Direction::Write;
        if !self.slots_of(writes).is_empty() {
            return false;
        }
        self.begin(slot, part, Direction::Read, true);
        true
    }

    /// Does not wait.
    pub(super) fn spare_in_background(&mut self) -> Option<usize> {
        if self.taken() >= BACKGROUND_BUFFERS {
            self.reap();
        }
        self.pieces.iter().position(Option::is_none).filter(|_| self.taken() < BACKGROUND_BUFFERS)
    }

    pub(super) fn reap(&mut self) {
        for slot in 0..BUFFERS {
            if self.has_ended(slot) {
                self.land(slot);
            }
        }
    }

    /// Drops ended read-ahead pieces of unwanted blocks.
    pub(super) fn keep_ahead(&mut self, wanted: impl Fn(u64) -> bool) {
        for slot in self.slots_of(|piece| piece.direction == Direction::Read && !wanted(piece.part.owner)) {
            if self.has_landed(slot) || self.has_ended(slot) {
                self.drop_piece(slot);
            }
        }
    }

    pub(super) fn has_read(&self, owner: u64) -> bool {
        !self.slots_of(|piece| piece.part.owner == owner && piece.direction == Direction::Read).is_empty()
    }

    pub(super) fn forget(&mut self, owner: u64, direction: Option<Direction>) {
        let is_it = |piece: &Piece| {
            piece.part.owner == owner && direction.is_none_or(|direction| direction == piece.direction)
        };
        for slot in self.slots_of(is_it) {
            self.drop_piece(slot);
        }
    }

    pub(super) fn is_lost(&self, owner: u64) -> bool {
        self.lost.contains(&owner)
    }

    fn drop_piece(&mut self, slot: usize) {
        self.land(slot);
        self.pieces[slot] = None;
    }

    fn slots_of(&self, is_it: impl Fn(&Piece) -> bool) -> Vec<usize> {
        (0..BUFFERS).filter(|slot| self.pieces[*slot].as_ref().is_some_and(&is_it)).collect()
    }

    pub(super) fn taken(&self) -> usize {
        self.pieces.iter().flatten().count()
    }

    fn oldest_write(&self) -> Option<usize> {
        let writes = |piece: &Piece| {
            piece.direction == Direction::Write && !matches!(piece.progress, Progress::Landed(_))
        };
        self.slots_of(writes).into_iter().min_by_key(|slot| self.turn(*slot))
    }

    fn latest_read(&self, may_drop: impl Fn(u64) -> bool) -> Option<usize> {
        let reads = |piece: &Piece| piece.direction == Direction::Read && may_drop(piece.part.owner);
        self.slots_of(reads).into_iter().max_by_key(|slot| self.turn(*slot))
    }

    fn turn(&self, slot: usize) -> u64 {
        self.pieces[slot].as_ref().map_or(0, |piece| piece.turn)
    }

    #[cfg(any(test, feature = "test-util"))]
    fn fault(&self, direction: Direction) -> Option<DiskFault> {
        let writes = direction == Direction::Write;
        #[cfg(test)]
        {
            use std::sync::atomic::Ordering::Relaxed;
            if self.broken.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                return Some(if writes { DiskFault::Write } else { DiskFault::Read });
            }
        }
        #[cfg(feature = "test-util")]
        if let Some((fault, every)) = self.breaks_every.filter(|(fault, _)| fault.is_of_writes() == writes) {
            self.moved.set(self.moved.get() + 1);
            return self.moved.get().is_multiple_of(every).then_some(fault);
        }
        None
    }

    #[cfg(test)]
    pub(super) fn reads(&self) -> usize {
        self.slots_of(|piece| piece.direction == Direction::Read).len()
    }

    #[cfg(test)]
    pub(super) fn exchange_file(&mut self, file: Arc<File>) -> Arc<File> {
        std::mem::replace(&mut self.file, file)
    }

    #[cfg(test)]
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        self.carriers.ring()
    }
}

impl Piece {
    fn error(&self) -> Option<&io::Error> {
        match &self.progress {
            Progress::Landed(Err(error)) => Some(error),
            _ => None,
        }
    }
}

/// `io::Error` is not `Clone`.
fn same(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// Waits: kernel and threads may still use the buffers.
impl Drop for Bounce {
    fn drop(&mut self) {
        self.land_all();
    }
}

impl fmt::Debug for Bounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounce").field("has_ring", &self.carriers.has_ring()).finish_non_exhaustive()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
