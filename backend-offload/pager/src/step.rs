//! Cuts one repeatable step out of a recording.

use crate::recording::{BadRecording, Event, Operand, Recording};
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl Recording {
    /// The recording itself if it repeats, or its latest repeating step.
    ///
    /// # Errors
    /// If no two complete steps in a row are alike.
    pub fn repeating(self) -> Result<Self, BadRecording> {
        if self.repeats() {
            return Ok(self);
        }
        let steps = self.events.iter().filter(|event| **event == Event::Step).count();
        let mut latest = (1..steps.saturating_sub(1)).rev().map(|number| self.step(number));
        match latest.find_map(Result::ok) {
            Some(step) => Ok(step),
            None => self.step(1),
        }
    }

    /// The marked step of this number, from zero, to repeat for ever. Its initial blocks are born on the host; blocks
    /// of the same part in the next step replace them.
    ///
    /// # Errors
    /// If the step or the next one is incomplete, or they differ.
    pub fn step(&self, number: usize) -> Result<Self, BadRecording> {
        let marks: Vec<usize> = (0..self.events.len()).filter(|n| self.events[*n] == Event::Step).collect();
        let needed = number + 2;
        if number == 0 || marks.len() < needed {
            return Err(BadRecording::TooShort { steps: marks.len(), needed: needed.max(3) });
        }
        let (begin, middle, end) = (marks[number - 1] + 1, marks[number] + 1, marks[number + 1] + 1);
        let (this, next) = (&self.events[begin..middle], &self.events[middle..end]);
        let births =
            |events: &[Event]| events.iter().filter(|event| matches!(event, Event::Born { .. })).count();
        let before = births(&self.events[..begin]);
        let until = before + births(this);

        // Initial blocks and their replacements, by first use.
        let mut replacements: Vec<(usize, usize)> = Vec::new();
        let mut known = HashMap::new();
        let ((mine, my_drops), (theirs, their_drops)) = (without_drops(this), without_drops(next));
        if mine.len() != theirs.len() {
            return Err(BadRecording::Different { event: mine.len().min(theirs.len()) });
        }
        for (event, (mine, theirs)) in mine.into_iter().zip(theirs).enumerate() {
            let different = BadRecording::Different { event };
            for (mine, theirs) in self.pairs(mine, theirs).ok_or(different.clone())? {
                if mine >= before {
                    continue;
                }
                let fresh = known.insert(mine, theirs);
                if theirs >= until || fresh.is_some_and(|same| same != theirs) {
                    return Err(different);
                }
                if fresh.is_none() {
                    replacements.push((mine, theirs));
                }
            }
        }

        // A drop may be noted operations later: it is enough that both steps drop the same blocks.
        let mut left: BTreeSet<usize> = their_drops.into_iter().collect();
        let in_next = |block: usize| match block.checked_sub(before) {
            Some(born) => Some(until + born),
            None => known.get(&block).copied(),
        };
        let unused: BTreeSet<usize> = my_drops
            .into_iter()
            .filter(|block| !in_next(*block).is_some_and(|same| left.remove(&same)))
            .collect();
        let are_initial =
            unused.iter().all(|block| in_next(*block).is_none()) && left.iter().all(|block| *block < until);
        if unused.len() != left.len() || !are_initial {
            return Err(BadRecording::Different { event: this.len().min(next.len()) });
        }
        replacements.extend(unused.into_iter().zip(left));
        Ok(self.cut(this, before, &replacements))
    }

    fn pairs(&self, mine: Event, theirs: Event) -> Option<Vec<(usize, usize)>> {
        match (mine, theirs) {
            (Event::Born { .. }, Event::Born { .. }) | (Event::Step, Event::Step) => {
                (mine == theirs).then(Vec::new)
            }
            (
                Event::Operation { first: mine, count, flops },
                Event::Operation { first: theirs, count: as_many, flops: just_so },
            ) if (count, flops) == (as_many, just_so) => {
                let (mine, theirs) =
                    (&self.operands[mine..mine + count], &self.operands[theirs..theirs + count]);
                let alike = mine.iter().zip(theirs).all(|(mine, theirs)| mine.written == theirs.written);
                alike.then(|| {
                    mine.iter().zip(theirs).map(|(mine, theirs)| (mine.block, theirs.block)).collect()
                })
            }
            (Event::Written(mine), Event::Written(theirs))
            | (Event::WrittenInTier(mine), Event::WrittenInTier(theirs)) => Some(vec![(mine, theirs)]),
            (Event::Read { block: mine, bytes }, Event::Read { block: theirs, bytes: as_many })
                if bytes == as_many =>
            {
                Some(vec![(mine, theirs)])
            }
            _ => None,
        }
    }

    fn cut(&self, step: &[Event], before: usize, replacements: &[(usize, usize)]) -> Self {
        let mut cut = Self::default();
        let mut numbers = BTreeMap::new();
        let births: Vec<Event> =
            self.events.iter().filter(|event| matches!(event, Event::Born { .. })).copied().collect();
        for (role, (block, _)) in replacements.iter().enumerate() {
            numbers.insert(*block, role);
            cut.events.extend([births[*block], Event::WrittenInTier(role)]);
        }
        cut.events.push(Event::Begin);
        let mut born = before;
        for event in step {
            let event = match *event {
                Event::Born { .. } => {
                    numbers.insert(born, replacements.len() + born - before);
                    born += 1;
                    *event
                }
                Event::Operation { first, count, flops } => {
                    let operands = self.operands[first..first + count].iter();
                    let first = cut.operands.len();
                    cut.operands.extend(
                        operands.map(|operand| Operand { block: numbers[&operand.block], ..*operand }),
                    );
                    Event::Operation { first, count, flops }
                }
                Event::Written(block) => Event::Written(numbers[&block]),
                Event::WrittenInTier(block) => Event::WrittenInTier(numbers[&block]),
                Event::Freed(block) => Event::Freed(numbers[&block]),
                Event::Read { block, bytes } => Event::Read { block: numbers[&block], bytes },
                Event::Step | Event::Begin | Event::Carried { .. } => *event,
            };
            cut.events.push(event);
        }
        for (role, (_, replacement)) in replacements.iter().enumerate() {
            if let Some(by) = numbers.get(replacement) {
                cut.events.push(Event::Carried { role, by: *by });
            }
        }
        cut
    }
}

fn without_drops(events: &[Event]) -> (Vec<Event>, Vec<usize>) {
    let mut drops = Vec::new();
    let others = events.iter().filter(|event| match event {
        Event::Freed(block) => {
            drops.push(*block);
            false
        }
        _ => true,
    });
    let others = others.copied().collect();
    (others, drops)
}
