//! The buffers that blocks pass on their way to and from the disk, and who has them.
//!
//! Pieces are on their way beside the program: those of blocks that have sunk, until they are written, and those of blocks
//! that are raised soon. Their number is bounded, and some buffers are left to the block that the program waits for.
//!
//! A block counts as sunk once all of it is in buffers, so that a write may fail when nobody waits for it. Then its buffer keeps the
//! contents, and they are read from there. Nothing more is written before that write was repeated and succeeded: its error
//! is told to the next block that is to sink.

mod carriers;
#[cfg(test)]
mod schedule;

pub(super) use self::carriers::Means;
use self::carriers::{Carrier, Carriers};
use super::aligned::Memory;
use super::extents::ALIGNMENT;
#[cfg(test)]
use super::ring::Ring;
use super::transfer::{Direction, finish, move_all};
#[cfg(any(test, feature = "test-util"))]
use crate::faults::DiskFault;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Bytes of one read or write, through buffers that are aligned as the disk wants.
pub(super) const PIECE: usize = 4 << 20;

/// Number of buffers.
pub(super) const BUFFERS: usize = 8;

/// Buffers that are taken while no call to the disk runs, at most.
pub(super) const BESIDE: usize = BUFFERS - 2;

/// The buffers of one disk.
pub(super) struct Bounce {
    file: Arc<File>,
    /// Closed before their buffers are freed.
    carriers: Carriers,
    memory: Memory,
    pieces: [Option<Piece>; BUFFERS],
    /// Number of pieces begun.
    begun: u64,
    /// Number of pieces that fail from now on.
    #[cfg(test)]
    pub(super) broken: Arc<std::sync::atomic::AtomicU8>,
    /// Every so many pieces that the fault is about has it.
    #[cfg(feature = "test-util")]
    pub(super) breaks_every: Option<(DiskFault, u64)>,
    /// Number of them since.
    #[cfg(feature = "test-util")]
    moved: std::cell::Cell<u64>,
}

/// A part of a block in a buffer.
struct Piece {
    part: Part,
    direction: Direction,
    /// Place in the order of beginnings.
    turn: u64,
    way: Way,
    /// How it goes wrong on purpose when it lands.
    #[cfg(any(test, feature = "test-util"))]
    fault: Option<DiskFault>,
}

/// A part of a block, and where it is in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// The block's number among all that ever sank.
    pub owner: u64,
    pub place: u64,
    /// Bytes in the file.
    pub len: usize,
    /// Bytes of the whole block.
    pub block: usize,
}

enum Way {
    By(Carrier),
    Landed(io::Result<()>),
}

impl Bounce {
    /// Buffers for a file of `len` bytes.
    pub(super) fn new(file: Arc<File>, len: u64, means: Means) -> Self {
        let memory = Memory::zeroed(BUFFERS, (PIECE as u64).min(len).next_multiple_of(ALIGNMENT) as usize);
        Self {
            file,
            carriers: Carriers::new(&memory, means),
            memory,
            pieces: [const { None }; BUFFERS],
            begun: 0,
            #[cfg(test)]
            broken: Arc::default(),
            #[cfg(feature = "test-util")]
            breaks_every: None,
            #[cfg(feature = "test-util")]
            moved: std::cell::Cell::default(),
        }
    }

    /// A buffer for the block `owner`, as soon as there is one; `None` if its own pieces and those that could not be written have
    /// all.
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

    /// Fills a spare buffer with `bytes` and zeros up to `len`.
    pub(super) fn fill(&mut self, slot: usize, bytes: &[u8], len: usize) {
        assert!(self.pieces[slot].is_none(), "the buffer is in use");
        // SAFETY: the buffer is spare.
        let buffer = unsafe { self.memory.part(slot, len).as_mut() };
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer[bytes.len()..].fill(0);
    }

    /// Transfers a part between a spare buffer and the file: `beside` the caller, or before this returns.
    pub(super) fn begin(&mut self, slot: usize, part: Part, direction: Direction, beside: bool) {
        assert!(self.pieces[slot].is_none(), "the buffer is in use");
        let bytes = self.memory.part(slot, part.len);
        #[cfg(any(test, feature = "test-util"))]
        let fault = if beside { self.fault(direction) } else { None };
        let carrier = if beside {
            // SAFETY: the buffer is touched again only when its piece landed, which `drop` waits for at the latest.
            unsafe { self.carriers.start(slot, &self.file, direction, bytes, part.place) }
        } else {
            None
        };
        let way = match carrier {
            Some(carrier) => Way::By(carrier),
            None => Way::Landed(self.run(slot, &part, direction)),
        };
        self.begun += 1;
        if !matches!((direction, &way), (Direction::Write, Way::Landed(Ok(())))) {
            self.pieces[slot] = Some(Piece {
                part,
                direction,
                turn: self.begun,
                way,
                #[cfg(any(test, feature = "test-util"))]
                fault,
            });
        }
    }

