//! The disk below a full host.

use super::*;

const HOST: Tier = Tier::Host;
const DISK: Tier = Tier::Disk;

/// Checks after each step that host and disk suffice.
fn operate_above_a_disk(
    pager: &mut Pager,
    operands: &[BlockId],
    [host, disk]: [u64; 2],
) -> Result<Vec<Step>, Stop> {
    pager.begin(operands).expect("legal operands");
    let mut steps = Vec::new();
    loop {
        let held = [HOST, DISK].map(|tier| pager.ledger().held(tier));
        assert!(held[0] <= host && held[1] <= disk, "{held:?} after {steps:?}");
        let rooms = Rooms { host: Limit::bytes(host - held[0]), disk: Limit::bytes(disk - held[1]), page: 1 };
        match pager.next_step(&|| rooms)? {
            Step::Ready => return Ok(steps),
            step => {
                take(pager, step)?;
                steps.push(step);
            }
        }
    }
}

fn place(pager: &Pager, id: BlockId) -> (Place, bool) {
    let block = pager.get(id).expect("it lives");
    let below = block.held().contains(HOST) && block.held().contains(DISK);
    (block.place(), below)
}

#[test]
fn the_least_recently_used_block_spills_and_is_loaded_for_its_next_use() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::LeastRecentlyUsed, 2);
    let room = [20, 100];
    for _ in 0..4 {
        let block = pager.insert(10, Arena(0));
        operate_above_a_disk(&mut pager, &[block], room).expect("the disk takes it");
        pager.wrote(block).expect("on the device");
    }
    assert_eq!(place(&pager, blocks[0]), (Place::Away(DISK), false));
    assert_eq!(place(&pager, blocks[1]), (Place::Away(DISK), false));
    let steps = operate_above_a_disk(&mut pager, &[blocks[0]], room).expect("it comes back");
    let loaded = steps.iter().position(|step| *step == Step::Load { block: blocks[0] }).expect("loaded");
    assert_eq!(steps[loaded + 1], Step::Bring { block: blocks[0], from: Some(HOST) }, "{steps:?}");
    assert_eq!(place(&pager, blocks[0]), (Place::Device { clean: Some(HOST) }, true));
    let counters = pager.counters();
    assert_eq!((counters.disk.bytes_to_disk, counters.disk.bytes_from_disk), (40, 10));
}

#[test]
fn a_block_spills_again_without_a_write_until_it_changes() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::LeastRecentlyUsed, 2);
    let more: Vec<_> = (0..3).map(|_| pager.insert(10, Arena(0))).collect();
    let room = [10, 100];
    for block in &more {
        operate_above_a_disk(&mut pager, &[*block], room).expect("the disk takes it");
        pager.wrote(*block).expect("on the device");
    }
    let written = |pager: &Pager| pager.counters().disk.bytes_to_disk;
    let read = |pager: &mut Pager, id| {
        operate_above_a_disk(pager, &[id], room).expect("it comes back");
    };
    for block in blocks.iter().chain(&more) {
        read(&mut pager, *block);
    }
    let all_below = written(&pager);
    for block in blocks.iter().chain(&more) {
        read(&mut pager, *block);
    }
    assert_eq!(written(&pager), all_below, "nothing was written to a block, so nothing is written for it");
    pager.wrote(more[2]).expect("it was read last");
    assert_eq!(place(&pager, more[2]), (Place::Device { clean: None }, false));
    for block in blocks.iter().chain(&more) {
        read(&mut pager, *block);
    }
    assert_eq!(written(&pager), all_below + 10);
    for block in blocks.into_iter().chain(more) {
        pager.remove(block).expect("it lives");
    }
    assert_eq!([HOST, DISK].map(|tier| pager.ledger().held(tier)), [0, 0]);
}

#[test]
fn a_repeated_program_tells_what_it_wants_next_of_the_disk() {
    for (policy, foretold) in [(Policy::Planned, true), (Policy::LeastRecentlyUsed, false)] {
        let mut pager = Pager::new(Limit::bytes(10), policy, Oversized::Refuse);
        let blocks: Vec<_> = (1..9).map(|bytes| pager.insert(bytes, Arena(0))).collect();
        for block in &blocks {
            operate_above_a_disk(&mut pager, &[*block], [8, 100]).expect("the disk takes it");
            pager.wrote(*block).expect("on the device");
        }
        for _ in 0..8 {
            pager.mark_step();
            for block in &blocks {
                operate_above_a_disk(&mut pager, &[*block], [8, 100]).expect("it comes back");
            }
        }
        let on_disk = |id: &&BlockId| place(&pager, **id).0 == Place::Away(DISK);
        let wanted: Vec<_> = blocks.iter().filter(on_disk).copied().collect();
        assert!(wanted.len() > 1, "{wanted:?}");
        assert_eq!(pager.soon_from_disk(2), if foretold { &wanted[..2] } else { &[] });
    }
}

