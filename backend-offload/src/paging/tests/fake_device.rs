//! A small device with real bytes.
//!
//! One table holds contents on the device, another those last written. Moves complete at once or later, in any order,
//! and fail at start or end.

use crate::paging::{Device, MoveFailure, Paging, Progress, Transfer};
use crate::tiers::{Draft, Lease};
use pager::{BlockId, Outcome, Token};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[derive(Debug, Clone, Copy)]
pub(super) enum Break {
    AtStart,
    ByPanic,
    AtLanding,
}

/// A block's true state, to compare with the pager's.
#[derive(Debug)]
pub(super) struct Shadow {
    pub id: BlockId,
    pub bytes: usize,
    /// After the last write; `None` before the first.
    pub written: Option<Vec<u8>>,
    pub pinned: bool,
    pub dead: bool,
    pub memory: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct Flight {
    token: Token,
    pub block: BlockId,
    breaks: bool,
    cargo: Cargo,
    pub orphan: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Cargo {
    Nothing,
    /// Half is copied when the move starts, the rest at its end.
    Out(Draft),
    In(Lease),
}

#[derive(Debug)]
pub(super) struct FakeDevice {
    pub shadows: Vec<Option<Shadow>>,
    pub live: Vec<BlockId>,
    pub flights: Vec<Flight>,
    pub ended: Vec<(Token, Result<(), MoveFailure>)>,
    pub operands: Vec<BlockId>,
    /// Uploads that hold host memory after their move, oldest first, if they do.
    pub uploads: Option<VecDeque<Lease>>,
    takes_time: bool,
    chance: u64,
    pub refusals: u8,
    pub driver_panics: bool,
    pub broken_copies: u8,
    breaks: u8,
    pub broken_promises: Vec<&'static str>,
    pub copied_out: u64,
    pub copied_in: u64,
}

const DELIBERATE: &str = "the runtime panics";

/// Fills the memory of a block never written.
const GARBAGE: u8 = 0xee;

impl FakeDevice {
    pub fn new(takes_time: bool) -> Self {
        Self {
            shadows: Vec::new(),
            live: Vec::new(),
            flights: Vec::new(),
            ended: Vec::new(),
            operands: Vec::new(),
            uploads: None,
            takes_time,
            chance: 1,
            refusals: 0,
            driver_panics: false,
            broken_copies: 0,
            breaks: 0,
            broken_promises: Vec::new(),
            copied_out: 0,
            copied_in: 0,
        }
    }

    pub fn shadow(&mut self, id: BlockId) -> &mut Shadow {
        let shadow = self.shadows[id.index as usize].as_mut().expect("a block that lives");
        assert_eq!(shadow.id, id, "an id is never another block's");
        shadow
    }

    pub fn insert(&mut self, id: BlockId, bytes: usize) {
        let index = id.index as usize;
        if self.shadows.len() <= index {
            self.shadows.resize_with(index + 1, || None);
        }
        let shadow = Shadow { id, bytes, written: None, pinned: false, dead: false, memory: None };
        assert!(self.shadows[index].replace(shadow).is_none(), "an index serves one block at a time");
        self.live.push(id);
    }

    pub fn forget(&mut self, paging: &mut Paging, id: BlockId) {
        self.live.retain(|other| *other != id);
        let shadow = self.shadows[id.index as usize].take().expect("a block that lives");
        assert_eq!(shadow.id, id);
        match self.flights.iter_mut().find(|flight| flight.block == id) {
            Some(flight) => {
                flight.orphan = shadow.memory;
                paging.pager.remove(id).expect("a block is removed once");
            }
            None => paging.remove(id).expect("a block is removed once"),
        }
    }

    fn next_break(&mut self) -> Option<Break> {
        self.broken_copies = self.broken_copies.checked_sub(1)?;
        self.breaks = (self.breaks + 1) % 3;
        Some([Break::AtStart, Break::ByPanic, Break::AtLanding][self.breaks as usize])
    }

    fn take_off(&mut self, token: Token, block: BlockId, cargo: Cargo) -> Result<Progress, MoveFailure> {
        let breaks = if matches!(cargo, Cargo::Nothing) { None } else { self.next_break() };
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

    pub fn end(&mut self, index: usize) {
        let token = self.flights[index].token;
        if self.ended.iter().all(|(other, _)| *other != token) {
            let end = self.complete_flight(index);
            self.ended.push((token, end));
        }
    }

    fn complete_flight(&mut self, index: usize) -> Result<(), MoveFailure> {
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
                "the fake device does not panic by itself",
            );
            resume_unwind(panic)
        })
    }

