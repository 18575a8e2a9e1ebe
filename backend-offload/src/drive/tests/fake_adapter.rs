//! A small adapter with real bytes: the fake device that the tests drive.
//!
//! Its memory is a table with the contents of each block on the device. A second table keeps the last contents that the
//! program wrote. Moves complete at once or later, in any order, and fail at the start or the end.

use crate::drive::{Device, MoveFailure, Progress, complete, draft, load_to_host, make_resident, make_room};
use crate::error::OffloadError;
use crate::journal::Journal;
use crate::report::Counts;
use crate::tiers::{ALIGNMENT, Disk, Draft, HostPool, Lease, Share, SlabSource, Tiers};
use pager::{Arena, BlockId, Limit, Outcome, Oversized, Pager, Place, Policy, Tier, TierSet, Token};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The ways in which a copy fails.
#[derive(Debug, Clone, Copy)]
pub(super) enum Break {
    AtStart,
    ByPanic,
    AtLanding,
}

/// The true state of a block, to compare with the pager's.
#[derive(Debug)]
pub(super) struct Shadow {
    pub id: BlockId,
    /// The contents after the last write; `None` for a block never written.
    pub written: Option<Vec<u8>>,
    pub pinned: bool,
    pub dead: bool,
    /// The block's device memory.
    pub memory: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct Flight {
    token: Token,
    block: BlockId,
    breaks: bool,
    cargo: Cargo,
    /// The device memory of a block that was removed.
    orphan: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) enum Cargo {
    Nothing,
    /// A copy to the host: half is copied when the move starts, the rest when it ends.
    Out(Draft),
    In(Lease),
}

#[derive(Debug)]
pub(super) struct FakeAdapter {
    pub pager: Pager,
    pub tiers: Tiers,
    pub journal: Journal,
    pub counts: Counts,
    pub oversized: Oversized,
    /// The shadows, by block index.
    pub shadows: Vec<Option<Shadow>>,
    pub live: Vec<BlockId>,
    pub flights: Vec<Flight>,
    pub ended: Vec<(Token, Result<(), MoveFailure>)>,
    /// Operands of the current operation.
    pub operands: Vec<BlockId>,
    /// Whether moves may end late; chance decides which ones do.
    pub takes_time: bool,
    pub chance: u64,
    pub refusals: u8,
    pub driver_panics: bool,
    pub broken_copies: u8,
    pub breaks: u8,
    /// Broken promises within a move, where a panic would only count as a failed move.
    pub broken_promises: Vec<&'static str>,
    pub next_value: u64,
    /// The program's own host memory.
    pub taken: Vec<Draft>,
    pub copied_out: u64,
    pub copied_in: u64,
}

/// The message of injected panics.
const DELIBERATE: &str = "the runtime panics";

/// Fills the device memory of a block that was never written.
const GARBAGE: u8 = 0xee;

fn pager_of(budget: Limit, policy: Policy, oversized: Oversized, takes_time: bool) -> Pager {
    let mut pager = Pager::new(budget, policy, oversized);
    pager.look_ahead(takes_time);
    pager
}

impl FakeAdapter {
    pub fn new(
        budget: Limit,
        host: Limit,
        policy: Policy,
        oversized: Oversized,
        (takes_time, paranoid): (bool, bool),
    ) -> Self {
        Self::above_a_disk(budget, host, None, policy, oversized, (takes_time, paranoid))
    }

    /// An adapter with a disk below the host.
    pub fn above_a_disk(
        budget: Limit,
        host: Limit,
        disk: Option<Arc<Disk>>,
        policy: Policy,
        oversized: Oversized,
        (takes_time, paranoid): (bool, bool),
    ) -> Self {
        Self {
            pager: pager_of(budget, policy, oversized, takes_time),
            tiers: Tiers::new(HostPool::new(host, Limit::NONE), SlabSource::Heap, paranoid).above(disk),
            journal: Journal::default(),
            counts: Counts::default(),
            oversized,
            shadows: Vec::new(),
            live: Vec::new(),
            flights: Vec::new(),
            ended: Vec::new(),
            operands: Vec::new(),
            takes_time,
            chance: 1,
            refusals: 0,
            driver_panics: false,
            broken_copies: 0,
            breaks: 0,
            broken_promises: Vec::new(),
            next_value: 0,
            taken: Vec::new(),
            copied_out: 0,
            copied_in: 0,
        }
    }

