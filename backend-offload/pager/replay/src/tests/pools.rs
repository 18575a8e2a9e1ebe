//! Replays with a memory pool, and what giving its spare slices back costs.

use super::planning::Script;
use super::*;

/// Blocks of 60, 50 and 50 bytes, one after another.
fn changing_sizes() -> Recording {
    let mut script = Script::default();
    for bytes in [60, 50, 50] {
        let block = script.born(bytes);
        script.operate(&[], &[block]);
        script.free(block);
    }
    script.step();
    script.recording
}

fn trims(replay: Replay) -> Vec<u64> {
    replay.run(1).expect("it fits").trim_steps().to_vec()
}

#[test]
fn spare_slices_go_back_to_the_driver_where_a_block_of_another_size_lacks_room() {
    let recording = changing_sizes();
    let under = |bytes| Replay::new(&recording, Limit::bytes(bytes), Policy::Planned);
    assert_eq!(trims(under(100)), [0], "without a pool nothing is spare");
    assert_eq!(trims(under(100).with_pool()), [1], "the third block uses the slice of the second");
    assert_eq!(trims(under(110).with_pool()), [0], "a slice of either size has room");
}

#[test]
fn pools_of_a_recording_are_kept() {
    let mut recording = changing_sizes();
    for event in &mut recording.events {
        if let Event::Born { bytes, .. } = *event {
            *event = Event::Born { bytes, arena: Arena(bytes as u32) };
        }
    }
    let replay = || Replay::new(&recording, Limit::bytes(100), Policy::Planned);
    assert_eq!([trims(replay()), trims(replay().with_pool())], [[1], [1]]);
}

#[test]
fn the_program_waits_while_spare_slices_go_back() {
    let recording = changing_sizes();
    let machine = Machine { memory: 1.0, trim: 7.0, ..Machine::INSTANT };
    let replay = || Replay::new(&recording, Limit::bytes(100), Policy::Planned).on(machine);
    let times = [replay(), replay().with_pool()].map(|replay| {
        let elapsed = replay.run(1).expect("it fits").elapsed()[0];
        (elapsed.arithmetic, elapsed.step)
    });
    assert_eq!(times, [(160.0, 160.0), (160.0, 167.0)]);
}