    fn promise(&mut self, kept: bool, promise: &'static str) {
        if !kept {
            self.broken_promises.push(promise);
        }
    }

    fn evict(
        &mut self,
        paging: &Paging,
        token: Token,
        block: BlockId,
        copies: bool,
    ) -> Result<Progress, MoveFailure> {
        self.promise(!self.operands.contains(&block), "an operand stays while its operation runs");
        let shadow = self.shadow(block);
        let (pinned, written) = (shadow.pinned, shadow.written.is_some());
        self.promise(!pinned, "a pinned block stays");
        self.promise(!copies || written, "only contents are copied");
        let has_copy = paging.tiers.get(block).is_some() || paging.tiers.on_disk(block).is_some();
        self.promise(copies || !written || has_copy, "a block drops free only if it was copied");
        let dead = self.shadows.iter().flatten().any(|shadow| shadow.dead);
        self.promise(!copies || !dead, "no live block is copied out while a dead one holds memory");
        let cargo = if copies {
            let memory = self.shadow(block).memory.as_ref().expect("a victim is on the device");
            let bytes = memory.len();
            let mut draft = paging.tiers.draft(bytes)?;
            draft[..bytes / 2].copy_from_slice(&memory[..bytes / 2]);
            Cargo::Out(draft)
        } else {
            Cargo::Nothing
        };
        self.take_off(token, block, cargo)
    }
}

impl Device for FakeDevice {
    fn allocate(&mut self, block: BlockId) -> bool {
        self.watched(|device| {
            if let Some(left) = device.refusals.checked_sub(1) {
                device.refusals = left;
                return false;
            }
            if device.driver_panics {
                resume_unwind(Box::new(DELIBERATE));
            }
            let shadow = device.shadow(block);
            let before = shadow.memory.replace(vec![GARBAGE; shadow.bytes]);
            device.promise(before.is_none(), "memory is taken once");
            true
        })
    }

    fn start(
        &mut self,
        paging: &mut Paging,
        token: Token,
        transfer: Transfer,
    ) -> Result<Progress, MoveFailure> {
        self.watched(|device| match transfer {
            Transfer::Evict { block, copies } => device.evict(paging, token, block, copies),
            Transfer::Bring { block } => {
                let lease = paging.tiers.verified(block)?;
                device.uploads.iter_mut().for_each(|uploads| uploads.push_back(lease.clone()));
                device.take_off(token, block, Cargo::In(lease))
            }
        })
    }

    fn finish(&mut self, paging: &mut Paging, token: Token, outcome: Outcome) {
        self.watched(|device| {
            let flight = device.flights.iter().position(|flight| flight.token == token);
            let cargo = flight.map(|index| device.flights.swap_remove(index).cargo);
            match outcome {
                Outcome::Left { block, copied, .. } => {
                    device.shadow(block).memory = None;
                    if let (Some(_), Some(Cargo::Out(draft))) = (copied, cargo) {
                        paging.keep(block, draft);
                    }
                }
                Outcome::Rescued { block, current: true, copied: Some(_), .. } => {
                    let Some(Cargo::Out(draft)) = cargo else { panic!("a copy was made") };
                    paging.keep(block, draft);
                }
                Outcome::NotReturned { block } => device.shadow(block).memory = None,
                Outcome::Removed { block } => paging.tiers.remove(block),
                _ => {}
            }
        });
    }

    fn poll(&mut self) -> Option<(Token, Result<(), MoveFailure>)> {
        self.ended.pop()
    }

    fn wait(&mut self, token: Token) -> Result<(), MoveFailure> {
        self.watched(|device| {
            let index = device.flights.iter().position(|flight| flight.token == token);
            device.complete_flight(index.expect("a move under way"))
        })
    }

    fn forget_if_dead(&mut self, paging: &mut Paging, block: BlockId) -> bool {
        let dead = self.shadow(block).dead;
        if dead {
            self.forget(paging, block);
        }
        dead
    }

    fn sweep(&mut self, paging: &mut Paging) {
        let dead = |shadow: &&Shadow| shadow.dead;
        let ids: Vec<_> = self.shadows.iter().flatten().filter(dead).map(|shadow| shadow.id).collect();
        for id in ids {
            self.forget(paging, id);
        }
    }

    fn trim(&mut self) {}

    fn reclaim_upload(&mut self) -> bool {
        self.uploads.as_mut().and_then(VecDeque::pop_front).is_some()
    }

    fn reclaim_host(&mut self) {
        self.uploads.iter_mut().for_each(VecDeque::clear);
    }

    fn may_prefetch(&self) -> bool {
        true
    }
}