    pub fn nth(&self, n: u8) -> Option<BlockId> {
        (!self.live.is_empty()).then(|| self.live[n as usize % self.live.len()])
    }

    pub fn shadow(&mut self, id: BlockId) -> &mut Shadow {
        let shadow = self.shadows[id.index as usize].as_mut().expect("a block that lives");
        assert_eq!(shadow.id, id, "an id is never another block's");
        shadow
    }

    pub fn bytes(&self, id: BlockId) -> usize {
        self.pager.get(id).expect("a block that lives").bytes as usize
    }

    /// Unique contents: the first and last bytes differ from those of every earlier block.
    pub fn new_contents(&mut self, bytes: usize) -> Vec<u8> {
        self.next_value += 1;
        let mut contents = vec![self.next_value as u8; bytes];
        for (byte, word) in contents.iter_mut().zip(self.next_value.to_le_bytes()) {
            *byte = word;
        }
        contents
    }

    pub fn insert(&mut self, bytes: u64, arena: u8) -> BlockId {
        let id = self.pager.insert(bytes, Arena(u32::from(arena)));
        let index = id.index as usize;
        if self.shadows.len() <= index {
            self.shadows.resize_with(index + 1, || None);
        }
        let shadow = Shadow { id, written: None, pinned: false, dead: false, memory: None };
        assert!(self.shadows[index].replace(shadow).is_none(), "an index serves one block at a time");
        self.live.push(id);
        id
    }

    /// Runs an operation that writes to the operands whose bits are set in `writes`.
    pub fn operate(&mut self, ids: &[BlockId], writes: u8) -> Result<(), OffloadError> {
        self.operands = ids.to_vec();
        make_resident(self, ids, &|| "an operation".to_owned()).inspect_err(|error| {
            assert!(!matches!(error, OffloadError::Bookkeeping { .. }), "{error}");
        })?;
        for (n, id) in ids.iter().enumerate() {
            let bytes = self.bytes(*id);
            let shadow = self.shadow(*id);
            let memory = shadow.memory.as_ref().expect("an operand is on the device");
            if let Some(written) = &shadow.written {
                assert_eq!(memory, written, "an operand reads as last written");
            }
            if writes >> (n % 8) & 1 == 1 {
                let new = self.new_contents(bytes);
                let shadow = self.shadow(*id);
                shadow.memory = Some(new.clone());
                shadow.written = Some(new);
                if !self.pager.wrote(*id).expect("on the device").is_empty() {
                    self.tiers.remove(*id);
                }
            }
        }
        Ok(())
    }

    pub fn write_from_host(&mut self, id: BlockId) {
        let block = *self.pager.get(id).expect("a block that lives");
        if !matches!(block.place(), Place::Away(_) | Place::Nowhere) {
            return;
        }
        let mut new = self.new_contents(block.bytes as usize);
        // Every other write changes only half of a block with contents.
        let share = if self.next_value.is_multiple_of(2) { Share::Part } else { Share::Whole };
        let from = if share == Share::Part
            && let Some(before) = &self.shadow(id).written
        {
            let half = before.len() / 2;
            new[..half].copy_from_slice(&before[..half]);
            half
        } else {
            0
        };
        if self.tiers.edit(id, new.len(), share, |bytes| bytes[from..].copy_from_slice(&new[from..])) {
            self.pager.wrote_on_host(id).expect("nowhere or there");
            self.shadow(id).written = Some(new);
        }
    }

    /// Loads the block to the host if it is only on the disk, and checks its contents if they are only on the host.
    pub fn read_on_host(&mut self, id: BlockId) {
        self.operands.clear();
        let loaded = load_to_host(self, id, &|| "reading".to_owned());
        let place = self.pager.get(id).expect("a block that lives").place();
        match loaded {
            Ok(()) => assert_ne!(place, Place::Away(Tier::Disk)),
            Err(error) => assert!(!matches!(error, OffloadError::Bookkeeping { .. }), "{error}"),
        }
        if place == Place::Away(Tier::Host) {
            let read = self.tiers.verified(id).expect("undamaged");
            assert_eq!(Some(read.bytes()), self.shadow(id).written.as_deref());
        }
    }

