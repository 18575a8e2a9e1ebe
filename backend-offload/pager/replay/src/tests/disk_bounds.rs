//! The bound for a disk on small programs.

use super::planning::{Dice, Script};
use super::*;
use std::collections::HashMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Undefined,
    Device { below: bool },
    Host { below: bool },
    Disk,
    Gone,
}

struct Tiers {
    sizes: Vec<u64>,
    device: u64,
    host: u64,
}

impl Tiers {
    /// A block's next places, with their bytes over the disk's link.
    fn ways(&self, block: usize, at: At, named: bool) -> Vec<(At, u64)> {
        let bytes = self.sizes[block];
        let (below, loading, spilling) = match at {
            At::Undefined | At::Gone => return vec![(at, 0)],
            At::Device { below } | At::Host { below } => (below, 0, if below { 0 } else { bytes }),
            At::Disk => (true, bytes, 0),
        };
        let here = (At::Device { below }, loading);
        if named { vec![here] } else { vec![here, (At::Host { below }, loading), (At::Disk, spilling)] }
    }

    fn arrangements(&self, blocks: &[At], operands: &[Operand]) -> Vec<(Vec<At>, u64)> {
        let mut all = vec![(Vec::new(), 0)];
        for (block, at) in blocks.iter().enumerate() {
            let named = operands.iter().any(|operand| operand.block == block);
            let ways = self.ways(block, *at, named);
            let longer = |(before, price): &(Vec<At>, u64)| -> Vec<_> {
                let with = |(at, more): &(At, u64)| ([&before[..], &[*at]].concat(), price + more);
                ways.iter().map(with).collect()
            };
            all = all.iter().flat_map(longer).collect();
        }
        all.retain(|(blocks, _)| {
            let sum = |counts: &dyn Fn(usize, At) -> bool| -> u64 {
                let counted = blocks.iter().enumerate().filter(|(block, at)| counts(*block, **at));
                counted.map(|(block, _)| self.sizes[block]).sum()
            };
            let named = |block: usize| operands.iter().any(|operand| operand.block == block);
            let on_device = sum(&|block, at| matches!(at, At::Device { .. }) || named(block));
            on_device <= self.device && sum(&|_, at| matches!(at, At::Host { .. })) <= self.host
        });
        all
    }

    /// The fewest bytes over the disk's link from event `n` on, by exhaustive search.
    fn fewest(
        &self,
        recording: &Recording,
        n: usize,
        blocks: &[At],
        known: &mut HashMap<(usize, Vec<At>), Option<u64>>,
    ) -> Option<u64> {
        let Some(event) = recording.events.get(n) else { return Some(0) };
        if let Some(known) = known.get(&(n, blocks.to_vec())) {
            return *known;
        }
        let becomes = |block: usize, at: At| {
            let mut next = blocks.to_vec();
            next[block] = at;
            next
        };
        let best = match *event {
            Event::Freed(block) => self.fewest(recording, n + 1, &becomes(block, At::Gone), known),
            Event::WrittenInTier(block) => {
                self.fewest(recording, n + 1, &becomes(block, At::Host { below: false }), known)
            }
            Event::Operation { first, count, .. } => {
                let operands = &recording.operands[first..first + count];
                let mut best: Option<u64> = None;
                for (mut next, price) in self.arrangements(blocks, operands) {
                    for operand in operands.iter().filter(|operand| operand.written) {
                        next[operand.block] = At::Device { below: false };
                    }
                    let rest = self.fewest(recording, n + 1, &next, known);
                    best = best.into_iter().chain(rest.map(|rest| rest + price)).min();
                }
                best
            }
            _ => self.fewest(recording, n + 1, blocks, known),
        };
        known.insert((n, blocks.to_vec()), best);
        best
    }
}

fn program(dice: &mut Dice) -> (Recording, Vec<u64>) {
    let mut script = Script::default();
    let sizes: Vec<u64> = (0..4).map(|_| 1 + dice.below(3)).collect();
    let mut alive: Vec<usize> = sizes.iter().map(|bytes| script.born(*bytes)).collect();
    if dice.below(2) == 0 {
        script.recording.events.push(Event::WrittenInTier(alive[0]));
    }
    for _ in 0..8 {
        let pick = |dice: &mut Dice| alive[dice.below(alive.len() as u64) as usize];
        let (one, other) = (pick(dice), pick(dice));
        match dice.below(3) {
            0 => script.operate(&[], &[one]),
            1 => script.operate(&[one], &[other]),
            _ => script.operate(&[one, other], &[]),
        }
        if alive.len() > 2 && dice.below(6) == 0 {
            script.free(alive.pop().expect("more than two"));
        }
    }
    script.step();
    (script.recording, sizes)
}

#[test]
fn no_way_of_using_three_tiers_undercuts_the_bound_for_the_disk() {
    let (mut tight, mut moving, mut given) = (0, 0, 0);
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let (recording, sizes) = program(&mut dice);
        let tiers = Tiers { sizes, device: 3 + dice.below(3), host: dice.below(4) };
        let begin = [At::Undefined; 4];
        let Some(fewest) = tiers.fewest(&recording, 0, &begin, &mut HashMap::new()) else { continue };
        let above = tiers.device + tiers.host;
        let least: u64 = disk_bound(&recording, above, 1).iter().map(|moved| moved.total()).sum();
        assert!(least <= fewest, "seed {seed}: bound {least}, possible {fewest}: {recording:?}");
        let replay = Replay::new(&recording, Limit::bytes(tiers.device), Policy::Planned);
        if let Ok(played) = replay.above_a_disk(tiers.host).run(1) {
            let moved: u64 = played.disk_steps().iter().map(|moved| moved.total()).sum();
            assert!(fewest <= moved, "seed {seed}: the pager moves {moved}, the least is {fewest}");
        }
        tight += u64::from(least == fewest && fewest > 0);
        moving += u64::from(fewest > 0);
        given += u64::from(recording.events.iter().any(|event| matches!(event, Event::WrittenInTier(_))));
    }
    // Whole blocks and two tiers keep most programs above it.
    assert!(
        moving > 50 && given > 50 && tight * 10 > moving,
        "reached by {tight} of {moving}, {given} given"
    );
}
