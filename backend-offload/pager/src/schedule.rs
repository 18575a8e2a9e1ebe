//! Moves of predicted operations, simulated with the real eviction order. Early moves cost no more bytes: a block may
//! leave after its last use, and return once memory is free until its next.

use crate::block::{Block, BlockId, Place, Preference};
use crate::eviction_order::{EvictionCost, EvictionOrder, Resident};
use crate::forecast::{Due, Forecast, Future};
use crate::memory_profile::MemoryProfile;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Blocks of so many last operations leave last: too little time to copy them ahead.
const RESTED: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Block(BlockId),
    /// The block at this operand of that operation.
    Operand(u64, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leave {
    /// The operation that needs the memory.
    pub by: u64,
    /// Its last use before that.
    pub after: u64,
    pub name: Name,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Return {
    /// The operation that uses it.
    pub by: u64,
    pub name: Name,
    /// Bytes of all returns up to this one.
    pub until: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Ended,
    Away,
    OnDevice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contents {
    Nothing,
    /// Another tier keeps the contents.
    Copied,
    OnDeviceAlone,
}

#[derive(Debug, Clone, Copy)]
struct SimulatedBlock {
    generation: u32,
    presence: Presence,
    bytes: u64,
    contents: Contents,
    preference: Preference,
    pinned: bool,
    due: Option<Due>,
    used: u64,
    name: Name,
}

impl SimulatedBlock {
    fn cost(&self, now: u64) -> EvictionCost {
        let future = match self.due {
            Some(due) if due.operation > now && due.ends => Future::Freed(due.operation - now),
            Some(due) if due.operation > now => Future::Used(due.operation - now),
            _ => Future::Unknown,
        };
        let (defined, dirty) = (self.contents != Contents::Nothing, self.contents == Contents::OnDeviceAlone);
        EvictionCost::of(defined, dirty, future, now, self.used)
    }
}

type Number = u32;

/// Entries of older generations are stale.
#[derive(Debug, Default)]
struct Calendar {
    /// Operation, operand, block, generation.
    uses: BinaryHeap<Reverse<(u64, usize, Number, u32)>>,
    /// Operation before which the block is freed.
    ends: BinaryHeap<Reverse<(u64, Number, u32)>>,
}

#[derive(Debug, Default)]
struct Moves {
    later: BinaryHeap<Reverse<(u64, Leave)>>,
    /// Most urgent first.
    ready: BinaryHeap<Reverse<Leave>>,
    returns: VecDeque<Return>,
    returned: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Schedule {
    upto: u64,
    period: u64,
    simulated: Vec<SimulatedBlock>,
    unused: Vec<Number>,
    calendar: Calendar,
    order: EvictionOrder,
    resident: u64,
    moves: Moves,
    /// Bytes on the device after each operation, less returns so far, if blocks leave as early as possible.
    profile: MemoryProfile,
    operands: Vec<Option<Number>>,
}

impl Schedule {
    /// A schedule of at most `far` operations from the current one.
    pub fn begin<'b>(
        forecast: &Forecast,
        blocks: impl Iterator<Item = (BlockId, &'b Block)>,
        far: u64,
    ) -> Option<Self> {
        let period = forecast.period()?;
        let profile = MemoryProfile::of(far.min(period) + 2);
        let mut schedule = Self { upto: forecast.now(), period, profile, ..Self::default() };
        for (id, block) in blocks.filter(|(_, block)| block.place() != Place::Nowhere) {
            let number = schedule.enter(SimulatedBlock {
                generation: 0,
                presence: if matches!(block.place(), Place::Device { .. } | Place::Returning { .. }) {
                    Presence::OnDevice
                } else {
                    Presence::Away
                },
                bytes: block.bytes,
                contents: match (block.copies.is_written(), block.needs_copy()) {
                    (false, _) => Contents::Nothing,
                    (true, false) => Contents::Copied,
                    (true, true) => Contents::OnDeviceAlone,
                },
                preference: block.preference,
                pinned: block.pinned,
                due: None,
                used: forecast.used(id),
                name: Name::Block(id),
            });
            schedule.expect(number, forecast.due(id));
        }
        schedule.profile.set(schedule.upto, schedule.level());
        Some(schedule)
    }

    pub fn is_cluttered(&self, live: u64) -> bool {
        (self.simulated.len() - self.unused.len()) as u64 > 4 * live + 1024
    }

    /// Whether it reaches `operations` ahead, or all it can.
    pub fn reaches(&self, now: u64, operations: u64) -> bool {
        self.upto >= now + operations.min(self.period.saturating_sub(1))
    }

    fn enter(&mut self, block: SimulatedBlock) -> Number {
        if block.presence == Presence::OnDevice {
            self.resident += block.bytes;
        }
        let number = self.unused.pop().unwrap_or_else(|| {
            self.simulated.push(SimulatedBlock { presence: Presence::Ended, ..block });
            (self.simulated.len() - 1) as Number
        });
        let slot = &mut self.simulated[number as usize];
        *slot = SimulatedBlock { generation: slot.generation.wrapping_add(1), ..block };
        number
    }

    fn expect(&mut self, number: Number, due: Option<Due>) {
        let block = &mut self.simulated[number as usize];
        block.due = due;
        let generation = block.generation;
        match due {
            Some(Due { operation, ends: true, .. }) => {
                self.calendar.ends.push(Reverse((operation, number, generation)));
            }
            Some(Due { operation, operand, .. }) => {
                self.calendar.uses.push(Reverse((operation, operand, number, generation)));
            }
            None => {}
        }
        self.enter_in_order(number);
    }

    fn enter_in_order(&mut self, number: Number) {
        if self.order.is_awake()
            && let Some(resident) = resident(&self.simulated, id(number, &self.simulated), self.upto)
        {
            self.order.enter(&resident);
        }
    }

    pub fn play(&mut self, forecast: &Forecast, memory: u64) {
        self.upto += 1;
        let now = self.upto;
        self.release(now);
        let mut operands = std::mem::take(&mut self.operands);
        operands.clear();
        while let Some(Reverse((operation, operand, number, generation))) = self.calendar.uses.peek().copied()
            && operation <= now
        {
            self.calendar.uses.pop();
            if operation == now && self.simulated[number as usize].generation == generation {
                operands.resize(operands.len().max(operand + 1), None);
                operands[operand] = Some(number);
            }
        }
        let foreseen: Vec<_> = forecast.foreseen(now - self.period).enumerate().collect();
        operands.resize(foreseen.len(), None);
        for (n, operand) in &foreseen {
            let number = operands[*n].unwrap_or_else(|| {
                self.enter(SimulatedBlock {
                    generation: 0,
                    presence: Presence::Away,
                    bytes: operand.bytes,
                    contents: if operand.is_new { Contents::Nothing } else { Contents::Copied },
                    // A hint belongs to a block that is there.
                    preference: Preference::Policy,
                    pinned: false,
                    due: None,
                    used: now,
                    name: Name::Operand(u64::MAX, 0),
                })
            });
            operands[*n] = Some(number);
            self.simulated[number as usize].used = now;
        }
        let is_away = |block: &SimulatedBlock| block.presence != Presence::OnDevice;
        let all = operands.iter().flatten().map(|number| &self.simulated[*number as usize]);
        let mut wanted: u64 = all.filter(|block| is_away(block)).map(|block| block.bytes).sum();
        for number in operands.iter().copied().flatten() {
            let block = self.simulated[number as usize];
            if is_away(&block) {
                self.bring(number, memory, wanted);
                wanted -= block.bytes;
            }
        }
        for (n, operand) in &foreseen {
            let Some(number) = operands[*n] else { continue };
            let block = &mut self.simulated[number as usize];
            block.name = Name::Operand(now, *n);
            if operand.written {
                block.contents = Contents::OnDeviceAlone;
            }
            self.expect(number, operand.due);
        }
        self.operands = operands;
        self.profile.set(now, self.level());
    }

    fn level(&self) -> i64 {
        self.resident as i64 - self.moves.returned as i64
    }

    fn release(&mut self, now: u64) {
        while let Some(Reverse((operation, number, generation))) = self.calendar.ends.peek().copied()
            && operation <= now
        {
            self.calendar.ends.pop();
            let block = &mut self.simulated[number as usize];
            if block.generation == generation
                && block.presence != Presence::Ended
                && block.due.is_some_and(|due| due.ends && due.operation == operation)
            {
                self.resident -= if block.presence == Presence::OnDevice { block.bytes } else { 0 };
                block.presence = Presence::Ended;
                self.unused.push(number);
            }
        }
    }

    /// Brings an operand of an operation that still needs `wanted` bytes.
    fn bring(&mut self, number: Number, memory: u64, wanted: u64) {
        let block = self.simulated[number as usize];
        while self.resident + block.bytes > memory {
            let Some(victim) = self.victim(self.resident + wanted - memory) else { break };
            self.leave(victim);
        }
        self.resident += block.bytes;
        self.simulated[number as usize].presence = Presence::OnDevice;
        if block.contents != Contents::Nothing && block.name != Name::Operand(u64::MAX, 0) {
            self.moves.returned += block.bytes;
            self.moves.returns.push_back(Return {
                by: self.upto,
                name: block.name,
                until: self.moves.returned,
            });
        }
    }

    fn victim(&mut self, missing: u64) -> Option<Number> {
        let (now, simulated) = (self.upto, &self.simulated);
        let live = (simulated.len() - self.unused.len()) as u64;
        if !self.order.is_awake() || self.order.is_stale(live) {
            self.order.clear();
            self.order.wake();
            for number in 0..simulated.len() as Number {
                if let Some(resident) = resident(simulated, id(number, simulated), now) {
                    self.order.enter(&resident);
                }
            }
        }
        let look = |id: BlockId| resident(simulated, id, now);
        let able = |rested: u64| {
            move |id: BlockId| {
                let block = &simulated[id.index as usize];
                block.used + rested < now && !block.pinned
            }
        };
        let is_near = |id: &BlockId| simulated[id.index as usize].cost(now).is_near(now);
        let rested = self.order.first(now, missing, &look, &able(RESTED)).filter(|first| !is_near(first));
        if rested.is_some() && !self.order.has_preferences() {
            return rested.map(|first| first.index);
        }
        let preference = |id: BlockId| simulated[id.index as usize].preference;
        let any = self.order.first(now, missing, &look, &able(0))?;
        let first = rested.filter(|rested| preference(*rested) <= preference(any)).unwrap_or(any);
        Some(first.index)
    }

    fn leave(&mut self, number: Number) {
        let by = self.upto;
        let block = &mut self.simulated[number as usize];
        self.resident -= block.bytes;
        block.presence = Presence::Away;
        if block.contents == Contents::OnDeviceAlone {
            block.contents = Contents::Copied;
        }
        let (after, bytes) = (block.used, block.bytes);
        let kept = by.saturating_sub(self.profile.kept());
        self.profile.add((after + 1).max(kept)..by, -(bytes as i64));
        self.moves.later.push(Reverse((after, Leave { by, after, name: block.name })));
    }

    pub fn first_leave(&mut self, now: u64) -> Option<Leave> {
        while let Some(Reverse((_, leave))) = self.moves.later.peek().filter(|next| next.0.0 < now).copied() {
            self.moves.later.pop();
            self.moves.ready.push(Reverse(leave));
        }
        self.moves.ready.peek().map(|first| first.0)
    }

    pub fn leave_done(&mut self) {
        self.moves.ready.pop();
    }

    /// The first return, with the most bytes in use until then, including earlier returns.
    pub fn first_return(&mut self, now: u64) -> Option<(Return, i64)> {
        while self.moves.returns.front().is_some_and(|first| first.by <= now) {
            self.moves.returns.pop_front();
        }
        let first = *self.moves.returns.front()?;
        let highest = self.profile.highest(now..first.by)?;
        Some((first, highest + first.until as i64))
    }

    pub fn return_done(&mut self) {
        self.moves.returns.pop_front();
    }
}

fn id(number: Number, simulated: &[SimulatedBlock]) -> BlockId {
    BlockId { index: number, generation: simulated[number as usize].generation }
}

fn resident(simulated: &[SimulatedBlock], id: BlockId, now: u64) -> Option<Resident> {
    let block = simulated.get(id.index as usize).filter(|block| block.generation == id.generation)?;
    let SimulatedBlock { bytes, preference, .. } = *block;
    (block.presence == Presence::OnDevice).then_some(Resident {
        id,
        bytes,
        preference,
        cost: block.cost(now),
    })
}