    /// Takes host memory for the program. A refusal leaves all blocks in their places.
    pub fn take_host(&mut self, len: usize) {
        self.operands.clear();
        let sunk = self.pager.counters().sunk;
        let at_rest = self.at_rest();
        match draft(self, len) {
            Ok(Some(draft)) => self.taken.push(draft),
            Ok(None) => {
                assert_eq!(self.pager.counters().sunk, sunk, "no block sinks for a room that cannot be made");
                let before = at_rest.iter().filter_map(|before| Some((before, self.pager.get(before.0)?)));
                for ((_, place, held), block) in before {
                    assert_eq!((block.place(), block.held()), (*place, *held), "nothing is given up for it");
                }
                assert!(!self.all_could_sink(len as u64), "a room that can be made is not refused");
            }
            Err(error) => assert!(matches!(error, OffloadError::Disk { .. }), "{error}"),
        }
    }

    /// Blocks without a move in flight, with their places.
    fn at_rest(&self) -> Vec<(BlockId, Place, TierSet)> {
        let moves = |id: BlockId| self.flights.iter().any(|flight| flight.block == id);
        let blocks = self.shadows.iter().flatten().filter(|shadow| !moves(shadow.id));
        let place = |id: BlockId| self.pager.get(id).map(|block| (id, block.place(), block.held()));
        blocks.filter_map(|shadow| place(shadow.id)).collect()
    }

    /// Whether `len` bytes of the host are free once every block there has spilled, and the disk has room for all
    /// missing copies.
    fn all_could_sink(&self, len: u64) -> bool {
        let taken: usize = self.taken.iter().map(|draft| draft.len()).sum();
        let blocks = self.shadows.iter().flatten().filter_map(|shadow| self.pager.get(shadow.id));
        let unwritten = blocks
            .filter(|block| block.place() == Place::Away(Tier::Host) && !block.held().contains(Tier::Disk));
        let pages = unwritten.map(|block| block.bytes.next_multiple_of(ALIGNMENT)).sum();
        let limit = self.tiers.pool().usage().limit;
        limit.allows_more(taken as u64, len) && self.tiers.below().rooms().disk.allows(pages)
    }

    pub fn forget(&mut self, id: BlockId) {
        self.live.retain(|other| *other != id);
        let shadow = self.shadows[id.index as usize].take().expect("a block that lives");
        assert_eq!(shadow.id, id);
        match self.flights.iter_mut().find(|flight| flight.block == id) {
            Some(flight) => flight.orphan = shadow.memory,
            None => self.tiers.remove(id),
        }
        self.pager.remove(id).expect("a block is removed once");
    }

    pub fn breaks(&mut self) -> Option<Break> {
        self.broken_copies = self.broken_copies.checked_sub(1)?;
        self.breaks = (self.breaks + 1) % 3;
        Some([Break::AtStart, Break::ByPanic, Break::AtLanding][self.breaks as usize])
    }

    pub fn start(&mut self, token: Token, block: BlockId, cargo: Cargo) -> Result<Progress, MoveFailure> {
        let breaks = if matches!(cargo, Cargo::Nothing) { None } else { self.breaks() };
        match breaks {
            Some(Break::AtStart) => return Err("broken when it started".to_owned().into()),
            Some(Break::ByPanic) => resume_unwind(Box::new(DELIBERATE)),
            Some(Break::AtLanding) | None => {}
        }
        self.flights.push(Flight { token, block, breaks: breaks.is_some(), cargo, orphan: None });
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if self.takes_time && self.chance >> 62 != 0 {
            return Ok(Progress::UnderWay);
        }
        self.complete_flight(self.flights.len() - 1).map(|()| Progress::Landed)
    }

    /// Ends the flight; the loop finds out when it asks.
    pub fn end(&mut self, index: usize) {
        let token = self.flights[index].token;
        if self.ended.iter().all(|(other, _)| *other != token) {
            let end = self.complete_flight(index);
            self.ended.push((token, end));
        }
    }

    pub fn complete_flight(&mut self, index: usize) -> Result<(), MoveFailure> {
        let Self { flights, shadows, .. } = self;
        let flight = &mut flights[index];
        if flight.breaks {
            return Err("broken when it landed".to_owned().into());
        }
        let id = flight.block;
        let own = shadows[id.index as usize].as_mut().filter(|shadow| shadow.id == id);
        let memory = flight.orphan.as_mut().or_else(|| own.and_then(|shadow| shadow.memory.as_mut()));
        let memory = memory.expect("a block on its way has device memory");
        match &mut flight.cargo {
            Cargo::Nothing => {}
            Cargo::Out(draft) => {
                let half = draft.len() / 2;
                draft[half..].copy_from_slice(&memory[half..]);
                self.copied_out += draft.len() as u64;
            }
            Cargo::In(lease) => {
                memory.copy_from_slice(lease.bytes());
                self.copied_in += memory.len() as u64;
            }
        }
        Ok(())
    }

