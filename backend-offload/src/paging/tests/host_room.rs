//! Host memory that uploads hold.

use super::fake_adapter::FakeAdapter;
use pager::{BlockId, Limit, Oversized, Policy};
use std::collections::VecDeque;

const BYTES: u64 = 100;

/// Four blocks on the device, all dirty, and two on a host whose other half uploads hold.
fn full_host() -> FakeAdapter {
    let (four, modes) = (Limit::bytes(4 * BYTES), (false, true));
    let mut adapter = FakeAdapter::new(four, four, Policy::Recency, Oversized::Refuse, modes);
    adapter.device.uploads = Some(VecDeque::new());
    let blocks: Vec<BlockId> = (0..6).map(|_| adapter.insert(BYTES, 0)).collect();
    for block in &blocks {
        adapter.operate(&[*block], 1).expect("eight places for six blocks");
    }
    adapter.operate(&blocks[..2], 0b11).expect("two others leave");
    assert_eq!((uploads(&adapter), adapter.paging.tiers.pool().room()), (2, Limit::bytes(0)));
    adapter
}

fn uploads(adapter: &FakeAdapter) -> usize {
    adapter.device.uploads.as_ref().map_or(0, VecDeque::len)
}

#[test]
fn an_operation_waits_for_no_more_uploads_than_it_needs() {
    let mut adapter = full_host();
    for left in [1, 0] {
        let block = adapter.insert(BYTES, 0);
        adapter.operate(&[block], 1).expect("an upload's memory takes the next one that leaves");
        assert_eq!(uploads(&adapter), left);
    }
}

#[test]
fn memory_of_the_program_waits_for_no_more_uploads_than_it_needs() {
    let mut adapter = full_host();
    let draft = adapter.paging.draft(&mut adapter.device, BYTES as usize);
    assert!(matches!(draft, Ok(Some(_))), "{draft:?}");
    assert_eq!(uploads(&adapter), 1);
}
