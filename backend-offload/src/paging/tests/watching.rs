//! Test of a watched step.

use super::fake_adapter::FakeAdapter;
use pager::{Limit, Oversized, Policy};
use std::time::Duration;

const BYTES: u64 = 100;

#[test]
fn a_watched_step_lists_the_copies_of_each_operation() {
    let (budget, modes) = (Limit::bytes(2 * BYTES), (false, true));
    let mut adapter = FakeAdapter::new(budget, Limit::NONE, Policy::Recency, Oversized::Refuse, modes);
    let blocks = [0; 3].map(|_| adapter.insert(BYTES, 0));
    let operate = |adapter: &mut FakeAdapter, n: usize| assert!(adapter.operate(&[blocks[n]], 1).is_ok());
    (0..3).for_each(|n| operate(&mut adapter, n));
    assert_eq!(adapter.paging.watched_step(), None, "nobody asked");

    let before = adapter.paging.pager.counters();
    adapter.paging.watch_step();
    for n in [2, 0, 1, 1] {
        operate(&mut adapter, n);
    }
    let stretches = adapter.paging.watched_step().expect("it was watched");
    let moved: Vec<_> =
        stretches.iter().map(|part| (part.operations, part.bytes_out, part.bytes_in)).collect();
    assert_eq!(moved, [(1, 0, 0), (1, BYTES, BYTES), (1, BYTES, BYTES), (1, 0, 0), (0, 0, 0)]);
    assert!(stretches.iter().all(|part| part.resident == 2 * BYTES), "{stretches:?}");
    for part in &stretches {
        assert_eq!(
            part.waited > Duration::ZERO,
            part.bytes_in > 0,
            "what was copied was waited for: {part:?}"
        );
    }
    let sum: u64 = stretches.iter().map(|part| part.bytes_in + part.bytes_out).sum();
    let after = adapter.paging.pager.counters();
    assert_eq!(
        sum,
        after.link.bytes_in + after.link.bytes_out - before.link.bytes_in - before.link.bytes_out
    );
    assert_eq!(adapter.paging.watched_step(), None, "it was taken");
}