    /// Transfers a part at once, while the caller waits: of a buffer that nothing else uses.
    fn run(&self, slot: usize, part: &Part, direction: Direction) -> io::Result<()> {
        // SAFETY: callers have the buffer for themselves.
        let bytes = unsafe { self.memory.part(slot, part.len).as_mut() };
        move_all(&self.file, direction, bytes, part.place)?;
        #[cfg(any(test, feature = "test-util"))]
        if let Some(fault) = self.fault(direction) {
            fault.strike(bytes)?;
        }
        Ok(())
    }

    /// Waits for the piece in a buffer, which is spare then if it was written.
    fn land(&mut self, slot: usize) {
        let Some(piece) = &mut self.pieces[slot] else { return };
        let moved = match piece.way {
            Way::Landed(_) => return,
            Way::By(carrier) => self.carriers.landed(carrier, slot, piece.part.len),
        };
        // SAFETY: nobody else has the buffer any more.
        let bytes = unsafe { self.memory.part(slot, piece.part.len).as_mut() };
        let end = finish(&self.file, piece.direction, bytes, piece.part.place, moved);
        #[cfg(any(test, feature = "test-util"))]
        let end = end.and_then(|()| piece.fault.map_or(Ok(()), |fault| fault.strike(bytes)));
        if piece.direction == Direction::Write && end.is_ok() {
            self.pieces[slot] = None;
        } else {
            piece.way = Way::Landed(end);
        }
    }

    /// Waits for all pieces.
    pub(super) fn land_all(&mut self) {
        for slot in 0..BUFFERS {
            self.land(slot);
        }
    }

    fn has_ended(&mut self, slot: usize) -> bool {
        match self.pieces[slot] {
            Some(Piece { way: Way::By(carrier), .. }) => self.carriers.has_ended(carrier, slot),
            _ => false,
        }
    }

    /// Whether the piece in a buffer is known to have ended.
    pub(super) fn has_landed(&self, slot: usize) -> bool {
        matches!(self.pieces[slot], Some(Piece { way: Way::Landed(_), .. }))
    }

    /// Hands a read piece to `work` and gives its buffer up. What could not be written is handed over, too, and stays.
    pub(super) fn take(&mut self, slot: usize, work: impl FnOnce(&[u8])) -> io::Result<()> {
        self.land(slot);
        let piece = self.pieces[slot].take().expect("the buffer has a piece");
        if piece.direction == Direction::Write {
            work(self.contents(slot, piece.part.len));
            self.pieces[slot] = Some(piece);
            return Ok(());
        }
        if let Way::Landed(end) = piece.way {
            end?;
        }
        work(self.contents(slot, piece.part.len));
        Ok(())
    }

    fn contents(&self, slot: usize, len: usize) -> &[u8] {
        // SAFETY: callers waited for the buffer's piece, and `&self` lets nobody change it.
        unsafe { self.memory.part(slot, len).as_ref() }
    }

    /// The buffer that has this part of a block.
    pub(super) fn find(&self, owner: u64, place: u64) -> Option<usize> {
        let is_it = |piece: &Piece| piece.part.owner == owner && piece.part.place == place;
        self.pieces.iter().position(|piece| piece.as_ref().is_some_and(is_it))
    }

    /// Waits for a block's writes.
    pub(super) fn wait_for_writes(&mut self, owner: u64) {
        for slot in self.slots_of(|piece| piece.part.owner == owner && piece.direction == Direction::Write) {
            self.land(slot);
        }
    }

