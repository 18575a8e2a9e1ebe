//! Random programs, checked after every operation.

use super::fake_adapter::FakeAdapter;
use crate::tiers::{Disk, SlabSource, Tiers, in_memory, scheduled};
use pager::{Block, BlockId, Limit, Oversized, Place, Policy, Step, Tier};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone)]
enum Op {
    Allocate {
        bytes: u16,
        arena: u8,
    },
    /// Operands are numbers of live blocks; a set bit writes its operand.
    Use {
        operands: Vec<u8>,
        writes: u8,
    },
    WriteFromHost {
        block: u8,
    },
    Read {
        block: u8,
    },
    Take {
        bytes: u16,
    },
    GiveBack,
    /// The program drops the block; the adapter notices later.
    Drop {
        block: u8,
    },
    /// The adapter notices the drop at once, in any state.
    Remove {
        block: u8,
    },
    Pin {
        block: u8,
    },
    Room {
        bytes: u16,
        arena: u8,
    },
    MarkStep,
    Complete {
        number: u8,
    },
    Refuse {
        times: u8,
    },
    BreakDisk {
        times: u8,
    },
    /// The next copies fail, each in the next way of [`Break`].
    BreakCopies {
        times: u8,
    },
}

fn op(largest: u16) -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1..largest, 0u8..3).prop_map(|(bytes, arena)| Op::Allocate { bytes, arena }),
        20 => (vec(any::<u8>(), 1..5), any::<u8>()).prop_map(|(operands, writes)| Op::Use { operands, writes }),
        2 => any::<u8>().prop_map(|block| Op::WriteFromHost { block }),
        2 => any::<u8>().prop_map(|block| Op::Read { block }),
        1 => (1..largest / 3 * 10).prop_map(|bytes| Op::Take { bytes }),
        2 => Just(Op::GiveBack),
        5 => any::<u8>().prop_map(|block| Op::Drop { block }),
        2 => any::<u8>().prop_map(|block| Op::Remove { block }),
        1 => any::<u8>().prop_map(|block| Op::Pin { block }),
        1 => (1..largest / 2 * 3, 0u8..3).prop_map(|(bytes, arena)| Op::Room { bytes, arena }),
        1 => Just(Op::MarkStep),
        6 => any::<u8>().prop_map(|number| Op::Complete { number }),
        2 => (1u8..4).prop_map(|times| Op::Refuse { times }),
        2 => (1u8..4).prop_map(|times| Op::BreakCopies { times }),
        1 => (1u8..4).prop_map(|times| Op::BreakDisk { times }),
    ]
}

impl FakeAdapter {
    fn run(&mut self, op: Op) {
        self.act(op);
        self.check();
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Allocate { bytes, arena } => {
                if self.paging.pager.sweep_pays() {
                    self.paging.sweep(&mut self.device);
                }
                self.insert(u64::from(bytes), arena);
            }
            Op::Use { operands, writes } => {
                let ids: Vec<_> = operands.iter().filter_map(|n| self.nth(*n)).collect();
                // An operation without enough memory changes nothing.
                _ = self.operate(&ids, writes);
            }
            Op::WriteFromHost { block } => {
                let Some(id) = self.nth(block) else { return };
                self.write_from_host(id);
            }

            Op::Read { block } => {
                let Some(id) = self.nth(block) else { return };
                self.read_on_host(id);
            }
            Op::Take { bytes } => self.take_host(usize::from(bytes)),
            Op::GiveBack => drop(self.taken.pop()),

            Op::Drop { block } => {
                let Some(id) = self.nth(block) else { return };
                self.device.live.retain(|other| *other != id);
                self.device.shadow(id).dead = true;
            }
            Op::Remove { block } => {
                let Some(id) = self.nth(block) else { return };
                self.forget(id);
            }
            Op::Pin { block } => {
                let Some(id) = self.nth(block) else { return };
                if self.paging.pager.get(id).is_some_and(Block::is_on_device) {
                    self.paging.pager.pin(id).expect("on the device");
                    self.device.shadow(id).pinned = true;
                }
            }
            Op::Room { bytes, arena } => {
                self.make_room(u64::from(bytes), arena);
            }
            Op::MarkStep => self.paging.pager.mark_step(),
            Op::Complete { number } => {
                if !self.device.flights.is_empty() {
                    let index = number as usize % self.device.flights.len();
                    self.device.end(index);
                }
            }

            Op::Refuse { times } => self.device.refusals = times,
            Op::BreakCopies { times } => self.device.broken_copies = times,
            Op::BreakDisk { times } => {
                if let Some(disk) = self.paging.tiers.below().disk {
                    disk.broken.store(times, Ordering::Relaxed);
                }
            }
        }
    }
}

