//! The plan: what the pager will do in the operations to come if nothing is done ahead, found by doing it on paper.
//!
//! The operations that the planner foresees are played one after the other over blocks that are on the device on paper, with
//! the order of victims that decides for real. That gives who leaves for which operation and who comes back for which. To do
//! the same moves earlier costs no byte: whoever is to leave may leave as soon as he has been used for the last time before,
//! and whoever is to come back may come as soon as there is memory that nobody on paper wants until then, that of early leavers
//! included.

use crate::block::{Block, BlockId, Place};
use crate::furthest::{Furthest, Resident, Standing};
use crate::levels::Levels;
use crate::planner::{Due, Future, Planner};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Blocks that as many operations before the present one have used leave on paper only when others are needed soon. What was just used
/// is often what is needed last; but to copy it, and what comes into its memory, nothing would be left but the present moment.
const RESTED: u64 = 3;

/// A block to come, or one that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Block(BlockId),
    /// The block that will have been this operand of that operation.
    Operand(u64, usize),
}

/// A block that leaves on paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leave {
    /// The operation whose memory it makes.
    pub by: u64,
    /// The operation that uses it last before.
    pub after: u64,
    pub name: Name,
}

/// A block that comes back on paper.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Return {
    /// The operation that uses it.
    pub by: u64,
    pub name: Name,
    /// Bytes that come back on paper from the beginning, these included.
    pub until: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// The program has let go of it.
    Ended,
    Away,
    OnDevice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contents {
    /// Never written.
    Nothing,
    /// In a tier, too, once it is on the device.
    Copied,
    OnDeviceAlone,
}

#[derive(Debug, Clone, Copy)]
struct Paper {
    generation: u32,
    presence: Presence,
    bytes: u64,
    contents: Contents,
    /// It cannot leave.
    pinned: bool,
    due: Option<Due>,
    used: u64,
    name: Name,
}

impl Paper {
    fn standing(&self, now: u64) -> Standing {
        let future = match self.due {
            Some(due) if due.operation > now && due.ends => Future::Freed(due.operation - now),
            Some(due) if due.operation > now => Future::Used(due.operation - now),
            _ => Future::Unknown,
        };
        let (defined, dirty) = (self.contents != Contents::Nothing, self.contents == Contents::OnDeviceAlone);
        Standing::of(defined, dirty, future, now, self.used)
    }
}

/// Numbers a block on paper.
type Number = u32;

#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The operation that was played last.
    upto: u64,
    period: u64,
    papers: Vec<Paper>,
    unused: Vec<Number>,
    /// When blocks are used next: the operation, which operand, and who.
    uses: BinaryHeap<Reverse<(u64, usize, Number, u32)>>,
    /// Before which operation blocks are freed.
    ends: BinaryHeap<Reverse<(u64, Number, u32)>>,
    order: Furthest,
    resident: u64,
    returned: u64,
    /// Blocks to leave after an operation that has not run yet, by that.
    later: BinaryHeap<Reverse<(u64, Leave)>>,
    /// Blocks that can leave, the one for the next operation first.
    ready: BinaryHeap<Reverse<Leave>>,
    returns: VecDeque<Return>,
    /// Bytes on the device after an operation, less all that came back until then, if everybody leaves as early as he can.
    levels: Levels,
    operands: Vec<Option<Number>>,
}

impl Plan {
    /// A plan from here on, where the program is as far as it has come.
    /// It will be played `far` operations ahead at most.
    pub fn begin<'b>(
        planner: &Planner,
        blocks: impl Iterator<Item = (BlockId, &'b Block)>,
        far: u64,
    ) -> Option<Self> {
        let period = planner.period()?;
        let levels = Levels::of(far.min(period) + 2);
        let mut plan = Self { upto: planner.now(), period, levels, ..Self::default() };
        for (id, block) in blocks.filter(|(_, block)| block.place() != Place::Nowhere) {
            let number = plan.enter(Paper {
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
                pinned: block.pinned,
                due: None,
                used: planner.used(id),
                name: Name::Block(id),
            });
            plan.expect(number, planner.due(id));
        }
        plan.levels.set(plan.upto, plan.level());
        Some(plan)
    }

