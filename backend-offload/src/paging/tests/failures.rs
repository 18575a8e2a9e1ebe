//! Moves that fail.

use super::fake_adapter::FakeAdapter;
use crate::error::OffloadError;
use crate::tiers::in_memory;
use pager::{BlockId, Limit, Oversized, Place, Policy, Tier};

const BYTES: u64 = 100;

/// Room for one of two blocks: the first on the host, the second on the device, dirty.
fn adapter() -> (FakeAdapter, BlockId, BlockId) {
    let (budget, modes) = (Limit::bytes(BYTES), (false, true));
    let mut adapter = FakeAdapter::new(budget, Limit::NONE, Policy::Recency, Oversized::Refuse, modes);
    let (first, second) = (adapter.insert(BYTES, 0), adapter.insert(BYTES, 0));
    for block in [first, second] {
        assert!(adapter.operate(&[block], 1).is_ok());
        adapter.check();
    }
    assert_eq!(place(&adapter, first), Place::Away(Tier::Host));
    assert_eq!(place(&adapter, second), Place::Device { clean: None });
    (adapter, first, second)
}

fn place(adapter: &FakeAdapter, block: BlockId) -> Place {
    adapter.paging.pager.get(block).expect("a block that lives").place()
}

#[test]
fn a_panic_in_a_move_leaves_its_block_where_it_was() {
    let (mut adapter, first, second) = adapter();
    // A third of the copies fail by a panic.
    adapter.device.broken_copies = 200;
    let error = adapter.operate(&[first], 0).expect_err("the second block cannot leave");
    assert!(matches!(error, OffloadError::CopyOut(..)), "{error}");
    assert_eq!(place(&adapter, first), Place::Away(Tier::Host));
    assert_eq!(place(&adapter, second), Place::Device { clean: None });
    adapter.check();

    adapter.device.broken_copies = 0;
    assert!(adapter.operate(&[first], 0).is_ok() && adapter.operate(&[second], 0).is_ok());
    adapter.check();
}

#[test]
fn a_panic_of_the_driver_is_a_refusal() {
    let (mut adapter, first, _) = adapter();
    adapter.device.driver_panics = true;
    let error = adapter.operate(&[first], 0).expect_err("no memory");
    assert!(matches!(error, OffloadError::DeviceRefused(..)), "{error}");
    adapter.check();
}

#[test]
fn memory_taken_for_a_block_that_could_not_return_stays_counted() {
    let (mut adapter, first, second) = adapter();
    assert!(adapter.operate(&[first], 0).is_ok());
    assert!(adapter.operate(&[second], 0).is_ok());
    adapter.paging.tiers.corrupt(first);
    for _ in 0..10 {
        let error = adapter.operate(&[first], 0).expect_err("damaged");
        assert!(matches!(error, OffloadError::HostCopyDamaged { .. }), "{error}");
        assert_eq!(
            (adapter.paging.pager.ledger().resident(), adapter.paging.pager.ledger().spare()),
            (0, BYTES)
        );
    }
    assert_eq!(adapter.paging.pager.ledger().reserved_peak(), BYTES);
}

const PAGE: u64 = 4096;

/// Room for one block on the device and one on the host: the first is on disk.
fn above_a_disk() -> (FakeAdapter, [BlockId; 3]) {
    let (budget, modes) = (Limit::bytes(PAGE), (false, true));
    let mut adapter = FakeAdapter::above_a_disk(
        budget,
        Limit::bytes(PAGE),
        in_memory(3),
        Policy::Recency,
        Oversized::Refuse,
        modes,
    );
    let blocks = [0; 3].map(|_| adapter.insert(PAGE, 0));
    for block in blocks {
        adapter.operate(&[block], 1).expect("five places for three blocks");
        adapter.check();
    }
    assert_eq!(place(&adapter, blocks[0]), Place::Away(Tier::Disk));
    (adapter, blocks)
}

fn break_disk(adapter: &FakeAdapter, times: u8) {
    let disk = adapter.paging.tiers.below().disk.expect("the adapter is above one");
    disk.broken.store(times, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn a_disk_that_cannot_be_read_fails_the_operation_and_loses_nothing() {
    let (mut adapter, [first, ..]) = above_a_disk();
    break_disk(&adapter, 100);
    for _ in 0..3 {
        let error = adapter.operate(&[first], 0).expect_err("it cannot be loaded").to_string();
        assert!(error.contains("reading block 0 (4.00 KiB) at byte 0 of the file on the disk at"), "{error}");
        adapter.check();
    }
    adapter.read_on_host(first);
    assert_eq!(place(&adapter, first), Place::Away(Tier::Disk));
    break_disk(&adapter, 0);
    adapter.operate(&[first], 0).expect("as it was written");
    adapter.check();
}

#[test]
fn a_disk_that_cannot_be_written_is_reported_and_serves_once_it_can() {
    let (mut adapter, [_, second, third]) = above_a_disk();
    assert_eq!(place(&adapter, third), Place::Device { clean: None });
    let more = [0; 2].map(|_| adapter.insert(PAGE, 0));
    break_disk(&adapter, 100);
    adapter.operate(&[more[0]], 1).expect("its write is not waited for");
    assert_eq!(place(&adapter, second), Place::Away(Tier::Disk));
    adapter.check();
    for _ in 0..3 {
        let error = adapter.operate(&[more[1]], 1).expect_err("no block can spill for it").to_string();
        assert!(
            error.contains("writing block 1 (4.00 KiB) at byte 4096 of the file on the disk at"),
            "{error}"
        );
        adapter.check();
    }
    assert_eq!(place(&adapter, third), Place::Away(Tier::Host));
    break_disk(&adapter, 0);
    adapter.operate(&[more[1]], 1).expect("three places on the disk");
    adapter.check();
}

#[test]
fn a_copy_that_changed_in_host_memory_is_not_spilled() {
    let (mut adapter, [_, second, _]) = above_a_disk();
    adapter.paging.tiers.corrupt(second);
    let another = adapter.insert(PAGE, 0);
    let error = adapter.operate(&[another], 1).expect_err("nobody else can make room");
    assert!(matches!(error, OffloadError::HostCopyDamaged { .. }), "{error}");
    assert_eq!(place(&adapter, second), Place::Away(Tier::Host));
}

#[test]
fn a_refusal_with_both_tiers_full_names_the_disks_numbers() {
    let (mut adapter, _) = above_a_disk();
    for _ in 0..2 {
        let block = adapter.insert(PAGE, 0);
        adapter.operate(&[block], 1).expect("the last of five places");
    }
    let block = adapter.insert(PAGE, 0);
    let error = adapter.operate(&[block], 1).expect_err("six blocks");
    let OffloadError::HostFull(situation) = &error else { panic!("{error}") };
    assert_eq!((situation.disk_budget, situation.disk_in_use), (Some(3 * PAGE), 3 * PAGE));
    assert!(error.to_string().contains("as is the disk's below it"), "{error}");
    adapter.check();
}