    /// Leaves the block's writes to themselves, but for those that others need the buffers of.
    pub(super) fn leave_behind(&mut self, owner: u64) -> io::Result<()> {
        while self.taken() > BESIDE {
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

    /// Why a piece of the block could not be written, if one could not.
    pub(super) fn error_of(&self, owner: u64) -> Option<io::Error> {
        self.unwritten().find(|piece| piece.part.owner == owner).and_then(Piece::error).map(same)
    }

    /// Whether any piece could not be written.
    pub(super) fn has_failed(&self) -> bool {
        self.unwritten().next().is_some()
    }

    fn unwritten(&self) -> impl Iterator<Item = &Piece> {
        let failed = |piece: &&Piece| piece.direction == Direction::Write && piece.error().is_some();
        self.pieces.iter().flatten().filter(failed)
    }

    /// Repeats writes that failed when nobody waited for them. The error has the part of a block it is about.
    pub(super) fn repeat_failed(&mut self) -> Result<(), (Part, io::Error)> {
        for slot in self.slots_of(|piece| piece.direction == Direction::Write && piece.error().is_some()) {
            let Some(part) = self.pieces[slot].as_ref().map(|piece| piece.part) else { continue };
            let end = self.run(slot, &part, Direction::Write);
            end.map_err(|error| (part, error))?;
            self.pieces[slot] = None;
        }
        Ok(())
    }

    /// Waits for all writes.
    pub(super) fn wait_for_all_writes(&mut self) -> Result<(), (Part, io::Error)> {
        while let Some(slot) = self.oldest_write() {
            self.land(slot);
        }
        self.repeat_failed()
    }

    /// Starts to read a part that is wanted soon, if a buffer can be had without waiting.
    pub(super) fn read_ahead(&mut self, part: Part) -> bool {
        if self.find(part.owner, part.place).is_some() {
            return true;
        }
        let Some(slot) = self.beside() else { return false };
        let writes = |piece: &Piece| piece.part.owner == part.owner && piece.direction == Direction::Write;
        if !self.slots_of(writes).is_empty() {
            return false;
        }
        self.begin(slot, part, Direction::Read, true);
        true
    }

    /// A buffer for a piece that nobody waits for, if one can be had at once and enough are left to others.
    pub(super) fn beside(&mut self) -> Option<usize> {
        if self.taken() >= BESIDE {
            self.reap();
        }
        self.pieces.iter().position(Option::is_none).filter(|_| self.taken() < BESIDE)
    }

    /// Takes note of what has ended.
    pub(super) fn reap(&mut self) {
        for slot in 0..BUFFERS {
            if self.has_ended(slot) {
                self.land(slot);
            }
        }
    }

    /// Gives up what was read ahead for blocks that are not `wanted`, where nothing has to be waited for.
    pub(super) fn keep_ahead(&mut self, wanted: impl Fn(u64) -> bool) {
        for slot in self.slots_of(|piece| piece.direction == Direction::Read && !wanted(piece.part.owner)) {
            if self.has_landed(slot) || self.has_ended(slot) {
                self.drop_piece(slot);
            }
        }
    }

    /// Whether something of a block was read ahead.
    pub(super) fn has_read(&self, owner: u64) -> bool {
        !self.slots_of(|piece| piece.part.owner == owner && piece.direction == Direction::Read).is_empty()
    }

    /// Gives up a block's pieces of one direction or of both.
    pub(super) fn forget(&mut self, owner: u64, direction: Option<Direction>) {
        let is_it = |piece: &Piece| {
            piece.part.owner == owner && direction.is_none_or(|direction| direction == piece.direction)
        };
        for slot in self.slots_of(is_it) {
            self.drop_piece(slot);
        }
    }

    fn drop_piece(&mut self, slot: usize) {
        self.land(slot);
        self.pieces[slot] = None;
    }

    fn slots_of(&self, is_it: impl Fn(&Piece) -> bool) -> Vec<usize> {
        (0..BUFFERS).filter(|slot| self.pieces[*slot].as_ref().is_some_and(&is_it)).collect()
    }

    /// Number of buffers in use.
    pub(super) fn taken(&self) -> usize {
        self.pieces.iter().flatten().count()
    }

    fn oldest_write(&self) -> Option<usize> {
        let writes =
            |piece: &Piece| piece.direction == Direction::Write && !matches!(piece.way, Way::Landed(_));
        self.slots_of(writes).into_iter().min_by_key(|slot| self.turn(*slot))
    }

    fn latest_read(&self, of: impl Fn(u64) -> bool) -> Option<usize> {
        let reads = |piece: &Piece| piece.direction == Direction::Read && of(piece.part.owner);
        self.slots_of(reads).into_iter().max_by_key(|slot| self.turn(*slot))
    }

    fn turn(&self, slot: usize) -> u64 {
        self.pieces[slot].as_ref().map_or(0, |piece| piece.turn)
    }

    /// The fault that the next piece is to have.
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

    /// Number of buffers that something is read into, or was.
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
        match &self.way {
            Way::Landed(Err(error)) => Some(error),
            _ => None,
        }
    }
}

/// The same error once more, for who is told of it first.
fn same(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// Takes back what the kernel and threads have.
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
