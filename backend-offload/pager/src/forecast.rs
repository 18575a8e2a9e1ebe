//! Predicts each block's next use. A cursor into the [`History`] points at an earlier operation like the current one,
//! after like operations. What followed there is predicted. Sizes may differ
//! (`a_step_is_foretold_although_some_blocks_have_other_sizes_each_time`).
//!
//! Without a like past, recency decides (`a_program_that_never_repeats_is_left_to_recency`,
//! `an_interruption_costs_no_more_than_itself`).

use crate::block::BlockId;
use crate::history::{CONTEXT, History, Named, Next};
use crate::replacements::Replacements;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outlook {
    generation: u32,
    /// The operation before its insertion.
    born: u64,
    /// Operation of its last use; 0 for none.
    used: u64,
    /// The first operation of this step with the block, or with the one it replaces.
    first: u64,
    /// It replaced another block.
    inherits: bool,
    /// Place of its last use.
    place: u64,
    /// Operation before which it is used or freed; 0 if unknown.
    due: u64,
    operand: usize,
    ends: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Future {
    /// Unknown, or a predicted use did not happen.
    Unknown,
    /// Used in this many operations.
    Used(u64),
    /// Freed in this many operations.
    Freed(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    pub operation: u64,
    /// Position among its operands.
    pub operand: usize,
    /// Freed then, not used.
    pub ends: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Foreseen {
    pub bytes: u64,
    /// Without memory before.
    pub is_new: bool,
    pub written: bool,
    pub due: Option<Due>,
}

/// The operation against the forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// Nothing predicted, before or now.
    Unknown,
    /// As predicted.
    Predicted,
    /// As predicted, with more bytes.
    Larger,
    /// The place was `lost`, or another was `found`; all predictions change.
    Changed { lost: bool, found: bool },
}

#[derive(Debug)]
pub(crate) struct Forecast {
    trace: History,
    outlooks: Vec<Outlook>,
    /// The past operation like the current one.
    cursor: Option<u64>,
    /// Operations in a row with other sizes.
    resized: u64,
    /// Another past operation like the latest resized one.
    rival: Option<u64>,
    /// First operations of marked steps, in order.
    beginnings: [u64; BEGINNINGS],
    marked: bool,
    /// Past operations that a search may still visit. Each operation adds a few: frequent changes of place cost no
    /// more.
    credit: u64,
    began: Began,
    /// The marked step whose start replaced all predictions.
    anchored: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Began {
    /// The last operation before.
    after: u64,
    uses: u64,
}

const BEGINNINGS: usize = 8;

impl Forecast {
    pub fn new() -> Self {
        Self {
            trace: History::new(),
            outlooks: Vec::new(),
            cursor: None,
            resized: 0,
            rival: None,
            // The first step may begin with the program.
            beginnings: std::array::from_fn(|n| u64::from(n == BEGINNINGS - 1)),
            marked: false,
            credit: 0,
            anchored: 0,
            began: Began::default(),
        }
    }

    pub fn knows(&self) -> bool {
        self.cursor.is_some()
    }

    pub fn now(&self) -> u64 {
        self.trace.end() - 1
    }

    fn outlook(&self, id: BlockId) -> Option<&Outlook> {
        self.outlooks.get(id.index as usize).filter(|outlook| outlook.generation == id.generation)
    }

    pub fn future(&self, id: BlockId) -> Future {
        let now = self.now();
        match self.outlook(id) {
            Some(outlook) if outlook.due > now && outlook.ends => Future::Freed(outlook.due - now),
            Some(outlook) if outlook.due > now => Future::Used(outlook.due - now),
            _ => Future::Unknown,
        }
    }

    /// Operations since the program was last at this place.
    pub fn period(&self) -> Option<u64> {
        Some(self.now() - self.cursor?)
    }

    pub fn due(&self, id: BlockId) -> Option<Due> {
        let now = self.now();
        let outlook = self.outlook(id).filter(|outlook| outlook.due > now)?;
        Some(Due { operation: outlook.due, operand: outlook.operand, ends: outlook.ends })
    }

    /// Predicted operands one period after the past operation `past`, which must have ended.
    pub fn foreseen(&self, past: u64) -> impl Iterator<Item = Foreseen> {
        let period = self.period().unwrap_or(0);
        let past = if past < self.now() { past } else { 0 };
        self.trace.uses(past).map(move |place| {
            let (bytes, is_new) = self.trace.size(place);
            let due = match self.trace.next(place) {
                Next::Used(after) => Some((past + after, self.trace.operand(place), false)),
                Next::Freed(after) => Some((past + after + 1, 0, true)),
                // Its replacement has the same predicted use.
                Next::Unknown => self
                    .trace
                    .block(place)
                    .and_then(|id| self.outlook(id))
                    .filter(|outlook| outlook.place == place && outlook.due > 0)
                    .map(|outlook| (outlook.due, outlook.operand, outlook.ends)),
            };
            let due = due.map(|(then, operand, ends)| Due { operation: then + period, operand, ends });
            Foreseen { bytes, is_new, written: self.trace.is_written(place), due }
        })
    }

    pub fn operand(&self, number: u64, operand: usize) -> Option<BlockId> {
        self.trace.block(self.trace.uses(number).nth(operand)?)
    }

    pub fn wrote(&mut self, id: BlockId) {
        let now = self.now();
        if let Some(place) =
            self.outlook(id).filter(|outlook| outlook.used == now).map(|outlook| outlook.place)
        {
            self.trace.write(place);
        }
    }

    /// The operation that used the block last, or after which it was inserted.
    pub fn used(&self, id: BlockId) -> u64 {
        self.outlook(id).map_or(0, |outlook| outlook.used.max(outlook.born))
    }

    pub fn born(&mut self, id: BlockId) {
        let index = id.index as usize;
        if self.outlooks.len() <= index {
            self.outlooks.resize(index + 1, Outlook::default());
        }
        self.outlooks[index] = Outlook { generation: id.generation, born: self.now(), ..Outlook::default() };
    }

    /// Recency of a block with unknown future: last use plus time in use. A block used throughout a step is used early
    /// in the next.
    pub fn recent(&self, id: BlockId) -> u64 {
        self.outlook(id).map_or(0, |outlook| {
            let used = outlook.used.max(outlook.born);
            used + used.saturating_sub(outlook.first.max(1))
        })
    }

    pub fn freed(&mut self, id: BlockId) {
        let now = self.now();
        if let Some(outlook) = self.outlook(id).copied().filter(|outlook| outlook.used > 0) {
            self.trace.learn(outlook.place, Next::Freed(now - outlook.used), 0);
            self.pass_on(&outlook);
        }
    }

    /// The replacement of a freed block has its size and is new in its last operation.
    fn pass_on(&mut self, freed: &Outlook) {
        let (bytes, _) = self.trace.size(freed.place);
        for place in self.trace.uses(freed.used) {
            let Some(replacement) =
                self.trace.block(place).filter(|_| self.trace.size(place) == (bytes, true))
            else {
                continue;
            };
            let outlook = &mut self.outlooks[replacement.index as usize];
            if outlook.generation == replacement.generation && !outlook.inherits && outlook.used >= freed.used
            {
                (outlook.first, outlook.inherits) = (freed.first, true);
                return;
            }
        }
    }

    pub fn mark_step(&mut self) {
        let (now, uses) = (self.now(), self.trace.uses_end());
        self.trace.keep_steps(now - self.began.after, uses - self.began.uses);
        self.marked = true;
        self.began = Began { after: now, uses };
    }

    pub fn observe(&mut self, operands: &(impl Iterator<Item = Named> + Clone)) -> Course {
        let number = self.trace.end();
        self.credit = (self.credit + 2).min(number);
        let place = self.trace.uses_end();
        let context = self.trace.push(operands.clone());
        let expected = self.cursor.map(|cursor| cursor + 1);
        let begins = std::mem::take(&mut self.marked);
        let found = self.find(number, expected, context, begins);
        for (n, Named { block: id, .. }) in operands.clone().enumerate() {
            let Some(outlook) = self.outlooks.get_mut(id.index as usize) else { continue };
            let place = place + n as u64;
            if outlook.used > 0 {
                self.trace.learn(outlook.place, Next::Used(number - outlook.used), n);
                self.trace.used_before(place);
            }
            (outlook.used, outlook.place) = (number, place);
            if outlook.first <= self.began.after {
                outlook.first = number;
            }
            (outlook.due, outlook.ends) = (0, false);
        }
        self.cursor = found;
        let foretold = found == expected;
        if let Some(cursor) = found {
            if !foretold {
                self.anchor(number, cursor, begins);
            }
            self.expect(number, cursor);
        }
        match (expected, found) {
            (None, None) => Course::Unknown,
            (_, Some(past)) if foretold => {
                let is_larger = self.resized > 0 && self.bytes(number) > self.bytes(past);
                if is_larger { Course::Larger } else { Course::Predicted }
            }
            (before, now) => Course::Changed { lost: before.is_some(), found: now.is_some() },
        }
    }

    fn bytes(&self, number: u64) -> u64 {
        self.trace.uses(number).map(|place| self.trace.size(place).0).sum()
    }

    fn find(
        &mut self,
        number: u64,
        expected: Option<u64>,
        context: Option<u64>,
        begins: bool,
    ) -> Option<u64> {
        let fits = |past: &u64| self.trace.look_alike(*past, number);
        let mut begun = None;
        if begins {
            let known = expected.is_some_and(|expected| self.beginnings.contains(&expected));
            let mut before = self.beginnings.iter().rev().copied().filter(|begun| *begun > 0);
            let found = before.clone().find(fits);
            begun = before.find(|past| self.has_such_operands(number, *past));
            self.beginnings.rotate_left(1);
            self.beginnings[BEGINNINGS - 1] = number;
            if !known && found.is_some() {
                (self.resized, self.rival) = (0, None);
                return found;
            }
        }
        let looks_right = expected.filter(fits);
        let rival = self.rival.map(|rival| rival + 1).filter(fits).or(context);
        let resized = expected.filter(|past| looks_right.is_none() && self.differs_in_sizes(number, *past));
        // So many differences are no accident where another place matches.
        let is_rivaled = rival.is_some() && self.resized + 1 >= CONTEXT;
        match (looks_right, resized) {
            (None, Some(_)) if !is_rivaled => {
                (self.resized, self.rival) = (self.resized + 1, rival);
                resized
            }
            _ => {
                (self.resized, self.rival) = (0, None);
                looks_right.or(rival).or(begun)
            }
        }
    }

    /// Whether both have equally many operands, each new or used as in the other.
    fn has_such_operands(&self, number: u64, past: u64) -> bool {
        let (here, there) = (self.trace.uses(number), self.trace.uses(past));
        here.end - here.start == there.end - there.start
            && here.zip(there).all(|(here, there)| {
                let is_first = !self.is_used(here);
                is_first == self.trace.is_first(there) && self.trace.size(here).1 == self.trace.size(there).1
            })
    }

    fn is_used(&self, place: u64) -> bool {
        self.trace.block(place).and_then(|id| self.outlook(id)).is_some_and(|outlook| outlook.used > 0)
    }

    /// Whether this operation names the predicted blocks, in any size: each from the same place as in `past`, or
    /// unused.
    fn differs_in_sizes(&self, number: u64, past: u64) -> bool {
        let (here, there) = (self.trace.uses(number), self.trace.uses(past));
        let as_many = here.end - here.start == there.end - there.start && !here.is_empty();
        as_many
            && here.zip(there).enumerate().all(|(n, (here, there))| {
                let ((bytes, is_new), (bytes_then, was_new)) =
                    (self.trace.size(here), self.trace.size(there));
                let block = self.trace.block(here).and_then(|id| self.outlook(id));
                match block.filter(|outlook| outlook.used > 0) {
                    None => is_new == was_new && self.trace.is_first(there),
                    Some(outlook) if outlook.due > 0 => {
                        outlook.due == number && !outlook.ends && outlook.operand == n
                    }
                    Some(_) => bytes == bytes_then && !self.trace.is_first(there),
                }
            })
    }

    fn expect(&mut self, number: u64, past: u64) {
        for (here, there) in self.trace.uses(number).zip(self.trace.uses(past)) {
            let next = self.trace.next(there);
            let Some(id) = self.trace.block(here) else { continue };
            let outlook = &mut self.outlooks[id.index as usize];
            if outlook.generation != id.generation || outlook.place != here {
                continue;
            }
            outlook.operand = self.trace.operand(there);
            (outlook.due, outlook.ends) = match next {
                Next::Unknown => (0, false),
                Next::Used(after) => (number + after, false),
                Next::Freed(after) => (number + after + 1, true),
            };
        }
    }

    /// Replaces the predictions after a move of the cursor.
    fn anchor(&mut self, number: u64, past: u64, begins: bool) {
        let period = number - past;
        // A marked step pays for its own search.
        let pays = begins && period <= number - self.anchored;
        if pays || self.credit >= period {
            if pays {
                self.anchored = number;
            } else {
                self.credit -= period;
            }
            let mut replacements =
                Replacements::new(self.trace.uses(past + 1).start..self.trace.uses(number).start);
            // Backwards: the earliest use remains.
            for then in (past + 1..number).rev() {
                replacements.look_at(&self.trace, then);
                for place in self.trace.uses(then) {
                    let Some(id) = replacements.at(place) else { continue };
                    let outlook = &mut self.outlooks[id.index as usize];
                    if outlook.generation != id.generation {
                        continue;
                    }
                    let persists = if self.trace.block(place) == Some(id) {
                        outlook.born <= past
                    } else {
                        replacements.inherits(place) || !self.trace.size(place).1
                    };
                    let (at, place) = if persists { (then, place) } else { (outlook.used, outlook.place) };
                    outlook.ends = false;
                    outlook.due = at + period;
                    outlook.operand = place.saturating_sub(self.trace.uses(at).start) as usize;
                }
            }
        }
        for back in 1..CONTEXT.min(past) {
            if self.trace.look_alike(number - back, past - back) {
                self.expect(number - back, past - back);
            }
        }
    }
}