    /// Whether most of it is about blocks that are no more.
    pub fn is_cluttered(&self, live: u64) -> bool {
        (self.papers.len() - self.unused.len()) as u64 > 4 * live + 1024
    }

    /// Whether it has been played far enough, or as far as it can be.
    pub fn reaches(&self, now: u64, operations: u64) -> bool {
        self.upto >= now + operations.min(self.period.saturating_sub(1))
    }

    fn enter(&mut self, paper: Paper) -> Number {
        if paper.presence == Presence::OnDevice {
            self.resident += paper.bytes;
        }
        let number = self.unused.pop().unwrap_or_else(|| {
            self.papers.push(Paper { presence: Presence::Ended, ..paper });
            (self.papers.len() - 1) as Number
        });
        let slot = &mut self.papers[number as usize];
        *slot = Paper { generation: slot.generation.wrapping_add(1), ..paper };
        number
    }

    fn expect(&mut self, number: Number, due: Option<Due>) {
        let paper = &mut self.papers[number as usize];
        paper.due = due;
        let generation = paper.generation;
        match due {
            Some(Due { operation, ends: true, .. }) => {
                self.ends.push(Reverse((operation, number, generation)));
            }
            Some(Due { operation, operand, .. }) => {
                self.uses.push(Reverse((operation, operand, number, generation)));
            }
            None => {}
        }
        self.enter_in_order(number);
    }

    fn enter_in_order(&mut self, number: Number) {
        if self.order.is_awake()
            && let Some(resident) = resident(&self.papers, id(number, &self.papers), self.upto)
        {
            self.order.enter(&resident);
        }
    }

    /// Plays the next operation, in so much memory.
    pub fn play(&mut self, planner: &Planner, memory: u64) {
        self.upto += 1;
        let now = self.upto;
        self.release(now);
        let mut operands = std::mem::take(&mut self.operands);
        operands.clear();
        while let Some(Reverse((operation, operand, number, generation))) = self.uses.peek().copied()
            && operation <= now
        {
            self.uses.pop();
            if operation == now && self.papers[number as usize].generation == generation {
                operands.resize(operands.len().max(operand + 1), None);
                operands[operand] = Some(number);
            }
        }
        let foreseen: Vec<_> = planner.foreseen(now - self.period).enumerate().collect();
        operands.resize(foreseen.len(), None);
        for (n, operand) in &foreseen {
            let number = operands[*n].unwrap_or_else(|| {
                self.enter(Paper {
                    generation: 0,
                    presence: Presence::Away,
                    bytes: operand.bytes,
                    contents: if operand.is_new { Contents::Nothing } else { Contents::Copied },
                    pinned: false,
                    due: None,
                    used: now,
                    name: Name::Operand(u64::MAX, 0),
                })
            });
            operands[*n] = Some(number);
            self.papers[number as usize].used = now;
        }
        let is_away = |paper: &Paper| paper.presence != Presence::OnDevice;
        let all = operands.iter().flatten().map(|number| &self.papers[*number as usize]);
        let mut wanted: u64 = all.filter(|paper| is_away(paper)).map(|paper| paper.bytes).sum();
        for number in operands.iter().copied().flatten() {
            let paper = self.papers[number as usize];
            if is_away(&paper) {
                self.bring(number, memory, wanted);
                wanted -= paper.bytes;
            }
        }
        for (n, operand) in &foreseen {
            let Some(number) = operands[*n] else { continue };
            let paper = &mut self.papers[number as usize];
            paper.name = Name::Operand(now, *n);
            if operand.written {
                paper.contents = Contents::OnDeviceAlone;
            }
            self.expect(number, operand.due);
        }
        self.operands = operands;
        self.levels.set(now, self.level());
    }

    fn level(&self) -> i64 {
        self.resident as i64 - self.returned as i64
    }

