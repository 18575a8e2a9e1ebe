//! Recordings, and one step that repeats.

use super::planning::{Dice, Script, peak, replay, training};
use super::*;

fn played(recording: &Recording, budget: Limit) -> Recording {
    let mut replay = Replay::new(recording, budget, Policy::Planned);
    replay.pager_mut().record();
    let mut replay = replay.run(1).expect("every operation fits");
    Recording::from_bytes(&replay.pager_mut().recorder().expect("it records").take()).expect("a recording")
}

#[test]
fn a_pager_writes_down_what_it_is_asked_whatever_it_answers() {
    let recording = training(3, true, true, |script, _, weights| script.evaluate(weights, 20));
    let peak = peak(&recording);
    for budget in [Limit::NONE, Limit::bytes(peak / 2), Limit::bytes(peak / 4)] {
        assert_eq!(played(&recording, budget), recording);
    }
    assert_eq!(Recording::from_bytes(&recording.to_bytes()), Ok(recording));
}

#[test]
fn bytes_that_are_no_recording_are_refused() {
    let whole = training(1, true, false, |_, _, _| {}).to_bytes();
    assert_eq!(Recording::from_bytes(b"something else"), Err(BadRecording::Foreign));
    let cut = (8..whole.len()).map(|end| Recording::from_bytes(&whole[..end]));
    assert!(cut.into_iter().all(|read| matches!(read, Ok(_) | Err(BadRecording::Truncated))));
    for at in 8..whole.len() {
        for other in [0x00, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = other;
            // Damaged bytes neither panic nor name an unborn block.
            let Ok(read) = Recording::from_bytes(&damaged) else { continue };
            let born = read.events.iter().filter(|event| matches!(event, Event::Born { .. })).count();
            assert!(read.operands.iter().all(|operand| operand.block < born));
        }
    }
    let [.., last] = whole[..] else { panic!("it is not empty") };
    assert_eq!(last, 5, "a marked step ends it");
    for unborn in [&[4, 0xff, 0x7f][..], &[4, 0, 0xff, 0x7f]] {
        let named = [&whole[..], unborn].concat();
        assert_eq!(Recording::from_bytes(&named), Err(BadRecording::Senseless { at: whole.len() }));
    }
}

#[test]
fn one_step_over_and_over_moves_what_the_whole_program_moves() {
    for reborn in [false, true] {
        let recording = training(9, true, reborn, |_, _, _| {});
        let step = recording.step(4).expect("steps that are alike");
        assert_eq!(Recording::from_bytes(&step.to_bytes()).as_ref(), Ok(&step));
        let peak = peak(&recording);
        for share in [100, 75, 50, 25] {
            let budget = peak * share / 100;
            let whole = replay(&recording, Limit::bytes(budget), Policy::Planned).steps()[7];
            let again = Replay::new(&step, Limit::bytes(budget), Policy::Planned).run(8).expect("it fits");
            assert_eq!(again.steps().len(), 8);
            assert_eq!(again.steps()[7], whole, "{share} %, reborn {reborn}");
            assert_eq!(
                bound(&step, budget, 8)[6],
                bound(&recording, budget, 1)[6],
                "{share} %, reborn {reborn}"
            );
        }
    }
}

#[test]
fn steps_that_are_not_alike_do_not_repeat() {
    let recording = training(4, true, true, |script, step, weights| {
        if step == 1 {
            script.evaluate(weights, 20);
        }
    });
    assert!(matches!(recording.step(1), Err(BadRecording::Different { .. })));
    assert_eq!(recording.step(9), Err(BadRecording::TooShort { steps: 5, needed: 11 }));
}

