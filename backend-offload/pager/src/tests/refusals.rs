//! A driver that gives less than the budget.

use super::*;

const BLOCKS: u64 = 64;
const BUDGET: u64 = 480;

/// Reads blocks of 10 bytes in a circle, for `operations`, on a driver that gives `driver` bytes. Returns refusals and
/// evictions.
fn circle(pager: &mut Pager, blocks: &[BlockId], operations: u64, driver: u64) -> [u64; 2] {
    let before = pager.counters();
    for n in 0..operations {
        let block = blocks[(n % BLOCKS) as usize];
        pager.begin(&[block]).expect("legal operands");
        loop {
            match pager.next_step(&|| Rooms::ENDLESS).expect("memory suffices") {
                Step::Ready => break,
                Step::Bring { .. }
                    if pager.ledger().spare() == 0 && pager.ledger().resident() + 10 > driver =>
                {
                    pager.device_refused(10);
                }
                step => take(pager, step).expect("legal steps"),
            }
        }
        pager.wrote(block).expect("on the device");
    }
    let after = pager.counters();
    [
        after.memory.device_refusals - before.memory.device_refusals,
        after.link.evictions - before.link.evictions,
    ]
}

fn blocks(pager: &mut Pager, arena: Arena) -> Vec<BlockId> {
    (0..BLOCKS).map(|_| pager.insert(10, arena)).collect()
}

#[test]
fn a_driver_that_refuses_is_not_asked_in_every_operation() {
    for (arena, policy) in
        [(Arena(0), Policy::Recency), (Arena(0), Policy::Planned), (Arena::UNPOOLED, Policy::Planned)]
    {
        let mut pager = Pager::new(Limit::bytes(BUDGET), policy, Oversized::Refuse);
        let blocks = blocks(&mut pager, arena);
        let [refusals, evictions] = circle(&mut pager, &blocks, 10_000, 300);
        assert!(refusals > 0 && refusals <= 8, "{refusals} refusals in {arena:?}");
        assert_eq!(pager.ledger().budget(), Limit::bytes(BUDGET), "the program's budget stays");

        let mut less = Pager::new(Limit::bytes(300), policy, Oversized::Refuse);
        let blocks = self::blocks(&mut less, arena);
        let [_, least] = circle(&mut less, &blocks, 10_000, 300);
        assert!(
            evictions <= least + least / 10,
            "{evictions} evictions where a budget of as much has {least}"
        );
    }
}

#[test]
fn memory_that_another_process_frees_is_used_after_a_while() {
    let mut pager = Pager::new(Limit::bytes(BUDGET), Policy::Planned, Oversized::Refuse);
    let blocks = blocks(&mut pager, Arena(0));
    circle(&mut pager, &blocks, 1000, 300);
    assert!(pager.ledger().reserved() <= 300);
    circle(&mut pager, &blocks, 2000, u64::MAX);
    assert!(pager.ledger().reserved() > 460, "{:?}", pager.ledger());
}

#[test]
fn an_operation_larger_than_what_the_driver_gave_asks_it_again() {
    for arena in [Arena(0), Arena::UNPOOLED] {
        let mut pager = Pager::new(Limit::bytes(BUDGET), Policy::Planned, Oversized::Refuse);
        let blocks = blocks(&mut pager, arena);
        circle(&mut pager, &blocks, 100, 300);
        pager.begin(&blocks[..40]).expect("within the budget");
        let steps = take_steps(&mut pager).expect("the driver gives more now");
        assert!(steps.iter().any(|step| matches!(step, Step::Bring { .. })));
        assert_eq!(pager.ledger().resident(), 400);
    }
}
