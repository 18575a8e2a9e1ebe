//! Moves that fail, in small scenes.

use super::fake_door::FakeDoor;
use crate::error::OffloadError;
use pager::{BlockId, Limit, Oversized, Place, Policy, TierIndex};

const BYTES: u64 = 100;

/// A door with room for one of its two written blocks: the first is away, the second on the device, dirty.
fn door() -> (FakeDoor, BlockId, BlockId) {
    let (budget, modes) = (Limit::bytes(BYTES), (false, true));
    let mut door = FakeDoor::new(budget, Limit::NONE, Policy::Recency, Oversized::Refuse, modes);
    let (first, second) = (door.insert(BYTES, 0), door.insert(BYTES, 0));
    for block in [first, second] {
        assert!(door.operate(&[block], 1).is_ok());
        door.check();
    }
    assert_eq!(place(&door, first), Place::Away(TierIndex::HOST));
    assert_eq!(place(&door, second), Place::Device { clean: None });
    (door, first, second)
}

fn place(door: &FakeDoor, block: BlockId) -> Place {
    door.pager.get(block).expect("a block that lives").place
}

#[test]
fn a_panic_in_a_move_leaves_its_block_where_it_was() {
    let (mut door, first, second) = door();
    // All copies of this operation fail, one of three by a panic.
    door.broken_copies = 200;
    let error = door.operate(&[first], 0).expect_err("the second block cannot leave");
    assert!(matches!(error, OffloadError::CopyOut(..)), "{error}");
    assert_eq!(place(&door, first), Place::Away(TierIndex::HOST));
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
        // The allocator keeps the slice: it is what the next attempt gets.
        assert_eq!((door.pager.ledger().resident(), door.pager.ledger().spare()), (0, BYTES));
    }
    assert_eq!(door.pager.ledger().reserved_peak(), BYTES);
}