    /// Frees the blocks that the program lets go of before an operation.
    fn release(&mut self, now: u64) {
        while let Some(Reverse((operation, number, generation))) = self.ends.peek().copied()
            && operation <= now
        {
            self.ends.pop();
            let paper = &mut self.papers[number as usize];
            if paper.generation == generation
                && paper.presence != Presence::Ended
                && paper.due.is_some_and(|due| due.ends && due.operation == operation)
            {
                self.resident -= if paper.presence == Presence::OnDevice { paper.bytes } else { 0 };
                paper.presence = Presence::Ended;
                self.unused.push(number);
            }
        }
    }

    /// Brings one operand of an operation that has so many bytes still to bring.
    fn bring(&mut self, number: Number, memory: u64, wanted: u64) {
        let paper = self.papers[number as usize];
        while self.resident + paper.bytes > memory {
            let Some(victim) = self.victim(self.resident + wanted - memory) else { break };
            self.leave(victim);
        }
        self.resident += paper.bytes;
        self.papers[number as usize].presence = Presence::OnDevice;
        if paper.contents != Contents::Nothing && paper.name != Name::Operand(u64::MAX, 0) {
            self.returned += paper.bytes;
            self.returns.push_back(Return { by: self.upto, name: paper.name, until: self.returned });
        }
    }

    fn victim(&mut self, missing: u64) -> Option<Number> {
        let (now, papers) = (self.upto, &self.papers);
        let live = (papers.len() - self.unused.len()) as u64;
        if !self.order.is_awake() || self.order.is_stale(live) {
            self.order.clear();
            self.order.wake();
            for number in 0..papers.len() as Number {
                if let Some(resident) = resident(papers, id(number, papers), now) {
                    self.order.enter(&resident);
                }
            }
        }
        let look = |id: BlockId| resident(papers, id, now);
        let able = |rested: u64| {
            move |id: BlockId| {
                let paper = &papers[id.index as usize];
                paper.used + rested < now && !paper.pinned
            }
        };
        let is_near = |id: &BlockId| papers[id.index as usize].standing(now).is_near(now);
        let rested = self.order.first(now, missing, &look, &able(RESTED)).filter(|first| !is_near(first));
        let first = rested.or_else(|| self.order.first(now, missing, &look, &able(0)))?;
        Some(first.index)
    }

    fn leave(&mut self, number: Number) {
        let by = self.upto;
        let paper = &mut self.papers[number as usize];
        self.resident -= paper.bytes;
        paper.presence = Presence::Away;
        if paper.contents == Contents::OnDeviceAlone {
            paper.contents = Contents::Copied;
        }
        let (after, bytes) = (paper.used, paper.bytes);
        let kept = by.saturating_sub(self.levels.kept());
        self.levels.add((after + 1).max(kept)..by, -(bytes as i64));
        self.later.push(Reverse((after, Leave { by, after, name: paper.name })));
    }

    // ---- what to do -----------------------------------------------------------------------------------

    /// The block that leaves first of those that can, and what is said of it.
    pub fn first_leave(&mut self, now: u64) -> Option<Leave> {
        while let Some(Reverse((_, leave))) = self.later.peek().filter(|next| next.0.0 < now).copied() {
            self.later.pop();
            self.ready.push(Reverse(leave));
        }
        self.ready.peek().map(|first| first.0)
    }

    /// It left, or never will.
    pub fn leave_done(&mut self) {
        self.ready.pop();
    }

    /// The block that comes back first, and the most bytes on paper until then, those included that come back before.
    pub fn first_return(&mut self, now: u64) -> Option<(Return, i64)> {
        while self.returns.front().is_some_and(|first| first.by <= now) {
            self.returns.pop_front();
        }
        let first = *self.returns.front()?;
        let highest = self.levels.highest(now..first.by)?;
        Some((first, highest + first.until as i64))
    }

    /// It is on its way, or not to come.
    pub fn return_done(&mut self) {
        self.returns.pop_front();
    }
}

fn id(number: Number, papers: &[Paper]) -> BlockId {
    BlockId { index: number, generation: papers[number as usize].generation }
}

fn resident(papers: &[Paper], id: BlockId, now: u64) -> Option<Resident> {
    let paper = papers.get(id.index as usize).filter(|paper| paper.generation == id.generation)?;
    let standing = paper.standing(now);
    (paper.presence == Presence::OnDevice).then_some(Resident { id, bytes: paper.bytes, standing })
}