const PROGRAM: usize = 4096;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::size().pick(64, 256, 2560)))]

    /// The disk's speed is the machine's.
    #[test]
    fn any_program_under_any_budget_reads_what_it_wrote(
        budget in prop_oneof![
            (1u64..64).prop_map(Limit::bytes),
            (64u64..4000).prop_map(Limit::bytes),
            Just(Limit::NONE),
        ],
        host in prop_oneof![Just(Limit::bytes(0)), (1u64..4000).prop_map(Limit::bytes), Just(Limit::NONE)],
        policy in prop_oneof![Just(Policy::Planned), Just(Policy::Recency), Just(Policy::LeastRecentlyUsed)],
        oversized in prop_oneof![Just(Oversized::Refuse), Just(Oversized::RunAlone)],
        disk in prop_oneof![Just(0), 1u64..20, Just(1000)],
        modes in (any::<bool>(), any::<bool>()),
        program in vec(op(600), PROGRAM),
    ) {
        let mut adapter = FakeAdapter::above_a_disk(budget, host, in_memory(disk), policy, oversized, modes);
        for op in program {
            adapter.run(op);
        }
        adapter.close();
    }

    #[test]
    fn any_repeated_program_reads_what_it_wrote_while_moves_are_ahead(
        budget in 600u64..4000,
        host in prop_oneof![(1u64..4000).prop_map(Limit::bytes), Just(Limit::NONE)],
        disk in prop_oneof![Just(0), 1u64..20, Just(1000)],
        paranoid in any::<bool>(),
        kept in vec(1u16..300, 1..12),
        step in vec(op(600), 16..96),
        pace in any::<u64>(),
    ) {
        let (budget, disk) = (Limit::bytes(budget), scheduled(disk, pace));
        let mut adapter =
            FakeAdapter::above_a_disk(budget, host, disk, Policy::Planned, Oversized::Refuse, (true, paranoid));
        for bytes in kept {
            adapter.insert(u64::from(bytes), 0);
        }
        let kept = adapter.device.live.clone();
        for _ in 0..12 {
            for op in &step {
                adapter.run(op.clone());
            }
            let born = adapter.device.live.iter().filter(|id| !kept.contains(id)).copied().collect::<Vec<_>>();
            for id in born {
                adapter.forget(id);
            }
            adapter.paging.pager.mark_step();
        }
        adapter.close();
    }
}

const PAGE: u64 = 4096;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::size().pick(32, 128, 2500)))]

    /// Compares operands after each operation, all others after every sixteenth.
    fn any_program_on_pages(
        budget in 2 * PAGE..8 * PAGE,
        host in 2 * PAGE..6 * PAGE,
        disk in 1u64..30,
        policy in prop_oneof![Just(Policy::Planned), Just(Policy::Recency), Just(Policy::LeastRecentlyUsed)],
        modes in (any::<bool>(), any::<bool>()),
        program in vec(op(2 * PAGE as u16 + 1), PROGRAM),
        pace in any::<u64>(),
    ) {
        let (budget, host, disk) = (Limit::bytes(budget), Limit::bytes(host), scheduled(disk, pace));
        let mut adapter = FakeAdapter::above_a_disk(budget, host, disk, policy, Oversized::Refuse, modes);
        for (n, op) in program.into_iter().enumerate() {
            adapter.act(op);
            if n % 16 == 0 {
                adapter.check();
            }
        }
        adapter.check();
        let counters = adapter.paging.pager.counters();
        SPILLED.fetch_add(counters.disk.spilled, Ordering::Relaxed);
        LOADED.fetch_add(counters.disk.loaded, Ordering::Relaxed);
        adapter.close();
    }
}

static SPILLED: AtomicU64 = AtomicU64::new(0);
static LOADED: AtomicU64 = AtomicU64::new(0);

