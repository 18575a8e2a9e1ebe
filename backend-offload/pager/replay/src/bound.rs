//! The offline bound: bytes that even an omniscient pager must move. The sum of two minima:
//!
//! - **In.** Between two uses each byte stays or comes back. Staying bytes need room with the operands of every
//!   operation in between. Most stay if those needed latest leave first (Belady).
//! - **Out.** Between two writes, or until the block is freed, contents stay or are copied out once. The same rule
//!   applies; the dirty period's end is the next use.
//!
//! No pager moves less in the long run (`no_way_of_moving_undercuts_the_bound`,
//! `no_way_of_using_three_tiers_undercuts_the_bound_for_the_disk`). The bound may be out of reach: it divides blocks
//! and separates the directions. Above a disk, recorded steps move at most a sixth more than their [bound](disk_bound);
//! with 7 billion parameters, 3 % (`bytes_spilled_to_and_loaded_from_disk_equal_the_record`).

use crate::step_bytes::Moved;
use pager::{Event, Recording};
use std::collections::BTreeSet;
use std::ops::Range;

/// The fewest bytes that can move in each marked step. A single repeating step is taken `times` over.
pub fn bound(recording: &Recording, budget: u64, times: usize) -> Vec<Moved> {
    let program = Program::unrolled(recording, times + 1);
    let mut least = program.least_of_both(budget);
    for (moved, arriving) in least.iter_mut().zip(program.arriving()) {
        moved.bytes_in += arriving;
    }
    least.truncate(if recording.repeats() { times } else { least.len() });
    least
}

/// The fewest bytes to and from a disk in each step, below `above` bytes of device and host together. `bytes_in` are
/// loaded from disk, `bytes_out` written to it.
///
/// As [`bound`] with budget `above`. Contents put into host memory count from their first use.
pub fn disk_bound(recording: &Recording, above: u64, times: usize) -> Vec<Moved> {
    let mut least = Program::unrolled(recording, times + 1).least_of_both(above);
    least.truncate(if recording.repeats() { times } else { least.len() });
    least
}

#[derive(Debug, Clone, Copy)]
struct Access {
    operation: usize,
    written: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Instance {
    pub bytes: u64,
    uses: Vec<Access>,
    begins_away: bool,
    /// The operation before its end.
    freed: Option<usize>,
}

/// A period in which bytes kept on the device cost nothing.
#[derive(Debug, Clone, Copy)]
struct Stay {
    block: usize,
    bytes: u64,
    /// Begins after it.
    from: usize,
    /// Ends at it.
    until: usize,
}

impl Instance {
    /// Whether it has contents, in any tier, before the operation.
    pub fn is_defined_before(&self, operation: usize) -> bool {
        let mut uses = self.uses.iter().take_while(|access| access.operation < operation);
        self.begins_away || uses.any(|access| access.written)
    }

