//! Room on the host for the program's own memory: all steps, or none.

use super::*;

const HOST: Tier = Tier::Host;
const DISK: Tier = Tier::Disk;

fn refused(wanted: u64) -> Result<Vec<Step>, Stop> {
    Err(Shortage::TierFull { wanted }.into())
}

fn on_host<const N: usize>(sizes: [u64; N]) -> (Pager, [BlockId; N]) {
    let mut pager = Pager::new(Limit::bytes(100), Policy::LeastRecentlyUsed, Oversized::Refuse);
    let blocks = sizes.map(|bytes| pager.insert(bytes, Arena(0)));
    for block in blocks {
        pager.wrote_on_host(block).expect("it is nowhere");
    }
    (pager, blocks)
}

fn rooms(host: u64, disk: u64) -> Rooms {
    Rooms { host: Limit::bytes(host), disk: Limit::bytes(disk), page: 1 }
}

fn spills<const N: usize>(blocks: [BlockId; N]) -> Vec<Step> {
    blocks.map(|block| Step::Spill { block }).to_vec()
}

#[test]
fn no_block_spills_if_that_cannot_make_room() {
    let (pager, [small, large]) = on_host([20, 30]);
    assert_eq!(pager.steps_to_host_room(5, rooms(5, 40)), Ok(spills([])), "it is there");
    assert_eq!(pager.steps_to_host_room(35, rooms(5, 40)), Ok(spills([large])));
    for wanted in 36..60 {
        assert_eq!(pager.steps_to_host_room(wanted, rooms(5, 40)), refused(wanted), "20 do not go into 10");
    }
    assert_eq!(pager.steps_to_host_room(36, rooms(5, 50)), Ok(spills([large, small])));
    assert_eq!(pager.steps_to_host_room(56, rooms(5, 50)), refused(56), "no more is on the host");
}

#[test]
fn a_block_takes_whole_pages_of_the_disk() {
    let (pager, [small, large]) = on_host([30, 41]);
    let in_pages = |disk| Rooms { page: 40, ..rooms(0, disk) };
    assert_eq!(pager.steps_to_host_room(42, in_pages(80)), refused(42), "three pages do not go into two");
    assert_eq!(pager.steps_to_host_room(42, in_pages(120)), Ok(spills([large, small])));
    assert_eq!(pager.steps_to_host_room(42, rooms(0, 71)), Ok(spills([large, small])));
}

#[test]
fn a_disk_copy_is_dropped_only_for_a_block_that_spills_into_its_place() {
    let (mut pager, [spare, block]) = on_host([30, 50]);
    pager.report(Step::Spill { block: spare }).expect("it is on the host");
    pager.report(Step::Load { block: spare }).expect("it is on the disk");
    assert_eq!(pager.steps_to_host_room(30, rooms(0, 0)), Ok(spills([spare])), "the disk has it");
    operate(&mut pager, &[spare]);
    let copy = Step::DropCopy { block: spare, tier: HOST };
    assert_eq!(pager.steps_to_host_room(30, rooms(0, 0)), Ok(vec![copy]));

    let place = Step::DropCopy { block: spare, tier: DISK };
    let all = vec![copy, place, Step::Spill { block }];
    assert_eq!(pager.steps_to_host_room(31, rooms(0, 19)), refused(31), "50 do not go into 49");
    assert_eq!(pager.steps_to_host_room(31, rooms(0, 20)), Ok(all.clone()));
    assert_eq!(
        pager.steps_to_host_room(31, Rooms { page: 25, ..rooms(0, 0) }),
        Ok(all.clone()),
        "it has two pages"
    );
    for step in all {
        take(&mut pager, step).expect("each is legal after those before it");
    }
    assert_eq!([HOST, DISK].map(|tier| pager.ledger().held(tier)), [0, 50]);
}

#[test]
fn copies_under_way_land_before_a_room_is_judged() {
    let (mut pager, [clean, resting]) = on_host([10, 30]);
    operate(&mut pager, &[clean]);
    operate(&mut pager, &[]);
    let leaving = pager.evict(clean).expect("on the device");
    pager.begin(&[clean]).expect("it is taken back");
    for disk in [0, 30] {
        assert_eq!(pager.steps_to_host_room(10, rooms(0, disk)), Ok(vec![Step::Wait(leaving)]));
    }
    pager.ended(leaving, true).expect("under way");
    let copy = Step::DropCopy { block: clean, tier: HOST };
    assert_eq!(pager.steps_to_host_room(10, rooms(0, 30)), Ok(vec![copy]));
    assert_eq!(pager.steps_to_host_room(11, rooms(0, 30)), Ok(vec![copy, Step::Spill { block: resting }]));
}