    /// Records a panic that is not injected: the loop would take it for a failed move.
    fn watched<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        catch_unwind(AssertUnwindSafe(|| act(self))).unwrap_or_else(|panic| {
            self.promise(
                panic.downcast_ref() == Some(&DELIBERATE),
                "the fake adapter does not panic by itself",
            );
            resume_unwind(panic)
        })
    }

    fn promise(&mut self, kept: bool, promise: &'static str) {
        if !kept {
            self.broken_promises.push(promise);
        }
    }

    pub fn check(&mut self) {
        assert_eq!(self.broken_promises, [""; 0], "promises broken within moves");
        let ledger = self.pager.ledger();
        let orphans = self.flights.iter().filter_map(|flight| flight.orphan.as_ref());
        let memories = self.shadows.iter().flatten().filter_map(|shadow| shadow.memory.as_ref());
        let resident: usize = memories.chain(orphans).map(Vec::len).sum();
        assert_eq!(ledger.resident(), resident as u64, "the ledger is the sum of the memories");
        let host = self.tiers.pool().usage();
        let taken: usize = self.taken.iter().map(|draft| draft.len()).sum();
        let loading = self.tiers.loading();
        assert_eq!(self.pager.loading().map(|(_, block)| block), loading.map(|(block, _)| block));
        let copies = host.in_use - taken as u64;
        assert_eq!(ledger.held(Tier::Host), copies, "the tier's account is the sum of its copies");
        assert!(host.limit.allows(host.in_use), "the host limit is a limit");
        assert_eq!(ledger.held(Tier::Disk), self.tiers.held_on_disk(), "and so is the disk's");
        if self.oversized == Oversized::Refuse {
            assert!(ledger.budget().allows(ledger.reserved_peak()), "the budget holds at every moment");
        }
        // A flight that has ended has copied, but counts only when the loop asks for it.
        if self.ended.is_empty() {
            let counters = self.pager.counters();
            assert_eq!((counters.bytes_out, counters.bytes_in), (self.copied_out, self.copied_in));
        }
        for shadow in self.shadows.iter().flatten() {
            let block = self.pager.get(shadow.id).expect("a block that lives");
            let tier = match block.place() {
                Place::Device { clean } | Place::Leaving { clean } => clean,
                Place::Returning { from } => from,
                Place::Away(tier) => Some(tier),
                Place::Nowhere => None,
            };
            // The sums show that there is no other copy.
            let below = self.tiers.on_disk(shadow.id);
            assert_eq!(below.is_some(), block.held().contains(Tier::Disk), "{block:?}");
            let copy = tier.map(|tier| match (&below, tier) {
                (Some(below), Tier::Disk) => below,
                _ => self.tiers.get(shadow.id).expect("a copy where the pager says").bytes(),
            });
            let takes_memory = !matches!(block.place(), Place::Nowhere | Place::Away(_));
            assert_eq!(shadow.memory.is_some(), takes_memory, "{block:?}");
            let returning = matches!(block.place(), Place::Returning { .. });
            let current = if returning { copy } else { shadow.memory.as_deref().or(copy) };
            if let Some(written) = shadow.written.as_deref() {
                assert_eq!(current, Some(written), "contents are where the pager says: {block:?}");
                assert!(copy.is_none_or(|copy| copy == written), "a copy is current: {block:?}");
                assert!(below.as_ref().is_none_or(|below| below == written), "so is the disk's: {block:?}");
            }
        }
    }

    /// Ends every move and removes every block.
    pub fn close(&mut self) {
        while !self.flights.is_empty() {
            for index in 0..self.flights.len() {
                self.end(index);
            }
            self.operands.clear();
            make_resident(self, &[], &|| "nothing".to_owned()).expect("no operand");
            make_room(self, 1, Arena(9));
            while let Some((token, end)) = self.ended() {
                assert!(complete(self, token, end, &mut None).is_ok());
            }
            self.check();
        }
        let ids: Vec<_> = self.shadows.iter().flatten().map(|shadow| shadow.id).collect();
        for id in ids {
            self.forget(id);
        }
        self.taken.clear();
        let host = self.tiers.pool().usage().in_use;
        let ledger = self.pager.ledger();
        assert_eq!((ledger.resident(), ledger.held(Tier::Host), host), (0, 0, 0));
        assert_eq!((ledger.held(Tier::Disk), self.tiers.held_on_disk()), (0, 0));
    }
}

