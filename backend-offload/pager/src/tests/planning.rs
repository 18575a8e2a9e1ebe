//! The planned policy on programs that repeat.

use super::*;

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

enum Request {
    Born(u64),
    /// An operation on both; if `writes`, it changes the second.
    Operation {
        operands: [usize; 2],
        writes: bool,
    },
    Freed(usize),
    Hinted(usize, Preference),
}

#[derive(Default)]
struct Program {
    requests: Vec<Request>,
    born: usize,
}

impl Program {
    fn born(&mut self, bytes: u64) -> usize {
        self.requests.push(Request::Born(bytes));
        self.born += 1;
        self.born - 1
    }

    fn run(&self, budget: Limit) -> Counters {
        let mut pager = Pager::new(budget, Policy::Planned, Oversized::Refuse);
        let mut blocks = Vec::new();
        for request in &self.requests {
            match *request {
                Request::Born(bytes) => blocks.push(pager.insert(bytes, Arena::UNPOOLED)),
                Request::Operation { operands: [first, second], writes } => {
                    operate(&mut pager, &[blocks[first], blocks[second]]);
                    if writes {
                        pager.wrote(blocks[second]).expect("on the device");
                    }
                }
                Request::Freed(block) => pager.remove(blocks[block]).expect("it lives"),
                Request::Hinted(block, preference) => {
                    pager.prefer(blocks[block], preference).expect("it lives");
                }
            }
        }
        pager.counters()
    }
}

#[test]
fn the_first_in_order_is_the_one_a_look_at_all_blocks_finds() {
    let mut chosen = 0;
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let mut program = Program::default();
        let kept: Vec<usize> = (0..12).map(|_| program.born(1 + dice.below(30))).collect();
        let shapes: Vec<u64> = (0..3).map(|_| dice.below(1 << 30)).collect();
        for _ in 0..30 {
            // One of three constant steps.
            let mut step = Dice(shapes[dice.below(3) as usize]);
            let mut passing = Vec::new();
            for _ in 0..25 {
                if step.below(3) == 0 {
                    passing.push(program.born(1 + step.below(20)));
                }
                let pool: Vec<usize> = kept.iter().chain(&passing).copied().collect();
                let mut pick = || pool[step.below(pool.len() as u64) as usize];
                let (read, written) = (pick(), pick());
                let writes = step.below(2) == 0;
                program.requests.push(Request::Operation { operands: [read, written], writes });
            }
            program.requests.extend(passing.into_iter().map(Request::Freed));
            if seed % 2 == 1 {
                let preferences = [Preference::Host, Preference::Policy, Preference::Device];
                let (block, preference) = (dice.below(12) as usize, preferences[dice.below(3) as usize]);
                program.requests.push(Request::Hinted(kept[block], preference));
            }
        }
        let counters = program.run(Limit::bytes(70 + dice.below(150)));
        chosen += if counters.ahead.predicted > 0 {
            counters.link.evictions + counters.link.clean_drops
        } else {
            0
        };
    }
    assert!(chosen > 10_000, "{chosen} victims");
}

#[test]
fn hints_come_before_what_is_known_of_the_future() {
    let mut pager = Pager::new(Limit::bytes(40), Policy::Planned, Oversized::Refuse);
    let blocks: Vec<BlockId> = (0..5).map(|_| pager.insert(10, Arena::UNPOOLED)).collect();
    let away = |pager: &Pager, n: usize| !pager.get(blocks[n]).is_some_and(Block::is_on_device);
    for round in 0..30 {
        for block in &blocks {
            operate(&mut pager, &[*block]);
            pager.wrote(*block).expect("on the device");
        }
        match round {
            19 => pager.prefer(blocks[0], Preference::Device).expect("it lives"),
            24 => pager.prefer(blocks[0], Preference::Policy).expect("it lives"),
            20..24 => assert!(!away(&pager, 0), "round {round}"),
            _ => {}
        }
    }
    assert!(pager.counters().ahead.predicted > 100);
}

#[test]
fn a_marked_step_of_any_length_is_foretold() {
    const OPERATIONS: usize = 300_000;
    let mut pager = Pager::new(Limit::bytes(10 << 20), Policy::Planned, Oversized::Refuse);
    let blocks: Vec<_> = (1..65).map(|size| pager.insert(size << 10, Arena::UNPOOLED)).collect();
    let mut predicted = Vec::new();
    for _ in 0..3 {
        let before = pager.counters().ahead.predicted;
        let mut dice = Dice(7);
        for _ in 0..OPERATIONS {
            operate(&mut pager, &[blocks[dice.below(64) as usize]]);
        }
        pager.mark_step();
        predicted.push(pager.counters().ahead.predicted - before);
    }
    assert!(predicted[2] > OPERATIONS as u64 * 9 / 10, "{predicted:?}");
}
