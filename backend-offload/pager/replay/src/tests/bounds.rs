//! The offline bound on small programs.

use super::planning::{Dice, Script};
use super::*;
use std::collections::HashMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Undefined,
    Dirty,
    Clean,
    Away,
    Gone,
}

/// The fewest bytes from event `n` on, by exhaustive search.
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

/// Time of the last of several rounds, and the least.
fn taken(step: &Recording, budget: u64, machine: Machine) -> (f64, f64) {
    const ROUNDS: usize = 6;
    let replay = Replay::new(step, Limit::bytes(budget), Policy::Planned).on(machine);
    let replay = replay.run(ROUNDS).expect("every operation fits");
    (replay.elapsed()[ROUNDS - 1].step, Pace::of(step, machine).least(budget))
}

#[test]
fn a_step_takes_no_less_than_what_is_made_at_once_takes_to_leave() {
    let mut script = Script::default();
    script.recording.events.push(Event::Begin);
    let blocks: Vec<usize> = (0..8).map(|_| script.born(10)).collect();
    for block in &blocks {
        script.operate(&[], &[*block]);
    }
    for block in blocks.iter().rev() {
        script.operate(&[*block], &[]);
        script.free(*block);
    }
    script.step();
    // Each half takes 80 seconds. Of 80 bytes 40 stay; the others take 400 seconds each way: out before the first
    // half's last operation, in after the second half's first.
    let machine = Machine { memory: 1.0, link: 0.1, ..Machine::INSTANT };
    let (step, least) = taken(&script.recording, 40, machine);
    assert!((least - 840.0).abs() < 1e-6, "{least}");
    assert!(step >= least && step < 1.2 * least, "{step} of at least {least}");
}

fn operations<const COUNT: usize>(sides: [&[u64]; COUNT]) -> Script {
    let mut script = Script::default();
    let sides = sides.map(|sizes| sizes.iter().map(|bytes| script.born(*bytes)).collect::<Vec<_>>());
    for block in sides.iter().flatten() {
        script.operate(&[], &[*block]);
    }
    script.recording.events.push(Event::Begin);
    for side in &sides {
        script.operate(side, &[]);
    }
    script.step();
    let stays = |block: &usize| Event::Carried { role: *block, by: *block };
    script.recording.events.extend(sides.iter().flatten().map(stays));
    script
}

/// Compares two operations, a second per byte computed or copied.
fn assert_takes_little_more_than(expected: f64, sides: [&[u64]; 2], budget: u64) {
    let script = operations(sides);
    let machine = Machine { memory: 1.0, link: 1.0, ..Machine::INSTANT };
    let (step, least) = taken(&script.recording, budget, machine);
    assert!((least - expected).abs() < 1e-6, "{least}");
    assert!(step >= least && step < 1.25 * least, "{step} of at least {least}");
}

#[test]
fn a_step_takes_no_less_than_what_comes_between_two_large_operations() {
    // Six blocks each, 60 bytes. Two of the other's have room; four come later.
    assert_takes_little_more_than(2.0 * (60.0 + 40.0), [&[10; 6], &[10; 6]], 80);
}

#[test]
fn a_block_comes_as_a_whole_or_not_at_all_while_an_operation_leaves_room_for_a_part_of_it() {
    // During the first neither block has room in 20 bytes. During the second the largest has none.
    assert_takes_little_more_than(60.0 + 60.0 + 60.0 + 40.0, [&[30, 20, 10], &[30, 30]], 80);
}

#[test]
fn blocks_have_room_together_as_wholes() {
    assert_takes_little_more_than(2.0 * (60.0 + 20.0), [&[20; 3], &[20; 3]], 110);
}

#[test]
fn what_comes_next_in_a_circle_comes_beside_the_operations_before() {
    let script = operations([&[10]; 24]);
    // Sixteen blocks have room; a copy takes a fifth longer than an operation.
    let machine = Machine { memory: 1.0, link: 1.0 / 1.2, ..Machine::INSTANT };
    let (step, least) = taken(&script.recording, 160, machine);
    assert!((least - 240.0).abs() < 1e-6, "{least}");
    assert!(step < 1.05 * least, "{step} of at least {least}");
}

#[test]
fn no_step_takes_less_than_the_least() {
    for seed in 0..20 {
        let mut dice = Dice(seed);
        let sizes: Vec<u64> = (0..30).map(|_| 10 + dice.below(40)).collect();
        let mut script = Script::default();
        let mut first = || sizes.iter().map(|bytes| script.born(*bytes)).collect::<Vec<_>>();
        let (mut weights, mut moments) = (first(), first());
        for block in weights.iter().chain(&moments) {
            script.operate(&[], &[*block]);
        }
        for _ in 0..4 {
            script.train(&mut weights, &mut moments, &sizes, seed % 2 == 0);
            script.step();
        }
        let step = script.recording.repeating().expect("steps that are alike");
        let free = Replay::new(&step, Limit::NONE, Policy::Planned).run(2).expect("no budget is too small");
        let budget = free.pager().ledger().resident_peak() * (40 + dice.below(50)) / 100;
        let machine = Machine { memory: 1.0, link: 0.05 * (1 + dice.below(20)) as f64, ..Machine::INSTANT };
        let (taken, least) = taken(&step, budget, machine);
        assert!(taken > 0.999 * least, "seed {seed}: {taken}, at least {least}");
    }
}

#[test]
fn a_step_takes_the_time_of_its_own_reads_and_no_others() {
    let least = |read_in: Option<usize>| {
        let mut script = Script::default();
        let block = script.born(100);
        for step in 0..6 {
            script.operate(&[], &[block]);
            if read_in == Some(step) {
                script.recording.events.push(Event::Read { block, bytes: 1 << 40 });
            }
            script.step();
        }
        let machine = Machine { link: 1.0, memory: 1.0, ..Machine::INSTANT };
        Pace::of(&script.recording, machine).least(1000)
    };
    assert!(least(Some(2)) > 1e9);
    for step in [0, 5] {
        assert_eq!(least(Some(step)).to_bits(), least(None).to_bits(), "read in step {step}");
    }
}