impl Device for FakeAdapter {
    fn pager(&mut self) -> &mut Pager {
        &mut self.pager
    }

    fn tiers(&mut self) -> &mut Tiers {
        &mut self.tiers
    }

    fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    fn counts(&self) -> &Counts {
        &self.counts
    }

    fn forget_if_dead(&mut self, block: BlockId) -> bool {
        let dead = self.shadow(block).dead;
        if dead {
            self.forget(block);
        }
        dead
    }

    fn remove_dead(&mut self) {
        let dead = |shadow: &&Shadow| shadow.dead;
        let ids: Vec<_> = self.shadows.iter().flatten().filter(dead).map(|shadow| shadow.id).collect();
        for id in ids {
            self.forget(id);
        }
    }

    fn trim_allocator(&mut self) {}

    fn leave(&mut self, token: Token, block: BlockId, copy: Option<Tier>) -> Result<Progress, MoveFailure> {
        self.watched(|adapter| {
            adapter.promise(!adapter.operands.contains(&block), "an operand stays while its operation runs");
            let shadow = adapter.shadow(block);
            let (pinned, written) = (shadow.pinned, shadow.written.is_some());
            adapter.promise(!pinned, "a pinned block stays");
            adapter.promise(copy.is_none() || written, "only contents are copied");
            let has_copy = adapter.tiers.get(block).is_some() || adapter.tiers.on_disk(block).is_some();
            adapter
                .promise(copy.is_some() || !written || has_copy, "a block drops free only if it was copied");
            let dead = adapter.shadows.iter().flatten().any(|shadow| shadow.dead);
            adapter.promise(
                copy.is_none() || !dead,
                "no live block is copied out while a dead one holds memory",
            );
            let cargo = if copy.is_some() {
                let bytes = adapter.bytes(block);
                let mut draft = adapter.tiers.draft(bytes)?;
                let memory = adapter.shadow(block).memory.as_ref().expect("a victim is on the device");
                draft[..bytes / 2].copy_from_slice(&memory[..bytes / 2]);
                Cargo::Out(draft)
            } else {
                Cargo::Nothing
            };
            adapter.start(token, block, cargo)
        })
    }

    fn take_memory(&mut self, block: BlockId) -> bool {
        self.watched(|adapter| {
            if let Some(left) = adapter.refusals.checked_sub(1) {
                adapter.refusals = left;
                return false;
            }
            if adapter.driver_panics {
                resume_unwind(Box::new(DELIBERATE));
            }
            let memory = vec![GARBAGE; adapter.bytes(block)];
            let before = adapter.shadow(block).memory.replace(memory);
            adapter.promise(before.is_none(), "memory is taken once");
            true
        })
    }

    fn fill(&mut self, token: Token, block: BlockId, _: Tier) -> Result<Progress, MoveFailure> {
        self.watched(|adapter| {
            let lease = adapter.tiers.verified(block)?;
            adapter.start(token, block, Cargo::In(lease))
        })
    }

    fn settle(&mut self, token: Token, outcome: Outcome) {
        self.watched(|adapter| {
            let flight = adapter.flights.iter().position(|flight| flight.token == token);
            let cargo = flight.map(|index| adapter.flights.swap_remove(index).cargo);
            match outcome {
                Outcome::Left { block, copied, .. } => {
                    adapter.shadow(block).memory = None;
                    if let (Some(_), Some(Cargo::Out(draft))) = (copied, cargo) {
                        adapter.tiers.keep(block, draft);
                    }
                }
                Outcome::Rescued { block, current: true, copied: Some(_), .. } => {
                    let Some(Cargo::Out(draft)) = cargo else { panic!("a copy was made") };
                    adapter.tiers.keep(block, draft);
                }
                Outcome::NotReturned { block } => adapter.shadow(block).memory = None,
                Outcome::Removed { block } => adapter.tiers.remove(block),
                _ => {}
            }
        });
    }

    fn ended(&mut self) -> Option<(Token, Result<(), MoveFailure>)> {
        self.ended.pop()
    }

    fn wait(&mut self, token: Token) -> Result<(), MoveFailure> {
        self.watched(|adapter| {
            let index = adapter.flights.iter().position(|flight| flight.token == token);
            adapter.complete_flight(index.expect("a move under way"))
        })
    }

    fn looks_ahead(&mut self) -> bool {
        true
    }

    fn waited(&mut self, time: Duration) {
        self.counts.stall += time;
    }
}