    /// Whether `operation`, a user, writes contents still held at `later`.
    pub fn is_made_for(&self, operation: usize, later: usize) -> bool {
        let nth = self.uses.partition_point(|access| access.operation < operation);
        self.uses[nth].written && self.freed.is_none_or(|freed| freed > later)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Program {
    pub blocks: Vec<Instance>,
    /// Distinct operands of each operation.
    pub operations: Vec<Vec<usize>>,
    /// Floating-point operations.
    pub flops: Vec<u64>,
    /// Operations before each step's end.
    pub steps: Vec<usize>,
}

impl Program {
    pub fn unrolled(recording: &Recording, times: usize) -> Self {
        let mut program = Self::default();
        let begin = recording.events.iter().position(|event| *event == Event::Begin);
        let (before, round) = recording.events.split_at(begin.unwrap_or(recording.events.len()));
        let mut numbers = Vec::new();
        for event in before {
            program.play(recording, *event, &mut numbers);
        }
        let carried = numbers.len();
        for _ in 0..if begin.is_some() { times } else { 0 } {
            for event in round {
                program.play(recording, *event, &mut numbers);
            }
            let mut next = vec![usize::MAX; carried];
            for event in round {
                if let Event::Carried { role, by } = *event {
                    next[role] = std::mem::replace(&mut numbers[by], usize::MAX);
                }
            }
            let now = program.operations.len();
            for left in numbers.drain(..).filter(|number| *number != usize::MAX) {
                program.blocks[left].freed.get_or_insert(now);
            }
            numbers = next;
        }
        program
    }

    fn play(&mut self, recording: &Recording, event: Event, numbers: &mut Vec<usize>) {
        let now = self.operations.len();
        match event {
            Event::Born { bytes, .. } => {
                numbers.push(self.blocks.len());
                self.blocks.push(Instance { bytes, ..Instance::default() });
            }
            Event::Operation { first, count, flops } => {
                let mut operands = Vec::new();
                for operand in &recording.operands[first..first + count] {
                    let number = numbers[operand.block];
                    let uses = &mut self.blocks[number].uses;
                    if let Some(access) = uses.last_mut().filter(|access| access.operation == now) {
                        access.written |= operand.written;
                    } else {
                        uses.push(Access { operation: now, written: operand.written });
                        operands.push(number);
                    }
                }
                self.operations.push(operands);
                self.flops.push(flops);
            }
            Event::Written(block) => {
                if let Some(access) = self.blocks[numbers[block]].uses.last_mut() {
                    access.written = true;
                }
            }
            Event::WrittenInTier(block) => {
                let instance = &mut self.blocks[numbers[block]];
                instance.begins_away |= instance.uses.is_empty();
            }
            Event::Freed(block) => {
                let number = std::mem::replace(&mut numbers[block], usize::MAX);
                self.blocks[number].freed = Some(now);
            }
            Event::Step => self.steps.push(now),
            Event::Begin | Event::Carried { .. } | Event::Read { .. } => {}
        }
    }

    /// Bytes of blocks without room in `budget` next to an operation's operands. Each `further` range adds the blocks
    /// of its operations that `counts` accepts, once each, and yields a sum. Only whole blocks have room: room is a
    /// multiple of their common divisor.
    pub fn without_place(
        &self,
        (operation, budget): (usize, u64),
        further: impl Iterator<Item = Range<usize>>,
        counts: &dyn Fn(usize, usize) -> bool,
    ) -> Vec<u64> {
        let mut counted = vec![false; self.blocks.len()];
        let mut room = budget;
        for block in &self.operations[operation] {
            counted[*block] = true;
            room = room.saturating_sub(self.blocks[*block].bytes);
        }
        let (mut too_large, mut others, mut unit) = (0, 0, 0);
        let sums = further.map(|stretch| {
            for operation in stretch {
                for block in &self.operations[operation] {
                    if !counted[*block] && counts(*block, operation) {
                        counted[*block] = true;
                        let bytes = self.blocks[*block].bytes;
                        if bytes > room {
                            too_large += bytes;
                        } else {
                            others += bytes;
                            unit = common_divisor(unit, bytes);
                        }
                    }
                }
            }
            too_large + u64::saturating_sub(others, room - room.checked_rem(unit).unwrap_or(0))
        });
        sums.collect()
    }

    /// Contents that begin on the host are free; the last counted round needs a successor.
    fn least_of_both(&self, budget: u64) -> Vec<Moved> {
        let ins = self.least(budget, &self.stays(), true);
        let outs = self.least(budget, &self.eras(), false);
        let moved = ins.into_iter().zip(outs);
        moved.map(|(bytes_in, bytes_out)| Moved { bytes_in, bytes_out }).collect()
    }

    /// Contents that come from the host at first use, by step.
    fn arriving(&self) -> Vec<u64> {
        let mut arriving = vec![0; self.steps.len() + 1];
        for instance in self.blocks.iter().filter(|instance| instance.begins_away) {
            if let Some(first) = instance.uses.first() {
                arriving[self.step_of(first.operation)] += instance.bytes;
            }
        }
        arriving
    }

    fn step_of(&self, operation: usize) -> usize {
        self.steps.partition_point(|end| *end <= operation)
    }

    /// From each use with contents to the next.
    fn stays(&self) -> Vec<Stay> {
        let mut stays = Vec::new();
        for (block, instance) in self.blocks.iter().enumerate() {
            let mut defined = instance.begins_away;
            for pair in instance.uses.windows(2) {
                defined |= pair[0].written;
                if defined {
                    let (from, until) = (pair[0].operation, pair[1].operation);
                    stays.push(Stay { block, bytes: instance.bytes, from, until });
                }
            }
        }
        stays
    }

    /// From each write to the next, or to the block's end.
    fn eras(&self) -> Vec<Stay> {
        let mut eras = Vec::new();
        for (block, instance) in self.blocks.iter().enumerate() {
            let writes = instance.uses.iter().filter(|access| access.written).map(|access| access.operation);
            let end = instance.freed.unwrap_or(self.operations.len());
            let ends = writes.clone().skip(1).chain([end]);
            let era = |(from, until)| Stay { block, bytes: instance.bytes, from, until };
            eras.extend(writes.zip(ends).map(era));
        }
        eras
    }

    /// Bytes that cannot stay, by the step of their move: the stay's last if `at_end`, else its first.
    fn least(&self, budget: u64, stays: &[Stay], at_end: bool) -> Vec<u64> {
        let mut moved = vec![0u64; self.steps.len() + 1];
        let mut order: Vec<usize> = (0..stays.len()).collect();
        order.sort_by_key(|n| stays[*n].from);
        let mut beginning = order.into_iter().peekable();
        // Open stays by end, each stay's remaining bytes, each block's latest stay.
        let mut open: BTreeSet<(usize, usize)> = BTreeSet::new();
        let mut left: Vec<u64> = stays.iter().map(|stay| stay.bytes).collect();
        let mut within: Vec<Option<usize>> = vec![None; self.blocks.len()];
        let mut staying = 0u64;
        for (operation, operands) in self.operations.iter().enumerate() {
            while let Some(&(until, stay)) = open.first().filter(|(until, _)| *until <= operation) {
                open.remove(&(until, stay));
                staying -= left[stay];
            }
            // An operand within a stay counts among the staying bytes. Its other bytes take room too, uncounted by this
            // rule.
            let counts = |block: &&usize| within[**block].is_none_or(|stay| stays[stay].until <= operation);
            let room =
                budget.saturating_sub(operands.iter().filter(counts).map(|n| self.blocks[*n].bytes).sum());
            while staying > room {
                let Some((until, stay)) = open.pop_last() else { break };
                let leaves = left[stay].min(staying - room);
                staying -= leaves;
                left[stay] -= leaves;
                moved[self.step_of(if at_end { until } else { stays[stay].from })] += leaves;
                if left[stay] > 0 {
                    open.insert((until, stay));
                }
            }
            while let Some(stay) = beginning.next_if(|stay| stays[*stay].from == operation) {
                open.insert((stays[stay].until, stay));
                within[stays[stay].block] = Some(stay);
                staying += left[stay];
            }
        }
        moved
    }
}

/// With zero, returns the other number.
fn common_divisor(one: u64, other: u64) -> u64 {
    one.checked_rem(other).map_or(one, |rest| common_divisor(other, rest))
}
