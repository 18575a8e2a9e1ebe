//! The offline bound holds: no way of moving the blocks of a small program undercuts it.

use super::planning::{Dice, Script};
use super::*;
use std::collections::HashMap;

/// Where a block's bytes may be, for an omniscient manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Undefined,
    Dirty,
    Clean,
    Away,
    Gone,
}

/// The fewest bytes that the events from `n` on take, by trying every choice.
fn fewest(
    recording: &Recording,
    sizes: &[u64],
    budget: u64,
    n: usize,
    blocks: &[At],
    known: &mut HashMap<(usize, Vec<At>), Option<u64>>,
) -> Option<u64> {
    let Some(event) = recording.events.get(n) else { return Some(0) };
    if let Some(known) = known.get(&(n, blocks.to_vec())) {
        return *known;
    }
    let mut best = None;
    match *event {
        Event::Freed(block) => {
            let mut next = blocks.to_vec();
            next[block] = At::Gone;
            best = fewest(recording, sizes, budget, n + 1, &next, known);
        }
        Event::Operation { first, count, .. } => {
            let operands = &recording.operands[first..first + count];
            for leaving in 0..1u32 << blocks.len() {
                let (mut next, mut cost) = (blocks.to_vec(), 0);
                for (block, at) in next.iter_mut().enumerate() {
                    let named = operands.iter().any(|operand| operand.block == block);
                    if leaving >> block & 1 == 1 && matches!(at, At::Dirty | At::Clean) {
                        cost += if *at == At::Dirty { sizes[block] } else { 0 };
                        *at = At::Away;
                    }
                    if named && *at == At::Away {
                        cost += sizes[block];
                        *at = At::Clean;
                    }
                }
                let here = |(block, at): (usize, &At)| {
                    let named = operands.iter().any(|operand| operand.block == block);
                    if matches!(at, At::Dirty | At::Clean) || named { sizes[block] } else { 0 }
                };
                if next.iter().enumerate().map(here).sum::<u64>() > budget {
                    continue;
                }
                for operand in operands.iter().filter(|operand| operand.written) {
                    next[operand.block] = At::Dirty;
                }
                let rest = fewest(recording, sizes, budget, n + 1, &next, known);
                best = best.into_iter().chain(rest.map(|rest| rest + cost)).min();
            }
        }
        _ => best = fewest(recording, sizes, budget, n + 1, blocks, known),
    }
    known.insert((n, blocks.to_vec()), best);
    best
}

#[test]
fn no_way_of_moving_undercuts_the_bound() {
    let (mut tight, mut moving) = (0, 0);
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let mut script = Script::default();
        let sizes: Vec<u64> = (0..4).map(|_| 1 + dice.below(3)).collect();
        let blocks: Vec<usize> = sizes.iter().map(|bytes| script.born(*bytes)).collect();
        let mut alive = blocks.clone();
        for _ in 0..8 {
            let pick = |dice: &mut Dice| alive[dice.below(alive.len() as u64) as usize];
            let (one, other) = (pick(&mut dice), pick(&mut dice));
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
        let budget = 4 + dice.below(3);
        let recording = &script.recording;
        let Some(fewest) = fewest(recording, &sizes, budget, 0, &[At::Undefined; 4], &mut HashMap::new())
        else {
            continue;
        };
        let least: u64 = bound(recording, budget, 1).iter().map(|moved| moved.total()).sum();
        assert!(least <= fewest, "seed {seed}: bound {least}, possible {fewest}: {recording:?}");
        if let Ok(planned) = Replay::new(recording, Limit::bytes(budget), Policy::Planned).run(1) {
            let planned: u64 = planned.steps().iter().map(|moved| moved.total()).sum();
            assert!(fewest <= planned, "seed {seed}: the pager moves {planned}, the least is {fewest}");
        }
        tight += u64::from(least == fewest && fewest > 0);
        moving += u64::from(fewest > 0);
    }
    assert!(
        moving > 100 && tight * 4 > moving,
        "reached by {tight} of {moving} programs that have to move anything"
    );
}