/// One program may load nothing; together they load thousands of times.
#[test]
fn any_program_above_a_disk_reads_what_it_wrote_from_all_three_tiers() {
    any_program_on_pages();
    let (spilled, loaded) = (SPILLED.load(Ordering::Relaxed), LOADED.load(Ordering::Relaxed));
    assert!(
        spilled > 1000 && loaded > 1000,
        "the disk is in play: {spilled} blocks spilled, {loaded} were loaded"
    );
}

#[test]
fn a_sweep_over_more_than_fits_is_moved_ahead() {
    let mut adapter =
        FakeAdapter::new(Limit::bytes(1000), Limit::NONE, Policy::Planned, Oversized::Refuse, (true, true));
    let weights: Vec<_> = (0..20).map(|n| adapter.insert(90 + n, 0)).collect();
    for _ in 0..10 {
        for id in weights.iter().chain(weights.iter().rev()) {
            adapter.operate(&[*id], 1).expect("it fits");
            adapter.check();
            for index in 0..adapter.device.flights.len() {
                adapter.device.end(index);
            }
        }
    }
    let counters = adapter.paging.pager.counters();
    assert!(counters.ahead.left_ahead > 50 && counters.ahead.brought_ahead > 50, "{counters:?}");
    assert!(counters.ahead.brought_in_vain * 10 < counters.ahead.brought_ahead, "{counters:?}");
    adapter.close();
}

/// Transfers have ended whenever they are polled.
fn at_once(pages: u64) -> Option<Arc<Disk>> {
    scheduled(pages, 0)
}

#[test]
fn a_repeated_program_reads_the_disk_in_the_background() {
    let (device, host) = (Limit::bytes(10_000), Limit::bytes(10_000));
    let mut adapter = FakeAdapter::above_a_disk(
        device,
        host,
        at_once(40),
        Policy::Planned,
        Oversized::Refuse,
        (false, true),
    );

    let weights: Vec<_> = (0..12).map(|n| adapter.insert(4000 + n, 0)).collect();
    for id in &weights {
        adapter.operate(&[*id], 1).expect("there is room for all");
    }

    let disk = adapter.paging.tiers.below().disk.expect("the adapter is above one");
    let mut operations_with_reads = 0;
    for _ in 0..6 {
        for id in &weights {
            adapter.operate(&[*id], 0).expect("it comes back");
            operations_with_reads += usize::from(disk.ahead() > 0);
        }
        adapter.check();
    }

    assert!(operations_with_reads > 24, "a read ran during {operations_with_reads} of 72 operations");
    adapter.close();
}

/// Blocks are written each time; the host holds a few.
#[test]
fn a_repeated_program_spills_in_the_background() {
    let (device, host) = (Limit::bytes(12_300), Limit::bytes(50_000));
    let mut adapter = FakeAdapter::above_a_disk(
        device,
        host,
        at_once(60),
        Policy::Planned,
        Oversized::Refuse,
        (false, true),
    );
    let weights: Vec<_> = (0..24).map(|n| adapter.insert(4000 + n, 0)).collect();
    for _ in 0..9 {
        for id in weights.iter().chain(weights.iter().rev()) {
            adapter.operate(&[*id], 1).expect("there is room for all");
            adapter.check();
        }
        adapter.paging.pager.mark_step();
    }
    let counters = adapter.paging.pager.counters();
    assert!(counters.disk.written_ahead > 30, "{counters:?}");
    adapter.close();
}

/// Blocks of about one page; the device holds three.
const READ: usize = 36;

/// Blocks are read; the host holds a third.
fn reading_sweep() -> (FakeAdapter, Vec<BlockId>) {
    let (device, host) = (Limit::bytes(12_300), Limit::bytes(50_000));
    let mut adapter = FakeAdapter::above_a_disk(
        device,
        host,
        at_once(80),
        Policy::Planned,
        Oversized::Refuse,
        (false, true),
    );
    let weights: Vec<_> = (0..READ as u64).map(|n| adapter.insert(4000 + n, 0)).collect();
    for round in 0..6 {
        for id in weights.iter().chain(weights.iter().rev()) {
            adapter.operate(&[*id], u8::from(round == 0)).expect("there is room for all");
            adapter.check();
        }
        adapter.paging.pager.mark_step();
    }
    (adapter, weights)
}

#[test]
fn a_repeated_program_loads_from_the_disk_in_the_background() {
    let (mut adapter, _) = reading_sweep();
    let counters = adapter.paging.pager.counters();
    assert!(
        counters.disk.loaded_ahead > 60 && counters.disk.loaded_ahead * 3 > counters.disk.loaded,
        "{counters:?}"
    );
    adapter.close();
}