#[test]
fn steps_are_alike_whose_drops_were_found_in_another_order_or_later() {
    let whole = training(4, true, true, |_, _, _| {});
    let marks: Vec<usize> = (0..whole.events.len()).filter(|n| whole.events[*n] == Event::Step).collect();
    let next = &whole.events[marks[1]..marks[2]];
    let two_drops = |pair: &[Event]| matches!(pair, [Event::Freed(_), Event::Freed(_)]);
    let drop_first = |pair: &[Event]| matches!(pair, [Event::Freed(_), Event::Born { .. }]);
    assert!(whole.step(1).is_ok());
    for pair in [next.windows(2).position(two_drops), next.windows(2).position(drop_first)] {
        let at = marks[1] + pair.expect("an update drops blocks");
        let mut swept = whole.clone();
        swept.events.swap(at, at + 1);
        assert_eq!(swept.step(1), whole.step(1));
    }
    let mut kept = whole.clone();
    let drop = next.iter().position(|event| matches!(event, Event::Freed(_)));
    kept.events.remove(marks[1] + drop.expect("a drop"));
    assert!(matches!(kept.step(1), Err(BadRecording::Different { .. })), "a drop less");
}

#[test]
fn layers_that_are_alike_are_written_once() {
    let layers = |count: usize| {
        let mut script = Script::default();
        let weights: Vec<usize> = (0..count).map(|_| script.born(1000)).collect();
        let mut last = script.born(70);
        for weight in weights {
            let wide: Vec<usize> = (0..20).map(|n| script.born(100 + n)).collect();
            for block in &wide {
                script.operate(&[last], &[*block]);
            }
            let next = script.born(70);
            script.operate(&[weight, wide[0]], &[next]);
            wide.into_iter().chain([last]).for_each(|block| script.free(block));
            last = next;
        }
        script.recording
    };
    let [ten, hundred] = [10, 100].map(layers);
    for recording in [&ten, &hundred] {
        assert_eq!(Recording::from_bytes(&recording.to_bytes()).as_ref(), Ok(recording));
    }
    let [short, long] = [ten, hundred].map(|recording| recording.to_bytes().len());
    assert!(long < 4 * short, "{long} bytes for ten times the layers of {short}");
}

#[test]
fn weights_that_each_micro_batch_names_are_written_once() {
    let step = |micro_batches: usize| {
        let mut script = Script::default();
        let first: Vec<usize> = (0..40).map(|_| script.born(1000)).collect();
        for _ in 0..3 {
            let second: Vec<usize> = (0..40).map(|_| script.born(1000)).collect();
            for weight in &second {
                script.recording.events.push(Event::WrittenInTier(*weight));
            }
            for _ in 0..micro_batches {
                let mut last = script.born(70);
                for weight in first.iter().chain(&second) {
                    let next = script.born(70);
                    script.operate(&[*weight, last], &[next]);
                    script.free(last);
                    last = next;
                }
                script.free(last);
            }
            for weight in &second {
                script.free(*weight);
            }
            script.step();
        }
        script.recording.step(1).expect("steps that are alike")
    };
    let [two, twenty] = [2, 20].map(step);
    for recording in [&two, &twenty] {
        assert_eq!(Recording::from_bytes(&recording.to_bytes()).as_ref(), Ok(recording));
    }
    let [short, long] = [two, twenty].map(|recording| recording.to_bytes().len());
    assert!(long < 2 * short, "{long} bytes for ten times the micro-batches of {short}");
}

#[test]
fn a_repetition_beyond_reason_is_refused_before_it_fills_the_memory() {
    let step = [&b"spilled1"[..], &[5]].concat();
    let repeated = |count: &[u8]| Recording::from_bytes(&[&step[..], &[10, 1], count].concat());
    assert_eq!(repeated(&[3]).expect("four steps").events, [Event::Step; 4]);
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    assert_eq!(repeated(&huge), Err(BadRecording::TooLong { at: 9 }));
    let before_all = [&step[..], &[10, 2, 1]].concat();
    assert_eq!(Recording::from_bytes(&before_all), Err(BadRecording::Senseless { at: 9 }));
}

#[test]
fn repeated_events_are_limited_in_bytes_too_since_each_may_have_many_operands() {
    // A block, and a change of it; its number takes 30 bytes.
    let number = [&[0x81][..], &[0x80; 28], &[0]].concat();
    let change = [&b"spilled1"[..], &[0, 1, 0], &[2], &number].concat();
    let repeated = |count: &[u8]| Recording::from_bytes(&[&change[..], &[10, 1], count].concat());
    assert_eq!(repeated(&[3]).expect("four changes").events[1..], [Event::Written(0); 4]);
    let million = [0x80, 0x80, 0x40];
    assert_eq!(repeated(&million), Err(BadRecording::TooLong { at: change.len() }));
}