#[test]
fn a_full_disk_is_a_full_tier_and_no_disk_is_no_step() {
    for disk in [0, 10] {
        let (mut pager, _) = written(Limit::bytes(20), Policy::LeastRecentlyUsed, 2);
        let outcome: Result<Vec<_>, Stop> = (0..4)
            .map(|_| {
                let block = pager.insert(10, Arena(0));
                let steps = operate_above_a_disk(&mut pager, &[block], [10, disk])?;
                pager.wrote(block).expect("on the device");
                Ok(steps)
            })
            .collect();
        assert_eq!(outcome, Err(Stop::Shortage(Shortage::TierFull { wanted: 10 })));
        assert_eq!(pager.counters().disk.spilled, disk / 10);
    }
}

#[test]
fn what_is_written_on_the_host_is_no_more_on_the_disk() {
    let mut pager = Pager::new(Limit::bytes(10), Policy::LeastRecentlyUsed, Oversized::Refuse);
    let block = pager.insert(10, Arena(0));
    pager.wrote_on_host(block).expect("it is nowhere");
    pager.report(Step::Spill { block }).expect("it is on the host");
    assert_eq!(
        pager.report(Step::Spill { block }).map_err(|fault| matches!(fault, Fault::Illegal { .. })),
        Err(true)
    );
    pager.wrote_on_host(block).expect("it is away");
    assert_eq!((place(&pager, block), pager.ledger().held(DISK)), ((Place::Away(HOST), false), 0));
    pager.report(Step::Spill { block }).expect("it is on the host");
    pager.report(Step::Load { block }).expect("it is on the disk");
    assert_eq!((place(&pager, block), pager.ledger().held(DISK)), ((Place::Away(HOST), true), 10));
    pager.wrote_on_host(block).expect("it is away");
    assert_eq!((place(&pager, block), pager.ledger().held(DISK)), ((Place::Away(HOST), false), 0));
    assert!(pager.report(Step::Load { block }).is_err() && pager.bring(block).is_ok());
}

#[test]
fn a_block_with_a_disk_copy_spills_before_one_needed_equally_late() {
    let mut pager = Pager::new(Limit::bytes(10), Policy::LeastRecentlyUsed, Oversized::Refuse);
    let [below, larger] = [10, 12].map(|bytes| pager.insert(bytes, Arena(0)));
    for block in [below, larger] {
        pager.wrote_on_host(block).expect("it is nowhere");
    }
    pager.report(Step::Spill { block: below }).expect("it is on the host");
    pager.report(Step::Load { block: below }).expect("it is on the disk");
    pager.begin(&[]).expect("no operand");
    let full = Rooms { host: Limit::bytes(0), disk: Limit::NONE, page: 1 };
    assert_eq!(pager.steps_to_host_room(5, full), Ok(vec![Step::Spill { block: below }]));
    pager.report(Step::Spill { block: below }).expect("it is on the host");
    assert_eq!(pager.counters().disk.bytes_to_disk, 10, "it was written before");
}

#[test]
fn a_copy_that_the_disk_has_too_is_given_up_before_a_larger_one() {
    let mut pager = Pager::new(Limit::bytes(100), Policy::LeastRecentlyUsed, Oversized::Refuse);
    let [below, larger] = [10, 12].map(|bytes| pager.insert(bytes, Arena(0)));
    for block in [below, larger] {
        pager.wrote_on_host(block).expect("it is nowhere");
    }
    pager.report(Step::Spill { block: below }).expect("it is on the host");
    operate_above_a_disk(&mut pager, &[below, larger], [22, 10]).expect("there is room");
    let full = Rooms { host: Limit::bytes(0), disk: Limit::NONE, page: 1 };
    let steps = pager.steps_to_host_room(1, full);
    assert_eq!(steps, Ok(vec![Step::DropCopy { block: below, tier: HOST }]));
    pager.report(Step::DropCopy { block: below, tier: HOST }).expect("it has a copy");
    assert_eq!(place(&pager, below), (Place::Device { clean: Some(DISK) }, false));
    let steps = pager.steps_to_host_room(1, full);
    assert_eq!(steps, Ok(vec![Step::DropCopy { block: larger, tier: HOST }]));
    pager.report(Step::DropCopy { block: larger, tier: HOST }).expect("it has a copy");
    assert!(pager.steps_to_host_room(1, full).is_err(), "nothing is left to give up");
    assert_eq!(pager.steps_to_host_room(1, Rooms::ENDLESS), Ok(Vec::new()));
}