/// The missing room is two blocks; the disk has pages for one.
#[test]
fn no_block_spills_for_room_that_the_disk_cannot_provide() {
    let modes = (false, true);
    let (device, host) = (Limit::bytes(PAGE), Limit::bytes(14_200));
    let disk = at_once(4);
    let mut adapter =
        FakeAdapter::above_a_disk(device, host, disk, Policy::Recency, Oversized::Refuse, modes);
    let loaded = adapter.insert(6000, 0);
    adapter.write_from_host(loaded);
    adapter.take_host(14_200);
    assert!(adapter.taken.pop().is_some(), "it spills into two pages");
    let blocks = [4200, 4000].map(|bytes| adapter.insert(bytes, 0));
    for block in blocks {
        adapter.write_from_host(block);
    }
    assert!(adapter.paging.tiers.begin_load(loaded).expect("it is on the disk"), "there is room for it");
    adapter.paging.pager.started(Step::LoadAhead { block: loaded }).expect("it is on the disk");
    adapter.check();

    adapter.take_host(12_300);
    assert_eq!(
        (adapter.taken.len(), adapter.paging.pager.counters().disk.spilled),
        (0, 1),
        "three pages do not go into two"
    );
    adapter.check();
    adapter.take_host(10_200);
    assert_eq!(
        (adapter.taken.len(), adapter.paging.pager.counters().disk.spilled),
        (1, 2),
        "the larger one makes room"
    );
    adapter.check();
    adapter.close();
}

/// Takes all host memory but a loading block's. Returns another block on disk.
fn under_way(adapter: &mut FakeAdapter, blocks: &[BlockId]) -> BlockId {
    for id in blocks {
        adapter.operate(&[*id], 0).expect("it comes back");
    }
    adapter.take_host(50_000);
    assert!(adapter.taken.pop().is_some(), "all spill for it");
    adapter.take_host(45_800);
    let place = |id: BlockId| adapter.paging.pager.get(id).map(Block::place);
    let on_disk = |id: &BlockId| place(*id) == Some(Place::Away(Tier::Disk));
    let on_disk: Vec<_> = blocks.iter().copied().filter(on_disk).collect();
    let begun = adapter.paging.tiers.begin_load(on_disk[0]);
    assert!(begun.expect("it is on the disk"), "there is room for it");
    adapter.paging.pager.started(Step::LoadAhead { block: on_disk[0] }).expect("it is on the disk");
    adapter.check();
    on_disk[1]
}

#[test]
fn memory_of_a_load_ahead_is_given_to_the_program() {
    let (mut adapter, blocks) = reading_sweep();
    under_way(&mut adapter, &blocks);
    adapter.take_host(4_200);
    assert_eq!((adapter.taken.len(), adapter.paging.pager.loading()), (2, None));
    adapter.check();
    adapter.close();
}

#[test]
fn memory_of_a_load_ahead_is_given_to_a_needed_block() {
    for reads in [false, true] {
        let (mut adapter, blocks) = reading_sweep();
        let needed = under_way(&mut adapter, &blocks);
        if reads {
            adapter.read_on_host(needed);
            let place = adapter.paging.pager.get(needed).map(Block::place);
            assert_eq!(place, Some(Place::Away(Tier::Host)), "the other one gives up");
        } else {
            adapter.operate(&[needed], 0).expect("the other one gives up");
        }
        adapter.check();
        adapter.close();
    }
}

#[test]
fn devices_that_share_a_disk_load_nothing_ahead() {
    let (mut adapter, blocks) = reading_sweep();
    let disk = adapter.paging.tiers.below().disk;
    let other = Tiers::new(adapter.paging.tiers.pool().clone(), SlabSource::Heap, true).above(disk);
    let sweep = |adapter: &mut FakeAdapter| {
        let before = adapter.paging.pager.counters().disk.loaded_ahead;
        blocks
            .iter()
            .chain(blocks.iter().rev())
            .for_each(|id| adapter.operate(&[*id], 0).expect("it comes back"));
        adapter.check();
        adapter.paging.pager.counters().disk.loaded_ahead - before
    };
    assert_eq!(sweep(&mut adapter), 0, "the other one could not ask for the memory");
    drop(other);
    assert!(sweep(&mut adapter) > 0);
    adapter.close();
}