const SLOW: Machine = Machine { link: 10.0, memory: 1.0, host: 2.0, ..Machine::INSTANT };

#[test]
fn what_the_program_reads_is_copied_out_and_waited_for_unless_the_host_has_it() {
    let mut script = Script::default();
    let (made, given) = (script.born(100), script.born(100));
    script.operate(&[], &[made]);
    script.recording.events.push(Event::WrittenInTier(given));
    script.operate(&[given], &[]);
    for block in [made, given] {
        script.recording.events.push(Event::Read { block, bytes: 50 });
    }
    script.step();
    let machine = Machine { host: f64::INFINITY, ..SLOW };
    let replay = Replay::new(&script.recording, Limit::NONE, Policy::Planned).on(machine);
    let replay = replay.run(1).expect("it fits");
    assert_eq!(replay.read_steps(), [50]);
    let elapsed = replay.elapsed()[0];
    // Two operations, one block in, half a block out: the host keeps its own block.
    assert_eq!((elapsed.arithmetic, elapsed.back, elapsed.out, elapsed.step), (200.0, 10.0, 5.0, 215.0));
}

#[test]
fn gradients_are_read_beside_the_program_take_memory_until_then_and_precede_the_steps_end() {
    const MIB: u64 = 1 << 20;
    let machine = Machine { link: MIB as f64, memory: MIB as f64, ..Machine::INSTANT };
    let elapsed = |later: u64, budget: u64| {
        let mut script = Script::default();
        let gradient = script.born(2 * MIB);
        script.operate(&[], &[gradient]);
        script.recording.events.push(Event::Read { block: gradient, bytes: 2 * MIB });
        script.free(gradient);
        let next = script.born(later * MIB);
        script.operate(&[], &[next]);
        script.step();
        let replay = Replay::new(&script.recording, Limit::bytes(budget * MIB), Policy::Planned).on(machine);
        replay.run(1).expect("it fits").elapsed()[0].step
    };
    let (beside, last, waiting) = (elapsed(3, 5), elapsed(1, 3), elapsed(3, 3));
    assert_eq!((beside, last, waiting), (2.0 + 3.0, 2.0 + 2.0, 2.0 + 2.0 + 3.0));
}

#[test]
fn the_disk_does_one_thing_at_a_time_and_the_program_waits_for_all_but_what_is_in_buffers() {
    const MIB: u64 = 1 << 20;
    let machine = Machine { disk: MIB as f64, ..Machine::INSTANT };
    let elapsed = |returns: bool| {
        let mut script = Script::default();
        let blocks = [0; 3].map(|_| script.born(100 * MIB));
        for block in blocks {
            script.operate(&[], &[block]);
        }
        if returns {
            script.operate(&[blocks[0]], &[]);
        }
        script.step();
        let replay = Replay::new(&script.recording, Limit::bytes(100 * MIB), Policy::Planned).on(machine);
        let replay = replay.above_a_disk(100 * MIB).run(1).expect("the disk takes it");
        (replay.disk_steps()[0], replay.elapsed()[0].disk, replay.elapsed()[0].step)
    };
    // The first spills: the second can leave the device for the third.
    let once = Moved { bytes_in: 0, bytes_out: 100 * MIB };
    assert_eq!(elapsed(false), (once, 100.0, 76.0), "24 MiB are written behind the program's back");
    // The others are exchanged with the first through the host.
    let all = Moved { bytes_in: 100 * MIB, bytes_out: 300 * MIB };
    assert_eq!(elapsed(true), (all, 400.0, 400.0));
}

#[test]
fn contents_created_on_the_host_replace_blocks_that_spill() {
    let mut script = Script::default();
    let blocks = [0; 3].map(|_| script.born(10));
    for block in blocks {
        script.recording.events.push(Event::WrittenInTier(block));
    }
    script.step();
    let replay = Replay::new(&script.recording, Limit::bytes(100), Policy::Planned).above_a_disk(20);
    let replay = replay.run(1).expect("the disk takes one");
    assert_eq!(replay.pager().ledger().held(Tier::Host), 20);
    assert_eq!(replay.disk_steps(), [Moved { bytes_in: 0, bytes_out: 10 }]);
}