#[test]
fn a_full_disk_gives_up_what_other_tiers_have_before_it_refuses() {
    let (mut pager, [a, _b]) = written_pair();
    let rooms = [10, 30];
    let with_another = |pager: &mut Pager, operands: &[BlockId]| {
        let another = pager.insert(10, Arena(0));
        let steps = operate_above_a_disk(pager, &[operands, &[another]].concat(), rooms)?;
        pager.wrote(another).expect("on the device");
        Ok::<_, Stop>(steps)
    };
    for _ in 0..2 {
        with_another(&mut pager, &[]).expect("the disk takes it");
    }
    operate_above_a_disk(&mut pager, &[a], rooms).expect("it comes back, and the disk keeps it");
    with_another(&mut pager, &[a]).expect("the fifth of six blocks for six places");
    assert_eq!(
        (place(&pager, a), pager.ledger().held(DISK)),
        ((Place::Device { clean: Some(DISK) }, false), 30)
    );
    let steps = with_another(&mut pager, &[a]).expect("the sixth");
    assert!(steps.contains(&Step::DropCopy { block: a, tier: DISK }), "{steps:?}");
    assert_eq!(place(&pager, a), (Place::Device { clean: None }, false));
    let refused = with_another(&mut pager, &[a]);
    assert_eq!(refused, Err(Stop::Shortage(Shortage::TierFull { wanted: 10 })), "the seventh");
}

#[test]
fn an_operand_on_the_host_spills_if_only_that_makes_room_for_its_victim() {
    let (mut pager, [a, b]) = written_pair();
    let third = pager.insert(10, Arena(0));
    operate_above_a_disk(&mut pager, &[third], [10, 20]).expect("there is a place on the host");
    pager.wrote(third).expect("on the device");
    assert_eq!(place(&pager, a).0, Place::Away(HOST));
    let steps = operate_above_a_disk(&mut pager, &[a], [10, 20]).expect("they change places");
    assert!(
        steps.contains(&Step::Spill { block: a }) && steps.contains(&Step::Load { block: a }),
        "{steps:?}"
    );
    assert!(place(&pager, a).0.is_on_device() && !place(&pager, b).0.is_on_device());
}

fn written_pair() -> (Pager, [BlockId; 2]) {
    let (pager, blocks) = written(Limit::bytes(20), Policy::LeastRecentlyUsed, 2);
    (pager, [blocks[0], blocks[1]])
}

#[test]
fn a_copy_on_the_disk_is_kept_where_giving_it_up_makes_no_room() {
    let mut pager = Pager::new(Limit::bytes(10), Policy::LeastRecentlyUsed, Oversized::Refuse);
    let [small, large] = [10, 30].map(|bytes| pager.insert(bytes, Arena(0)));
    pager.wrote_on_host(small).expect("it is nowhere");
    pager.report(Step::Spill { block: small }).expect("it is on the host");
    operate_above_a_disk(&mut pager, &[small], [10, 10]).expect("there is room");
    pager.report(Step::DropCopy { block: small, tier: HOST }).expect("it has a copy");
    pager.wrote_on_host(large).expect("it is nowhere");
    pager.swept();
    let full = Rooms { host: Limit::bytes(0), disk: Limit::bytes(0), page: 1 };
    let refused = Err(Stop::Shortage(Shortage::TierFull { wanted: 5 }));
    assert_eq!(pager.steps_to_host_room(5, full), refused, "30 bytes do not sink into 10");
    assert_eq!(place(&pager, small).0, Place::Device { clean: Some(DISK) });
}

#[test]
fn an_operand_spills_after_all_other_blocks() {
    let (mut pager, [a, b]) = written_pair();
    let more = [0; 2].map(|_| pager.insert(10, Arena(0)));
    for block in more {
        operate_above_a_disk(&mut pager, &[block], [20, 40]).expect("both find a place on the host");
        pager.wrote(block).expect("on the device");
    }
    assert_eq!([a, b].map(|block| place(&pager, block).0), [Place::Away(HOST); 2]);
    let steps = operate_above_a_disk(&mut pager, &[a], [20, 40]).expect("they change places");
    let spilled: Vec<_> = steps.iter().filter(|step| matches!(step, Step::Spill { .. })).collect();
    assert_eq!(spilled, [&Step::Spill { block: b }], "{steps:?}");
}
