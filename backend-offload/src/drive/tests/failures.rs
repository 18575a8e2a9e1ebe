//! Tests of moves that fail.

use super::fake_door::FakeDoor;
use crate::error::OffloadError;
use crate::tiers::in_memory;
use pager::{BlockId, Limit, Oversized, Place, Policy, Tier};

const BYTES: u64 = 100;

/// An adapter with room for one of its two written blocks: the first is on the host, the second on the device, dirty.
fn door() -> (FakeDoor, BlockId, BlockId) {
    let (budget, modes) = (Limit::bytes(BYTES), (false, true));
    let mut door = FakeDoor::new(budget, Limit::NONE, Policy::Recency, Oversized::Refuse, modes);
    let (first, second) = (door.insert(BYTES, 0), door.insert(BYTES, 0));
    for block in [first, second] {
        assert!(door.operate(&[block], 1).is_ok());
        door.check();
    }
    assert_eq!(place(&door, first), Place::Away(Tier::Host));
    assert_eq!(place(&door, second), Place::Device { clean: None });
    (door, first, second)
}

fn place(door: &FakeDoor, block: BlockId) -> Place {
    door.pager.get(block).expect("a block that lives").place()
}

#[test]
fn a_panic_in_a_move_leaves_its_block_where_it_was() {
    let (mut door, first, second) = door();
    // All copies of this operation fail, a third of them by a panic.
    door.broken_copies = 200;
    let error = door.operate(&[first], 0).expect_err("the second block cannot leave");
    assert!(matches!(error, OffloadError::CopyOut(..)), "{error}");
    assert_eq!(place(&door, first), Place::Away(Tier::Host));
    assert_eq!(place(&door, second), Place::Device { clean: None });
    door.check();

    door.broken_copies = 0;
    assert!(door.operate(&[first], 0).is_ok() && door.operate(&[second], 0).is_ok());
    door.check();
}

#[test]
fn a_panic_of_the_driver_is_a_refusal() {
    let (mut door, first, _) = door();
    door.driver_panics = true;
    let error = door.operate(&[first], 0).expect_err("no memory");
    assert!(matches!(error, OffloadError::DeviceRefused(..)), "{error}");
    door.check();
}

#[test]
fn memory_taken_for_a_block_that_could_not_return_stays_counted() {
    let (mut door, first, second) = door();
    assert!(door.operate(&[first], 0).is_ok());
    assert!(door.operate(&[second], 0).is_ok());
    door.tiers.corrupt(first);
    for _ in 0..10 {
        let error = door.operate(&[first], 0).expect_err("damaged");
        assert!(matches!(error, OffloadError::HostCopyDamaged { .. }), "{error}");
        // The allocator keeps the slice for the next attempt.
        assert_eq!((door.pager.ledger().resident(), door.pager.ledger().spare()), (0, BYTES));
    }
    assert_eq!(door.pager.ledger().reserved_peak(), BYTES);
}

/// Bytes of a disk page; one block takes one page.
const PAGE: u64 = 4096;

/// An adapter with a disk, and with room for one block on the device and one on the host: the first block is spilled.
fn above_a_disk() -> (FakeDoor, [BlockId; 3]) {
    let (budget, modes) = (Limit::bytes(PAGE), (false, true));
    let mut door = FakeDoor::above_a_disk(
        budget,
        Limit::bytes(PAGE),
        in_memory(3),
        Policy::Recency,
        Oversized::Refuse,
        modes,
    );
    let blocks = [0; 3].map(|_| door.insert(PAGE, 0));
    for block in blocks {
        door.operate(&[block], 1).expect("five places for three blocks");
        door.check();
    }
    assert_eq!(place(&door, blocks[0]), Place::Away(Tier::Disk));
    (door, blocks)
}

fn break_disk(door: &FakeDoor, times: u8) {
    let disk = door.tiers.below().disk.expect("the door is above one");
    disk.broken.store(times, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn a_disk_that_cannot_be_read_fails_the_operation_and_loses_nothing() {
    let (mut door, [first, ..]) = above_a_disk();
    break_disk(&door, 100);
    for _ in 0..3 {
        let error = door.operate(&[first], 0).expect_err("it cannot be raised").to_string();
        assert!(error.contains("reading block 0 (4.00 KiB) at byte 0 of the file on the disk at"), "{error}");
        door.check();
    }
    door.read_on_host(first);
    assert_eq!(place(&door, first), Place::Away(Tier::Disk));
    break_disk(&door, 0);
    door.operate(&[first], 0).expect("as it was written");
    door.check();
}

/// Blocks are written in the background, so a failed write is reported at the next spill.
#[test]
fn a_disk_that_cannot_be_written_is_reported_and_serves_once_it_can() {
    let (mut door, [_, second, third]) = above_a_disk();
    assert_eq!(place(&door, third), Place::Device { clean: None });
    let more = [0; 2].map(|_| door.insert(PAGE, 0));
    break_disk(&door, 100);
    door.operate(&[more[0]], 1).expect("its write is not waited for");
    assert_eq!(place(&door, second), Place::Away(Tier::Disk));
    door.check();
    for _ in 0..3 {
        let error = door.operate(&[more[1]], 1).expect_err("nobody can sink for it").to_string();
        assert!(
            error.contains("writing block 1 (4.00 KiB) at byte 4096 of the file on the disk at"),
            "{error}"
        );
        door.check();
    }
    assert_eq!(place(&door, third), Place::Away(Tier::Host));
    break_disk(&door, 0);
    door.operate(&[more[1]], 1).expect("three places on the disk");
    door.check();
}

#[test]
fn a_copy_that_changed_in_host_memory_is_not_spilled() {
    let (mut door, [_, second, _]) = above_a_disk();
    door.tiers.corrupt(second);
    let another = door.insert(PAGE, 0);
    let error = door.operate(&[another], 1).expect_err("nobody else can make room");
    assert!(matches!(error, OffloadError::HostCopyDamaged { .. }), "{error}");
    assert_eq!(place(&door, second), Place::Away(Tier::Host));
}

#[test]
fn a_refusal_with_both_tiers_full_names_the_disks_numbers() {
    let (mut door, _) = above_a_disk();
    for _ in 0..2 {
        let block = door.insert(PAGE, 0);
        door.operate(&[block], 1).expect("the last of five places");
    }
    let block = door.insert(PAGE, 0);
    let error = door.operate(&[block], 1).expect_err("six blocks");
    let OffloadError::HostFull(situation) = &error else { panic!("{error}") };
    assert_eq!((situation.disk_budget, situation.disk_in_use), (Some(3 * PAGE), 3 * PAGE));
    assert!(error.to_string().contains("as is the disk's below it"), "{error}");
    door.check();
}