#[test]
fn states_on_the_disk_pass_in_the_time_that_blocks_leave_and_are_waited_for_with_their_contents() {
    let mut script = Script::default();
    let [first, second, third, parameter] = [0; 4].map(|_| script.born(10));
    for block in [first, second, third] {
        script.operate(&[], &[block]);
    }
    script.recording.events.push(Event::WrittenInTier(parameter));
    script.step();
    let elapsed = |memory: f64, states: f64| {
        let machine = Machine { memory, disk: 1.0, states, ..Machine::INSTANT };
        let replay = Replay::new(&script.recording, Limit::bytes(10), Policy::Planned).on(machine);
        let replay = replay.above_a_disk(10).run(1).expect("the disk takes it");
        assert_eq!(replay.disk_steps(), [Moved { bytes_in: 0, bytes_out: 20 }], "states are no blocks");
        assert_eq!(replay.given_steps(), [10]);
        (replay.elapsed()[0].disk, replay.elapsed()[0].step)
    };
    // Two blocks spill into buffers at once; the state's 30 bytes follow.
    assert_eq!(elapsed(1.0, 0.0), (20.0, 30.0));
    assert_eq!(elapsed(1.0, 3.0), (50.0, 50.0));
    // Operations of 60 seconds leave the disk time for both.
    assert_eq!(elapsed(0.5, 3.0), (50.0, 60.0));
}

#[test]
fn contents_made_on_the_host_come_one_after_another_from_the_steps_beginning() {
    let mut script = Script::default();
    for work in [30, 500] {
        let parameters = [script.born(40), script.born(60)];
        let other = script.born(work);
        for block in parameters {
            script.operate(&[], &[other]);
            script.recording.events.push(Event::WrittenInTier(block));
        }
        parameters.into_iter().chain([other]).for_each(|block| script.free(block));
        script.step();
    }
    let replay = Replay::new(&script.recording, Limit::NONE, Policy::Planned).on(SLOW);
    let replay = replay.run(1).expect("it fits");
    // They are there after 20 and 50 seconds; later uses do not wait.
    let times = replay.elapsed().iter().map(|elapsed| (elapsed.arithmetic, elapsed.host, elapsed.step));
    assert_eq!(times.collect::<Vec<_>>(), [(60.0, 50.0, 60.0), (1000.0, 50.0, 1000.0)]);
    let slower =
        Replay::new(&script.recording, Limit::NONE, Policy::Planned).on(Machine { host: 0.5, ..SLOW });
    let steps: Vec<f64> =
        slower.run(1).expect("it fits").elapsed().iter().map(|elapsed| elapsed.step).collect();
    assert_eq!(steps, [200.0, 1000.0]);
}

#[test]
fn loading_ahead_never_makes_a_replay_fail() {
    const MIB: u64 = 1 << 20;
    let machine = Machine { disk: 1e9, link: 10e9, memory: 1e9, ..Machine::INSTANT };
    let mut loaded = 0;
    for seed in 0..100 {
        let mut dice = Dice(seed);
        let mut script = Script::default();
        let blocks: Vec<_> = (0..6).map(|_| script.born((50 + dice.below(70)) * MIB)).collect();
        let order: Vec<_> = (0..10).map(|_| blocks[dice.below(6) as usize]).collect();
        for block in &blocks {
            script.operate(&[], &[*block]);
        }
        for _ in 0..8 {
            for block in &order {
                script.operate(&[*block], &[]);
            }
            script.step();
        }
        let host = (120 + dice.below(110)) * MIB;
        let replay =
            || Replay::new(&script.recording, Limit::bytes(130 * MIB), Policy::Planned).above_a_disk(host);
        replay().run(1).expect("it has room");
        let played = replay().on(machine).run(1).expect("and has when blocks are loaded ahead");
        loaded += played.pager().counters().disk.loaded_ahead;
    }
    assert!(loaded > 0);
}
