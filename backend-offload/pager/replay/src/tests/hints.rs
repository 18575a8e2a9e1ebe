//! Hints on blocks of a program that repeats, with moves ahead.

use super::planning::{peak, training};
use super::*;
use pager::{Block, Preference};

#[test]
fn hints_are_kept_while_moves_are_ahead() {
    const STEPS: usize = 30;
    const HINTED: usize = 10;
    let (kept, sent) = (2, 5);
    let program = training(STEPS, true, false, |_, _, _| {});

    let budget = Limit::bytes(peak(&program) * 3 / 4);
    let mut replay = Replay::new(&program, budget, Policy::Planned).on(Machine {
        link: 1.0,
        memory: 0.1,
        ..Machine::INSTANT
    });

    let is_here = |replay: &Replay, block: usize| {
        replay.blocks[block].and_then(|id| replay.pager.get(id)).is_some_and(Block::is_on_device)
    };
    let (mut steps, mut left, mut ahead) = (0, [[0, 0]; STEPS + 2], vec![(0, 0)]);
    for event in &program.events {
        let before = [kept, sent].map(|block| replay.blocks.len() > sent && is_here(&replay, block));
        replay.play(*event).expect("every operation fits");
        for (n, block) in [kept, sent].into_iter().enumerate() {
            left[steps][n] += usize::from(before[n] && !is_here(&replay, block));
        }
        if *event == Event::Step {
            steps += 1;
            let counts = replay.pager.counters().ahead;
            ahead.push((counts.left_ahead, counts.brought_ahead));
            if steps == HINTED {
                for (block, preference) in [(kept, Preference::Device), (sent, Preference::Host)] {
                    let id = replay.blocks[block].expect("it lives");
                    replay.pager.prefer(id, preference).expect("it lives");
                }
            }
        }
    }

    assert!(steps > STEPS);
    assert!(left[HINTED - 2][0] > 0, "without a hint it leaves");
    for step in HINTED + 1..STEPS {
        let ([before, after], [kept, sent]) = ([ahead[step], ahead[step + 1]], left[step]);
        assert!(kept == 0 && sent > 0, "step {step}: {kept} and {sent} evictions");
        assert!(after.0 > before.0 && after.1 > before.1, "step {step}: from {before:?} to {after:?}");
    }
}
